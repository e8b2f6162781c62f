"""Floating-point opcodes and conversions against exact rational arithmetic, rounded once."""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

LANES = 192
KINDS: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def bits_of(numbers: np.ndarray) -> np.ndarray:
    return numbers.view(f"u{numbers.itemsize}")


def samples(kind: str, seed: int, n: int = LANES) -> np.ndarray:
    """Numbers of every kind, moderate ones, and those at the edges."""
    dtype, rng, info = np.dtype(KINDS[kind]), np.random.default_rng(seed), ml_dtypes.finfo(KINDS[kind])
    anything = rng.integers(0, 1 << 64, n, dtype=np.uint64) >> np.uint64(64 - 8 * dtype.itemsize)
    least, normal = float(info.smallest_subnormal), float(info.smallest_normal)
    sharp = [0, least, normal, normal - least, 1, 1 + float(info.eps), 1 - float(info.epsneg), 0.5, 2.5, 3.5]
    sharp += [float(info.max), math.inf, math.nan]
    edges = rng.choice(np.array([*sharp, *(-each for each in sharp)]), n).astype(dtype)
    mild = (rng.standard_normal(n) * 3).astype(dtype)
    chosen = rng.integers(0, 4, n)
    any_bits = anything.astype(f"u{dtype.itemsize}")
    return np.select([chosen == 0, chosen == 1], [any_bits, bits_of(edges)], bits_of(mild)).view(dtype)


def rounded(exact: Fraction, kind: str, mode: str = "rn") -> Any:
    """The number of a type next to an exact one: the nearest (rn), towards zero (rz), below (rm) or above (rp)."""
    dtype = KINDS[kind]
    try:
        near = dtype(float(exact))
    except OverflowError:
        near = dtype(math.inf if exact > 0 else -math.inf)
    if not np.isinf(near) and Fraction(float(near)) == exact:
        return near
    is_below = float(near) == -math.inf or (not np.isinf(near) and Fraction(float(near)) < exact)
    other = np.nextafter(near, dtype(math.inf if is_below else -math.inf))
    below, above = (near, other) if is_below else (other, near)
    if mode != "rn":
        return {"rm": below, "rp": above, "rz": below if exact > 0 else above}[mode]
    down, up = (abs(place(each, kind) - exact) for each in (below, above))
    if down == up:
        return below if int(bits_of(np.array(below))) % 2 == 0 else above
    return below if down < up else above


def place(number: Any, kind: str) -> Fraction:
    """Its value; that of an infinity is where the next number would be."""
    if not np.isinf(number):
        return Fraction(float(number))
    largest = ml_dtypes.finfo(KINDS[kind]).max
    step = Fraction(float(largest)) - Fraction(float(np.nextafter(largest, KINDS[kind](0))))
    return (Fraction(float(largest)) + step) * (1 if number > 0 else -1)


def assert_same(
    found: np.ndarray, wanted: np.ndarray, given: list[np.ndarray], *, signed_zero: bool = True
) -> None:
    """NaNs are alike whatever their payload."""
    found = found.view(wanted.dtype)
    same = (bits_of(found) == bits_of(wanted)) | (np.isnan(found) & np.isnan(wanted))
    same |= (found == 0) & (wanted == 0) & (not signed_zero)
    wrong = [(*(each[i] for each in given), found[i], wanted[i]) for i in np.flatnonzero(~same)]
    assert wrong == []


def flushed(numbers: np.ndarray) -> np.ndarray:
    small = np.abs(numbers) < ml_dtypes.finfo(numbers.dtype).smallest_normal
    return np.where(small, np.copysign(np.zeros_like(numbers), numbers), numbers)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
    "fma": lambda a, b, c: a * b + c,
}


def arithmetic(base: str, kind: str, mode: str, numbers: tuple[Any, ...]) -> Any:
    """IEEE 754 for one operation; NaN, infinities and the sign of zero are numpy's."""
    dtype, function = KINDS[kind], OPERATIONS[base]
    native = dtype(function(*(np.float64(float(each)) for each in numbers)))
    divisor = numbers[-1] if base in ("div", "rcp") else 1
    if not np.isfinite(numbers).all() or divisor == 0:
        return native
    exact = function(*(Fraction(float(each)) for each in numbers))
    if exact == 0:
        return native
    if base == "fma" and kind == "f32" and mode == "rn":  # by way of f64, where the product is exact
        exact = Fraction(float(rounded(exact, "f64")))
    return rounded(exact, kind, mode)


ROUNDED = [
    *(
        f"{base}.{mode}{ftz}.f32"
        for base in OPERATIONS
        for mode in ("rn", "rz", "rm", "rp")
        for ftz in ("", ".ftz")
    ),
    *(f"{base}.rn.f64" for base in OPERATIONS),
    *(f"{base}.{kind}" for base in ("add", "sub", "mul") for kind in ("f16", "bf16", "f16x2", "bf16x2")),
    *(f"fma.rn.{kind}" for kind in ("f16", "bf16", "f16x2", "bf16x2")),
    *(f"{base}.sat.f32" for base in ("add.rn", "mul.rn", "fma.rn")),
]
COUNTS = {"rcp": 1, "fma": 3}


@pytest.mark.parametrize("opcode", ROUNDED)
def test_rounded_once(lanes: Any, opcode: str) -> None:
    base, *modifiers, type_ = opcode.split(".")
    kind = type_.removesuffix("x2")
    mode = next((m for m in modifiers if m in ("rz", "rm", "rp")), "rn")
    columns = [samples(kind, 31 * i + len(opcode)) for i in range(COUNTS.get(base, 2))]
    packed = [bits_of(c).view(np.uint32) if type_.endswith("x2") else bits_of(c) for c in columns]
    operands = ", ".join(f"%a{i}" for i in range(len(columns)))
    inputs = [(type_, c) for c in packed]
    (found,) = lanes(f"{opcode} %d0, {operands};", inputs, [type_], lanes=len(packed[0]))
    given = [flushed(c) for c in columns] if "ftz" in modifiers else columns
    wanted = np.array([arithmetic(base, kind, mode, each) for each in zip(*given, strict=True)], KINDS[kind])
    wanted = flushed(wanted) if "ftz" in modifiers else wanted
    if "sat" in modifiers:
        wanted = np.where(np.isnan(wanted), np.float32(0), np.clip(wanted, 0, 1))
    assert_same(found, wanted, columns, signed_zero="sat" not in modifiers and mode != "rm")


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_square_root(lanes: Any, kind: str) -> None:
    a = samples(kind, 8)
    (found,) = lanes(f"sqrt.rn.{kind} %d0, %a0;", [(kind, bits_of(a))], [kind], lanes=LANES)
    assert_same(found, np.sqrt(a), [a])


EXTREMES = {"min": np.fmin, "max": np.fmax, "min.NaN": np.minimum, "max.NaN": np.maximum}


@pytest.mark.parametrize(
    ("base", "kind"),
    [(base, kind) for base in EXTREMES for kind in KINDS if not (base.endswith("NaN") and kind == "f64")],
)
def test_extremes(lanes: Any, base: str, kind: str) -> None:
    """A NaN gives way to a number unless `.NaN` asks for it."""
    a, b = samples(kind, 1), samples(kind, 2)
    inputs = [(kind, bits_of(a)), (kind, bits_of(b))]
    (found,) = lanes(f"{base}.{kind} %d0, %a0, %a1;", inputs, [kind], lanes=LANES)
    assert_same(found, EXTREMES[base](a, b), [a, b], signed_zero=False)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "f16x2", "bf16x2"])
def test_signs(lanes: Any, kind: str) -> None:
    a = samples(kind.removesuffix("x2"), 4)
    packed = bits_of(a).view(np.uint32) if kind.endswith("x2") else bits_of(a)
    for base, wanted in (("neg", -a), ("abs", np.abs(a))):
        (found,) = lanes(f"{base}.{kind} %d0, %a0;", [(kind, packed)], [kind], lanes=len(packed))
        assert_same(found, wanted, [a])


APPROXIMATE: dict[str, tuple[Callable[[float], float], float]] = {
    "ex2.approx.ftz.f32": (lambda x: 2.0**x, 2.0),
    "lg2.approx.f32": (lambda x: math.log2(x) if x > 0 else math.nan, 2.0),
    "sin.approx.f32": (math.sin, 2.0),
    "cos.approx.f32": (math.cos, 2.0),
    "tanh.approx.f32": (math.tanh, 2.0),
    "rsqrt.approx.f32": (lambda x: x**-0.5 if x > 0 else math.nan, 2.0),
    "rcp.approx.ftz.f32": (lambda x: 1 / x, 1.0),
    "sqrt.approx.f32": (lambda x: math.sqrt(x) if x >= 0 else math.nan, 1.0),
}


@pytest.mark.parametrize("opcode", APPROXIMATE)
def test_approximations_are_within_two_ulp(lanes: Any, opcode: str) -> None:
    function, ulps = APPROXIMATE[opcode]
    a = np.random.default_rng(9).uniform(-20, 20, LANES).astype(np.float32)
    (found,) = lanes(f"{opcode} %d0, %a0;", [("f32", bits_of(a))], ["f32"], lanes=LANES)
    wanted = np.array([function(x) for x in a.tolist()])
    near = np.abs(found.view(np.float32) - wanted) <= ulps * np.spacing(np.abs(wanted).astype(np.float32))
    assert (near | (np.isnan(wanted) & np.isnan(found.view(np.float32)))).all()


ORDER = {each: getattr(operator, each) for each in ("eq", "ne", "lt", "le", "gt", "ge")}
NAMES = [*ORDER, *(f"{each}u" for each in ORDER), "num", "nan"]


def ordered(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    return np.where(unordered, name.endswith("u"), ORDER[name[:2]](a, b))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "f32.ftz"])
def test_comparisons_with_nan(lanes: Any, kind: str) -> None:
    type_, _, ftz = kind.partition(".")
    a, b = samples(type_, 5), samples(type_, 6)
    b[::3] = a[::3]
    middle = ".ftz" if ftz else ""
    body = "mov.u32 %d0, 0;" + "".join(
        f"setp.{name}{middle}.{type_} %p0, %a0, %a1; @%p0 or.b32 %d0, %d0, {1 << i};"
        for i, name in enumerate(NAMES)
    )
    (found,) = lanes(body, [(type_, bits_of(a)), (type_, bits_of(b))], ["u32"], lanes=LANES)
    x, y = (flushed(a), flushed(b)) if ftz else (a, b)
    assert (
        found.tolist() == sum(ordered(name, x, y).astype(int) << i for i, name in enumerate(NAMES)).tolist()
    )


FLOAT_PAIRS = [
    *(("f32", target, mode) for target in ("f16", "bf16") for mode in ("rn", "rz")),
    *(("f64", "f32", mode) for mode in ("rn", "rz", "rm", "rp")),
    ("f64", "f16", "rn"),
    ("f64", "bf16", "rn"),
    ("f16", "f32", ""),
    ("bf16", "f32", ""),
    ("f32", "f64", ""),
    ("f16", "f64", ""),
]


def converted(numbers: np.ndarray, target: str, mode: str) -> np.ndarray:
    """Each number as one of another type."""
    found = [
        rounded(Fraction(float(x)), target, mode) if np.isfinite(x) and x else KINDS[target](x)
        for x in numbers
    ]
    return np.array(found, KINDS[target])


@pytest.mark.parametrize(("source", "target", "mode"), FLOAT_PAIRS)
def test_conversions_between_floats(lanes: Any, source: str, target: str, mode: str) -> None:
    a = samples(source, 3)
    if target in ("f16", "bf16"):  # close to values of the target and to the middle between two
        near = samples(target, 5).astype(np.float64) * (1 + np.array([-1, 0, 1, 1 << 19] * 48) / 2**30)
        a[::2] = near.astype(a.dtype)[::2]
    opcode = ".".join(filter(None, ("cvt", mode, target, source)))
    (found,) = lanes(f"{opcode} %d0, %a0;", [(source, bits_of(a))], [target], lanes=LANES)
    assert_same(found, converted(a, target, mode or "rn"), [a])


INTEGRAL: dict[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}
WIDTHS = (8, 16, 32, 64)


@pytest.mark.parametrize("mode", INTEGRAL)
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_conversions_to_integers(lanes: Any, source: str, mode: str) -> None:
    """Saturating; a NaN becomes 0, or the top bit alone where either side has 64 bits."""
    a, rng = samples(source, 12), np.random.default_rng(1)
    if source in ("f32", "f64"):
        a[: LANES // 4] = rng.uniform(-1, 1, LANES // 4) * 2.0 ** rng.integers(0, 68, LANES // 4)
    for target, w in ((f"{sign}{w}", w) for sign in "su" for w in WIDTHS):
        low, high = (0, (1 << w) - 1) if target[0] == "u" else (-(1 << (w - 1)), (1 << (w - 1)) - 1)
        held = f"{target[0]}{max(w, 16)}"
        (found,) = lanes(
            f"cvt.{mode}.{target}.{source} %d0, %a0;", [(source, bits_of(a))], [held], lanes=LANES
        )
        for x, f in zip(map(float, a), found.tolist(), strict=True):
            if math.isnan(x):
                assert f & ((1 << w) - 1) == (1 << (w - 1) if w == 64 or source == "f64" else 0), target
            else:
                bound = (high if x > 0 else low) if math.isinf(x) else max(low, min(high, INTEGRAL[mode](x)))
                assert f == bound & ((1 << max(w, 16)) - 1), (target, x)


@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
def test_conversions_from_integers(lanes: Any, target: str) -> None:
    rng = np.random.default_rng(4)
    for source, w in ((f"{sign}{w}", w) for sign in "su" for w in WIDTHS):
        if w == 64 and target in ("f16", "bf16"):
            continue
        wide = rng.integers(0, 1 << 64, LANES, dtype=np.uint64) >> np.uint64(64 - w)
        a = (wide >> rng.integers(0, w, LANES).astype(np.uint64)).astype(f"u{w // 8}")
        numbers = a.view(f"i{w // 8}") if source[0] == "s" else a
        for mode in ("rn", "rz", "rm", "rp") if target == "f32" and w < 64 else ("rn",):
            (found,) = lanes(f"cvt.{mode}.{target}.{source} %d0, %a0;", [(source, a)], [target], lanes=LANES)
            wanted = [rounded(Fraction(x), target, mode) for x in numbers.tolist()]
            assert_same(found, np.array(wanted, KINDS[target]), [numbers])


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rn.relu"])
def test_conversions_to_pairs(lanes: Any, kind: str, mode: str) -> None:
    a, b = samples("f32", 1), samples("f32", 2)
    inputs = [("f32", bits_of(a)), ("f32", bits_of(b))]
    (found,) = lanes(f"cvt.{mode}.{kind}.f32 %d0, %a0, %a1;", inputs, [kind], lanes=LANES)
    is_relu = mode.endswith("relu")
    for numbers, half in ((a, found >> 16), (b, found & 0xFFFF)):
        wanted = converted(numbers, kind[:-2], mode[:2])
        wanted = np.where(wanted < 0, np.zeros_like(wanted), wanted) if is_relu else wanted
        assert_same(half.astype(np.uint16), wanted, [numbers], signed_zero=not is_relu)


@pytest.mark.parametrize("mode", ["rna", "rn"])
def test_conversion_to_tf32(lanes: Any, mode: str) -> None:
    a = bits_of(samples("f32", 7))
    a = a[~np.isnan(a.view(np.float32))][:160]
    (found,) = lanes(f"cvt.{mode}.tf32.f32 %d0, %a0;", [("f32", a)], ["b32"], lanes=len(a))
    half = 0x1000 if mode == "rna" else 0xFFF + (a >> 13 & 1)
    assert found.tolist() == ((a + half) & ~np.uint32(0x1FFF)).tolist()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_properties(lanes: Any, kind: str) -> None:
    a = samples(kind, 10)
    small = (np.abs(a) < ml_dtypes.finfo(a.dtype).smallest_normal) & (a != 0)
    facts = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & ~small & (a != 0),
        "subnormal": small,
    }
    body = "mov.u32 %d0, 0;" + "".join(
        f"testp.{name}.{kind} %p0, %a0; @%p0 or.b32 %d0, %d0, {1 << i};" for i, name in enumerate(facts)
    )
    (found,) = lanes(body, [(kind, bits_of(a))], ["u32"], lanes=LANES)
    assert found.tolist() == sum(each.astype(int) << i for i, each in enumerate(facts.values())).tolist()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_copysign_takes_the_sign_of_the_first(lanes: Any, kind: str) -> None:
    a, b = samples(kind, 1), samples(kind, 2)
    inputs = [(kind, bits_of(a)), (kind, bits_of(b))]
    (found,) = lanes(f"copysign.{kind} %d0, %a0, %a1;", inputs, [kind], lanes=LANES)
    assert_same(found, np.copysign(b, a), [a, b])
