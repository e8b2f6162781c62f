"""Floating-point opcodes and conversions against exact rational arithmetic, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

INF = math.inf


@dataclass(frozen=True)
class Format:
    """An IEEE-like format of 1 + `exponent` + `mantissa` bits."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def lowest(self) -> int:
        """Exponent of the smallest denormal."""
        return 2 - (1 << (self.exponent - 1)) - self.mantissa

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.mantissa - 1)

    def is_nan(self, bits: int) -> bool:
        return bits & ~(1 << (self.bits - 1)) > self.infinity

    def negative(self, bits: int) -> bool:
        return bool(bits >> (self.bits - 1))

    def denormal(self, bits: int) -> bool:
        return 0 < bits & ~(1 << (self.bits - 1)) < 1 << self.mantissa

    def value(self, bits: int) -> Fraction | float:
        """An exact number, an infinity or nan; the sign of zero is lost."""
        sign = -1 if self.negative(bits) else 1
        field = bits >> self.mantissa & ((1 << self.exponent) - 1)
        fraction = bits & ((1 << self.mantissa) - 1)
        if field == (1 << self.exponent) - 1:
            return math.nan if fraction else sign * INF
        significand = fraction if field == 0 else fraction | 1 << self.mantissa
        return sign * Fraction(significand) * Fraction(2) ** (max(field, 1) - 1 + self.lowest)

    def round(self, x: Fraction | float, mode: str = "rn", *, negative_zero: bool = False) -> int:
        """Bits of x rounded to nearest even (rn), to zero (rz), down (rm) or up (rp)."""
        top = 1 << (self.bits - 1)
        if isinstance(x, float):
            return self.nan if math.isnan(x) else self.infinity | (top if x < 0 else 0)
        if x == 0:
            return top if negative_zero else 0
        sign, size = x < 0, abs(x)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2) ** exponent
        scale = max(exponent - self.mantissa, self.lowest)
        scaled = size / Fraction(2) ** scale
        whole, rest = scaled.numerator // scaled.denominator, scaled - int(scaled)
        up = {"rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1), "rz": False}
        up |= {"rm": sign and rest > 0, "rp": not sign and rest > 0, "rna": rest >= Fraction(1, 2)}
        whole += bool(up[mode])
        # the significand's leading bit, where there is one, adds one to the exponent field
        bits = ((scale - self.lowest) << self.mantissa) + whole
        if bits >= self.infinity:
            held = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and sign)
            bits = self.infinity - 1 if held else self.infinity
        return bits | (top if sign else 0)


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


LANES = 192
Number = Fraction | float
UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def samples(kind: str, seed: int, n: int = LANES) -> np.ndarray:
    """Bits: of every kind of value, of moderate ones, and of what lies at the edges."""
    form = FORMATS[kind]
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 1 << 64, n, dtype=np.uint64) >> np.uint64(64 - form.bits)
    mild = [form.round(Fraction(float(x))) for x in rng.standard_normal(n) * 3]
    one = form.round(Fraction(1))
    sharp = [0, 1, one, one + 1, one - 1, form.infinity, form.infinity - 1, form.nan, 1 << form.mantissa]
    sharp += [
        (1 << form.mantissa) - 1,
        form.round(Fraction(5, 2)),
        form.round(Fraction(1, 2)),
        form.round(Fraction(7, 2)),
    ]
    edge = rng.choice(np.array([s | sign << (form.bits - 1) for s in sharp for sign in (0, 1)], np.uint64), n)
    kinds = rng.integers(0, 4, n)
    return np.select([kinds == 0, kinds == 1], [any_bits, edge], np.array(mild, np.uint64)).astype(
        f"u{form.bits // 8}"
    )


def same(form: Format, found: int, wanted: int, *, signed_zero: bool = True) -> bool:
    """NaNs are alike whatever their payload."""
    if form.is_nan(found) or form.is_nan(wanted):
        return form.is_nan(found) and form.is_nan(wanted)
    if not signed_zero and (found | wanted) & ~(1 << (form.bits - 1)) == 0:
        return True
    return found == wanted


def flush(form: Format, bits: int) -> int:
    return bits & 1 << (form.bits - 1) if form.denormal(bits) else bits


def arithmetic(base: str, form: Format, mode: str, bits: list[int]) -> int:
    """IEEE 754 for one operation on operands given as bits."""
    values = [form.value(b) for b in bits]
    a, b, c = (*values, Fraction(0), Fraction(0))[:3]
    minus = [form.negative(x) for x in bits]
    if base == "fma":
        product = product_of(a, b, negative=minus[0] != minus[1])
        return add(form, mode, (product, minus[0] != minus[1]), (c, minus[2]))
    if base in ("add", "sub"):
        negated = minus[1] != (base == "sub")
        return add(form, mode, (a, minus[0]), (-b if base == "sub" else b, negated))
    if base == "mul":
        sign = minus[0] != minus[1]
        return form.round(product_of(a, b, negative=sign), mode, negative_zero=sign)
    if base == "div":
        return divide(form, mode, a, b, negative=minus[0] != minus[1])
    return divide(form, mode, Fraction(1), a, negative=minus[0])  # rcp


def product_of(a: Number, b: Number, *, negative: bool) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        if a == 0 or b == 0 or math.isnan(a) or math.isnan(b):
            return math.nan
        return -INF if negative else INF
    return a * b


def add(form: Format, mode: str, first: tuple[Number, bool], second: tuple[Number, bool]) -> int:
    """The sum of two values, each with whether its sign is negative."""
    (a, a_negative), (b, b_negative) = first, second
    if isinstance(a, float) or isinstance(b, float):
        return form.round((a if isinstance(a, float) else 0.0) + (b if isinstance(b, float) else 0.0))
    return form.round(a + b, mode, negative_zero=a_negative and b_negative)


def divide(form: Format, mode: str, a: Number, b: Number, *, negative: bool) -> int:
    if any(isinstance(x, float) and math.isnan(x) for x in (a, b)) or (a == 0 and b == 0):
        return form.nan
    if isinstance(a, float):
        return form.nan if isinstance(b, float) else form.round(-INF if negative else INF)
    if isinstance(b, float):
        return form.round(Fraction(0), negative_zero=negative)
    if b == 0:
        return form.round(-INF if negative else INF)
    return form.round(a / b, mode, negative_zero=negative)


ROUNDED = [
    *(
        f"{base}.{mode}{ftz}.f32"
        for base in ("add", "sub", "mul", "fma", "div", "rcp")
        for mode in ("rn", "rz", "rm", "rp")
        for ftz in ("", ".ftz")
    ),
    *(f"{base}.rn.f64" for base in ("add", "sub", "mul", "fma", "div", "rcp")),
    *(f"{base}.{kind}" for base in ("add", "sub", "mul") for kind in ("f16", "bf16", "f16x2", "bf16x2")),
    *(f"fma.rn.{kind}" for kind in ("f16", "bf16", "f16x2", "bf16x2")),
    *(f"{base}.sat.f32" for base in ("add.rn", "mul.rn", "fma.rn")),
]
COUNTS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "rcp": 1}


@pytest.mark.parametrize("opcode", ROUNDED)
def test_rounded_once(lanes: Any, opcode: str) -> None:
    base, *modifiers, type_ = opcode.split(".")
    kind = type_.removesuffix("x2")
    form = FORMATS[kind]
    mode = next((m for m in modifiers if m in ("rz", "rm", "rp")), "rn")
    columns = [samples(kind, 31 * i + len(opcode)) for i in range(COUNTS[base])]
    packed = [c.view(np.uint32) if type_.endswith("x2") else c for c in columns]
    n = len(packed[0])
    operands = ", ".join(f"%a{i}" for i in range(len(columns)))
    (found,) = lanes(f"{opcode} %d0, {operands};", [(type_, c) for c in packed], [type_], lanes=n)
    wrong = []
    for *bits, f in zip(
        *(c.tolist() for c in columns), found.view(UNSIGNED[form.bits]).tolist(), strict=True
    ):
        given = [flush(form, b) for b in bits] if "ftz" in modifiers else bits
        wanted = arithmetic(base, form, mode, given)
        if base == "fma" and kind == "f32" and mode == "rn":  # by way of f64, where the product is exact
            wanted = form.round(
                F64.value(arithmetic(base, F64, mode, [F64.round(form.value(b)) for b in given]))
            )
        wanted = flush(form, wanted) if "ftz" in modifiers else wanted
        if "sat" in modifiers:
            exact = form.value(wanted)
            wanted = (
                0
                if math.isnan(exact) or exact < 0
                else min(wanted, form.round(Fraction(1)))
                if exact > 0
                else 0
            )
        if not same(form, f, wanted, signed_zero="sat" not in modifiers and mode != "rm"):
            wrong.append([*(hex(b) for b in bits), hex(f), hex(wanted)])
    assert wrong == []


def square_root(form: Format, bits: int) -> int:
    x = form.value(bits)
    if x == 0:
        return bits
    if isinstance(x, float) or x < 0:
        return form.nan if isinstance(x, Fraction) or not x > 0 else bits
    shift = 2 * (form.mantissa + 4) - (x.numerator.bit_length() - x.denominator.bit_length())
    shift += shift & 1
    scaled = x * Fraction(2) ** shift
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    sticky = Fraction(1, 4) if Fraction(whole) ** 2 != scaled else Fraction(0)
    return form.round((whole + sticky) / Fraction(2) ** (shift // 2))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_square_root(lanes: Any, kind: str) -> None:
    form = FORMATS[kind]
    a = samples(kind, 8)
    (found,) = lanes(f"sqrt.rn.{kind} %d0, %a0;", [(kind, a)], [kind], lanes=LANES)
    assert all(same(form, f, square_root(form, x)) for x, f in zip(a.tolist(), found.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("base", ["min", "max", "min.NaN", "max.NaN"])
def test_extremes(lanes: Any, base: str, kind: str) -> None:
    """A NaN gives way to a number unless `.NaN` asks for it."""
    if base.endswith("NaN") and kind == "f64":
        return
    form = FORMATS[kind]
    a, b = samples(kind, 1), samples(kind, 2)
    (found,) = lanes(f"{base}.{kind} %d0, %a0, %a1;", [(kind, a), (kind, b)], [kind], lanes=LANES)
    for x, y, f in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        numbers = [v for v in (x, y) if not form.is_nan(v)]
        if len(numbers) < 2 and (base.endswith("NaN") or not numbers):
            wanted = form.nan
        else:
            wanted = (min if base.startswith("min") else max)(numbers, key=form.value)
        assert same(form, f, wanted, signed_zero=False)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "f16x2", "bf16x2"])
def test_signs(lanes: Any, kind: str) -> None:
    form = FORMATS[kind.removesuffix("x2")]
    a = samples(kind.removesuffix("x2"), 4)
    top = 1 << (form.bits - 1)
    packed = a.view(np.uint32) if kind.endswith("x2") else a
    for base, change in (("neg", lambda x: x ^ top), ("abs", lambda x: x & ~top)):
        (found,) = lanes(f"{base}.{kind} %d0, %a0;", [(kind, packed)], [kind], lanes=len(packed))
        pairs = zip(a.tolist(), found.view(UNSIGNED[form.bits]).tolist(), strict=True)
        assert all(same(form, f, change(x)) for x, f in pairs), base


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
    (found,) = lanes(f"{opcode} %d0, %a0;", [("f32", a.view(np.uint32))], ["f32"], lanes=LANES)
    for x, f in zip(a.tolist(), found.view(np.float32).tolist(), strict=True):
        wanted = function(x)
        assert (
            math.isnan(f)
            if math.isnan(wanted)
            else abs(f - wanted) <= ulps * float(np.spacing(np.float32(abs(wanted))))
        ), x


def ordered(name: str, a: Number, b: Number) -> bool:
    unordered = math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if unordered:
        return name.endswith("u")
    base = name.removesuffix("u")
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[base]


NAMES = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "f32.ftz"])
def test_comparisons_with_nan(lanes: Any, kind: str) -> None:
    type_, _, ftz = kind.partition(".")
    form = FORMATS[type_]
    a, b = samples(type_, 5), samples(type_, 6)
    b[::3] = a[::3]
    middle = ".ftz" if ftz else ""
    body = "mov.u32 %d0, 0;" + "".join(
        f"setp.{name}{middle}.{type_} %p0, %a0, %a1; @%p0 or.b32 %d0, %d0, {1 << i};"
        for i, name in enumerate(NAMES)
    )
    (found,) = lanes(body, [(type_, a), (type_, b)], ["u32"], lanes=LANES)
    for x, y, f in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        values = [form.value(flush(form, v) if ftz else v) for v in (x, y)]
        assert f == sum(ordered(name, *values) << i for i, name in enumerate(NAMES))


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


@pytest.mark.parametrize(("source", "target", "mode"), FLOAT_PAIRS)
def test_conversions_between_floats(lanes: Any, source: str, target: str, mode: str) -> None:
    a = samples(source, 3)
    if target in ("f16", "bf16"):  # close to values of the target and to the middle between two
        near = [
            FORMATS[source].round(FORMATS[target].value(t & 0x7BFF) * (1 + Fraction(d, 1 << 30)))
            for t, d in zip(samples(target, 5).tolist(), [-1, 0, 1, 1 << 19] * 48, strict=True)
        ]
        a[::2] = np.array(near, a.dtype)[::2]
    opcode = ".".join(filter(None, ("cvt", mode, target, source)))
    (found,) = lanes(f"{opcode} %d0, %a0;", [(source, a)], [target], lanes=LANES)
    form, to = FORMATS[source], FORMATS[target]
    for x, f in zip(a.tolist(), found.tolist(), strict=True):
        assert same(to, f, to.round(form.value(x), mode or "rn", negative_zero=form.negative(x))), hex(x)


def integral(x: Fraction, mode: str) -> int:
    return {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](x)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_conversions_to_integers(lanes: Any, source: str, mode: str) -> None:
    """Saturating; a NaN becomes 0, or the top bit alone where either side has 64 bits."""
    form = FORMATS[source]
    a = samples(source, 12)
    if source in ("f32", "f64"):
        rng = np.random.default_rng(1)
        wide = rng.uniform(-1, 1, LANES // 4) * 2.0 ** rng.integers(0, 68, LANES // 4)
        a[: LANES // 4] = [form.round(Fraction(float(x))) for x in wide]
    for target in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        w = int(target[1:])
        low, high = (0, (1 << w) - 1) if target[0] == "u" else (-(1 << (w - 1)), (1 << (w - 1)) - 1)
        held = f"{target[0]}{max(w, 16)}"
        (found,) = lanes(f"cvt.{mode}.{target}.{source} %d0, %a0;", [(source, a)], [held], lanes=LANES)
        for x, f in zip(a.tolist(), found.tolist(), strict=True):
            exact = form.value(x)
            if isinstance(exact, float) and math.isnan(exact):
                wanted = 1 << (w - 1) if w == 64 or source == "f64" else 0
                assert f & ((1 << w) - 1) == wanted, (target, hex(x))
                continue
            bound = (
                (high if exact > 0 else low)
                if isinstance(exact, float)
                else max(low, min(high, integral(exact, mode)))
            )
            assert f == bound & ((1 << max(w, 16)) - 1), (target, hex(x))


@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
def test_conversions_from_integers(lanes: Any, target: str) -> None:
    form = FORMATS[target]
    rng = np.random.default_rng(4)
    for source in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        w = int(source[1:])
        if w == 64 and target in ("f16", "bf16"):
            continue
        shift = rng.integers(0, w, LANES).astype(np.uint64)
        a = ((rng.integers(0, 1 << 64, LANES, dtype=np.uint64) >> np.uint64(64 - w)) >> shift).astype(
            f"u{w // 8}"
        )
        for mode in ("rn", "rz", "rm", "rp") if target == "f32" and w < 64 else ("rn",):
            (found,) = lanes(f"cvt.{mode}.{target}.{source} %d0, %a0;", [(source, a)], [target], lanes=LANES)
            for x, f in zip(a.tolist(), found.tolist(), strict=True):
                number = x - (1 << w) if source[0] == "s" and x >> (w - 1) else x
                assert f == form.round(Fraction(number), mode), (source, mode, x)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rn.relu"])
def test_conversions_to_pairs(lanes: Any, kind: str, mode: str) -> None:
    form = FORMATS[kind[:-2]]
    a, b = samples("f32", 1), samples("f32", 2)
    (found,) = lanes(f"cvt.{mode}.{kind}.f32 %d0, %a0, %a1;", [("f32", a), ("f32", b)], [kind], lanes=LANES)
    for high, low, f in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        for bits, half in ((high, f >> 16), (low, f & 0xFFFF)):
            wanted = form.round(F32.value(bits), mode[:2], negative_zero=F32.negative(bits))
            if mode.endswith("relu") and form.negative(wanted) and not form.is_nan(wanted):
                wanted = 0
            assert same(form, half, wanted, signed_zero=not mode.endswith("relu"))


@pytest.mark.parametrize("mode", ["rna", "rn"])
def test_conversion_to_tf32(lanes: Any, mode: str) -> None:
    a = samples("f32", 7)
    (found,) = lanes(f"cvt.{mode}.tf32.f32 %d0, %a0;", [("f32", a)], ["b32"], lanes=LANES)
    form = Format(8, 10)
    for x, f in zip(a.tolist(), found.tolist(), strict=True):
        if not F32.is_nan(x):
            assert f == form.round(F32.value(x), mode, negative_zero=F32.negative(x)) << 13


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_properties(lanes: Any, kind: str) -> None:
    form = FORMATS[kind]
    a = samples(kind, 10)
    names = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
    body = "mov.u32 %d0, 0;" + "".join(
        f"testp.{name}.{kind} %p0, %a0; @%p0 or.b32 %d0, %d0, {1 << i};" for i, name in enumerate(names)
    )
    (found,) = lanes(body, [(kind, a)], ["u32"], lanes=LANES)
    for x, f in zip(a.tolist(), found.tolist(), strict=True):
        exact = form.value(x)
        finite, small = isinstance(exact, Fraction), form.denormal(x)
        facts = [finite, not finite and not math.isnan(exact), not math.isnan(exact), math.isnan(exact)]
        facts += [finite and not small and exact != 0, small]
        assert f == sum(bool(fact) << i for i, fact in enumerate(facts))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_copysign_takes_the_sign_of_the_first(lanes: Any, kind: str) -> None:
    form = FORMATS[kind]
    a, b = samples(kind, 1), samples(kind, 2)
    top = 1 << (form.bits - 1)
    (found,) = lanes(f"copysign.{kind} %d0, %a0, %a1;", [(kind, a), (kind, b)], [kind], lanes=LANES)
    for x, y, f in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        assert same(form, f, (x & top) | (y & ~top))
