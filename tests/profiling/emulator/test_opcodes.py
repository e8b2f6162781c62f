"""Every opcode against scalar semantics in plain Python, on awkward and random operands."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from mctskernel.profiling.emulator import Geometry, GlobalMemory, UnsupportedPtx, execute, parse_ptx

WIDTH = {"pred": 8, "16": 16, "32": 32, "64": 64}
LANES = 256


def bits_of(type_: str) -> int:
    return 32 if type_.endswith("x2") else int("".join(c for c in type_ if c.isdigit()))


def kernel(opcode: str, sources: list[str], target: str, *, constants: dict[int, str] | None = None) -> str:
    """A kernel that loads an operand per source from its own buffer, runs the instruction and stores the result."""
    lines = [f".reg .b{bits_of(t)} %x{i};" for i, t in enumerate(sources)]
    lines += [f".reg .b{bits_of(target)} %d;", ".reg .b64 %p<8>;", ".reg .b32 %t;", "mov.u32 %t, %tid.x;"]
    for i, t in enumerate(sources):
        lines += [
            f"ld.param.u64 %p0, [k_param_{i}];",
            f"mul.wide.u32 %p1, %t, {bits_of(t) // 8};",
            "add.s64 %p2, %p0, %p1;",
            f"ld.global.b{bits_of(t)} %x{i}, [%p2];",
        ]
    operands = [(constants or {}).get(i, f"%x{i}") for i in range(len(sources))]
    lines += [
        f"{opcode} %d, {', '.join(operands)};",
        f"ld.param.u64 %p0, [k_param_{len(sources)}];",
        f"mul.wide.u32 %p1, %t, {bits_of(target) // 8};",
        "add.s64 %p2, %p0, %p1;",
        f"st.global.b{bits_of(target)} [%p2], %d;",
        "ret;",
    ]
    parameters = ", ".join(f".param .u64 k_param_{i}" for i in range(len(sources) + 1))
    body = "\n".join(lines)
    return f".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k({parameters})\n{{\n{body}\n}}"


def compute(
    opcode: str, operands: list[np.ndarray], sources: list[str], target: str, **options: object
) -> np.ndarray:
    memory = GlobalMemory()
    arguments = [memory.add(f"x{i}", x, writable=False) for i, x in enumerate(operands)]
    arguments.append(memory.add("d", len(operands[0]) * bits_of(target) // 8))
    module = parse_ptx(kernel(opcode, sources, target, **options))  # type: ignore[arg-type]
    done = execute(module, "k", Geometry((1, 1, 1), (len(operands[0]), 1, 1)), arguments, memory)
    assert done.findings == ()
    return memory.array("d", f"u{bits_of(target) // 8}")


def integers(bits: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    top = 1 << bits
    edges = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, top // 2 - 1, top // 2, top // 2 + 1, top - 1, top - 2]
    random = [
        int.from_bytes(rng.bytes(bits // 8), "little") >> int(rng.integers(0, bits))
        for _ in range(LANES - len(edges))
    ]
    values = np.array([e % top for e in edges] + random, f"u{bits // 8}")
    return rng.permutation(values)


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def quotient(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else -1


def field(a: int, b: int, c: int, *, bits: int, sign: bool) -> int:
    position, length = b & 255, c & 255
    top = min(position + length - 1, bits - 1)
    filler = a >> top & 1 if sign and length else 0
    return sum(
        (a >> position + i & 1 if i < length and position + i < bits else filler) << i for i in range(bits)
    )


def insert(a: int, b: int, c: int, d: int, bits: int) -> int:
    position, length = c & 255, d & 255
    for i in range(length):
        if position + i < bits:
            at = position + i
            b = b & ~(1 << at) | (a >> i & 1) << at if i < bits else b & ~(1 << at)
    return b


def permute(a: int, b: int, c: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for i in range(4):
        n = c >> 4 * i & 15
        byte = source[n & 7]
        out |= (255 if byte & 128 else 0) << 8 * i if n & 8 else byte << 8 * i
    return out


def funnel(a: int, b: int, n: int, *, left: bool) -> int:
    both = b << 32 | a
    return (both << n >> 32 if left else both >> n) & 0xFFFFFFFF


def dot(a: int, b: int, c: int, *, sign: bool) -> int:
    form = "<4b" if sign else "<4B"
    x, y = (struct.unpack(form, struct.pack("<I", v)) for v in (a, b))
    return sum(i * j for i, j in zip(x, y, strict=True)) + c


Row = tuple[str, list[str], str, Callable[..., int]]


def integer_rows() -> list[Row]:
    rows: list[Row] = []
    for n in (16, 32, 64):
        u, s, b = f"u{n}", f"s{n}", f"b{n}"
        wrap = (1 << n) - 1

        def both(  # noqa: PLR0917
            name: str, f: Callable[..., int], count: int = 2, n: int = n, u: str = u, s: str = s
        ) -> None:
            rows.append((f"{name}.{u}", [u] * count, u, f))  # noqa: B023
            rows.append((f"{name}.{s}", [s] * count, s, lambda *x: f(*(signed(v, n) for v in x))))  # noqa: B023

        both("add", lambda x, y: x + y)
        both("sub", lambda x, y: x - y)
        both("mul.lo", lambda x, y: x * y)
        both("mul.hi", lambda x, y, n=n: x * y >> n)
        both("mad.lo", lambda x, y, z: x * y + z, 3)
        both("mad.hi", lambda x, y, z, n=n: (x * y >> n) + z, 3)
        both("min", min)
        both("max", max)
        both("div", quotient)
        both("rem", lambda x, y: x - quotient(x, y) * y if y else x)
        if n > 16:
            both("sad", lambda x, y, z: abs(x - y) + z, 3)
        rows += [
            (f"abs.{s}", [s], s, lambda x, n=n: abs(signed(x, n))),
            (f"neg.{s}", [s], s, lambda x: -x),
            (f"and.{b}", [b, b], b, lambda x, y: x & y),
            (f"or.{b}", [b, b], b, lambda x, y: x | y),
            (f"xor.{b}", [b, b], b, lambda x, y: x ^ y),
            (f"not.{b}", [b], b, lambda x: ~x),
            (f"cnot.{b}", [b], b, lambda x: int(x == 0)),
            (f"shl.{b}", [b, "u32"], b, lambda x, y, n=n: x << min(y, n)),
            (f"shr.{u}", [u, "u32"], u, lambda x, y, n=n: x >> min(y, n)),
            (f"shr.{b}", [b, "u32"], b, lambda x, y, n=n: x >> min(y, n)),
            (f"shr.{s}", [s, "u32"], s, lambda x, y, n=n: signed(x, n) >> min(y, n)),
            (f"selp.{b}", [], b, lambda: 0),
        ]
        rows.pop()
        if n < 64:
            w = f"{2 * n}"
            rows += [
                (f"mul.wide.u{n}", [u, u], "u" + w, lambda x, y: x * y),
                (f"mul.wide.s{n}", [s, s], "s" + w, lambda x, y, n=n: signed(x, n) * signed(y, n)),
                (f"mad.wide.u{n}", [u, u, "u" + w], "u" + w, lambda x, y, z: x * y + z),
                (
                    f"mad.wide.s{n}",
                    [s, s, "s" + w],
                    "s" + w,
                    lambda x, y, z, n=n: signed(x, n) * signed(y, n) + z,
                ),
            ]
        if n > 16:
            rows += [
                (f"popc.{b}", [b], "u32", lambda x: x.bit_count()),
                (f"clz.{b}", [b], "u32", lambda x, n=n: n - x.bit_length()),
                (f"brev.{b}", [b], b, lambda x, n=n: int(f"{x:0{n}b}"[::-1], 2)),
                (f"bfind.{u}", [u], "u32", lambda x: x.bit_length() - 1),
                (
                    f"bfind.{s}",
                    [s],
                    "u32",
                    lambda x, n=n, w=wrap: (~x & w if x >> n - 1 else x).bit_length() - 1,
                ),
                (f"bfind.shiftamt.{u}", [u], "u32", lambda x, n=n: n - x.bit_length() if x else -1),
                (f"bfe.{u}", [u, "u32", "u32"], u, lambda x, y, z, n=n: field(x, y, z, bits=n, sign=False)),
                (f"bfe.{s}", [s, "u32", "u32"], s, lambda x, y, z, n=n: field(x, y, z, bits=n, sign=True)),
                (f"bfi.{b}", [b, b, "u32", "u32"], b, lambda x, y, z, v, n=n: insert(x, y, z, v, n)),
            ]
    rows += [
        (
            "add.sat.s32",
            ["s32", "s32"],
            "s32",
            lambda x, y: max(-(2**31), min(2**31 - 1, signed(x, 32) + signed(y, 32))),
        ),
        ("prmt.b32", ["b32", "b32", "b32"], "b32", permute),
        ("shf.l.wrap.b32", ["b32", "b32", "u32"], "b32", lambda a, b, c: funnel(a, b, c & 31, left=True)),
        ("shf.r.wrap.b32", ["b32", "b32", "u32"], "b32", lambda a, b, c: funnel(a, b, c & 31, left=False)),
        (
            "shf.l.clamp.b32",
            ["b32", "b32", "u32"],
            "b32",
            lambda a, b, c: funnel(a, b, min(c, 32), left=True),
        ),
        (
            "shf.r.clamp.b32",
            ["b32", "b32", "u32"],
            "b32",
            lambda a, b, c: funnel(a, b, min(c, 32), left=False),
        ),
        ("dp4a.u32.u32", ["u32", "u32", "u32"], "u32", lambda a, b, c: dot(a, b, c, sign=False)),
        ("dp4a.s32.s32", ["s32", "s32", "s32"], "s32", lambda a, b, c: dot(a, b, c, sign=True)),
        ("mul24.lo.u32", ["u32", "u32"], "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        (
            "mul24.lo.s32",
            ["s32", "s32"],
            "s32",
            lambda a, b: signed(a & 0xFFFFFF, 24) * signed(b & 0xFFFFFF, 24),
        ),
    ]
    return rows


INTEGERS = {row[0]: row for row in integer_rows()}


def expected(function: Callable[..., int], operands: list[np.ndarray], bits: int) -> list[int]:
    return [function(*(int(v) for v in values)) & ((1 << bits) - 1) for values in zip(*operands, strict=True)]


@pytest.mark.parametrize("opcode", INTEGERS)
def test_integer_opcode(opcode: str) -> None:
    _, sources, target, function = INTEGERS[opcode]
    operands = [integers(bits_of(t), 17 * i + len(opcode)) for i, t in enumerate(sources)]
    got = compute(opcode, operands, sources, target)
    assert got.tolist() == expected(function, operands, bits_of(target))


@pytest.mark.parametrize(
    "opcode", [o for o, row in INTEGERS.items() if len(row[1]) > 1 and not o.startswith("div")]
)
@pytest.mark.parametrize("literal", [-5, 3, 0x7FFF])
def test_integer_opcode_with_a_literal(opcode: str, literal: int) -> None:
    """Among others, mul.wide with a negative literal."""
    _, sources, target, function = INTEGERS[opcode]
    operands = [integers(bits_of(t), 5 * i + 1) for i, t in enumerate(sources)]
    bits = bits_of(sources[1])
    operands[1] = np.full(LANES, literal & ((1 << bits) - 1), f"u{bits // 8}")
    got = compute(opcode, operands, sources, target, constants={1: str(literal)})
    assert got.tolist() == expected(function, operands, bits_of(target))


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0x1B, 0xFF])
def test_lop3(table: int) -> None:
    operands = [integers(32, i) for i in range(3)]
    got = compute("lop3.b32", [*operands, operands[0]], ["b32"] * 4, "b32", constants={3: str(table)})

    def truth(a: int, b: int, c: int) -> int:
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32)
        )

    assert got.tolist() == expected(truth, operands, 32)


def floats(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    edges = np.array(
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3.4e38, 65504, 0.5, 1 / 3, 2.5, -2.5],
        np.float32,
    )
    wild = rng.integers(0, 2**32, 64, dtype=np.uint32).view(np.float32)
    mild = rng.standard_normal(LANES - len(wild) - len(edges)).astype(np.float32) * np.float32(8)
    return rng.permutation(np.concatenate([edges, wild, mild]).astype(np.float32))


def exact_fma(a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return float(rounded(exact)) if exact else float(np.float64(a) * b + c)


def rounded(x: Fraction) -> np.float32:
    """The nearest f32, ties to even, from an exact fraction."""
    with np.errstate(all="ignore"):
        near = np.float32(float(x))
        if not np.isfinite(near):
            return near
        candidates = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    finite = [c for c in candidates if np.isfinite(c)]
    return min(finite, key=lambda c: (abs(Fraction(float(c)) - x), int(c.view(np.uint32)) & 1))


FLOATS: dict[str, tuple[int, Callable[..., float]]] = {
    "add.f32": (2, lambda a, b: a + b),
    "sub.f32": (2, lambda a, b: a - b),
    "mul.f32": (2, lambda a, b: a * b),
    "div.rn.f32": (2, lambda a, b: a / b),
    "min.f32": (2, lambda a, b: b if a != a else a if b != b else min(a, b)),  # noqa: PLR0124
    "max.f32": (2, lambda a, b: b if a != a else a if b != b else max(a, b)),  # noqa: PLR0124
    "max.NaN.f32": (2, lambda a, b: np.maximum(a, b)),  # noqa: PLW0108
    "abs.f32": (1, abs),
    "neg.f32": (1, lambda a: -a),
    "sqrt.rn.f32": (1, np.sqrt),
    "rcp.rn.f32": (1, lambda a: np.float32(1) / a),
    "add.sat.f32": (
        2,
        lambda a, b: np.float32(0) if np.isnan(a + b) else np.clip(a + b, np.float32(0), np.float32(1)),
    ),
    "copysign.f32": (2, lambda a, b: np.copysign(b, a)),
}


@pytest.mark.parametrize("opcode", FLOATS)
def test_f32_opcode(opcode: str) -> None:
    count, function = FLOATS[opcode]
    operands = [floats(i + 3) for i in range(count)]
    got = compute(opcode, operands, ["f32"] * count, "f32").view(np.float32)
    with np.errstate(all="ignore"):
        want = np.array([function(*values) for values in zip(*operands, strict=True)], np.float32)
    np.testing.assert_array_equal(got, want)


def test_fma_rounds_once() -> None:
    operands = [floats(i) for i in (11, 12, 13)]
    with np.errstate(all="ignore"):
        want = np.array([exact_fma(*map(float, v)) for v in zip(*operands, strict=True)], np.float32)
    got = compute("fma.rn.f32", operands, ["f32"] * 3, "f32").view(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("ex2.approx.f32", np.exp2),
        ("lg2.approx.f32", np.log2),
        ("sin.approx.f32", np.sin),
        ("tanh.approx.f32", np.tanh),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
    ],
)
def test_approximations_are_close(opcode: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(LANES)).astype(np.float32)
    got = compute(opcode, [x], ["f32"], "f32").view(np.float32)
    np.testing.assert_allclose(got, function(x.astype(np.float64)), rtol=2e-6, atol=1e-6)


COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a < b or a > b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: not (a < b or a > b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "leu": lambda a, b: not a > b,
    "gtu": lambda a, b: not a <= b,
    "geu": lambda a, b: not a < b,
    "num": lambda a, b: a == a and b == b,  # noqa: PLR0124
    "nan": lambda a, b: a != a or b != b,  # noqa: PLR0124
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_float_comparison(name: str) -> None:
    a, b = floats(1), floats(2)
    b[::3] = a[::3]
    got = compute(f"set.{name}.u32.f32", [a, b], ["f32", "f32"], "u32")
    assert (got != 0).tolist() == [COMPARISONS[name](float(x), float(y)) for x, y in zip(a, b, strict=True)]


def test_float_to_integer_saturates_and_nan_is_zero() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.5, -2.5, 1e20], np.float32)
    assert compute("cvt.rzi.s32.f32", [x], ["f32"], "s32").view("i4").tolist() == [
        0,
        2**31 - 1,
        -(2**31),
        2**31 - 1,
        -(2**31),
        2,
        -2,
        2**31 - 1,
    ]
    assert compute("cvt.rni.u32.f32", [x], ["f32"], "u32").tolist() == [
        0,
        2**32 - 1,
        0,
        3_000_000_000,
        0,
        2,
        0,
        2**32 - 1,
    ]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_directed_rounding(mode: str) -> None:
    x = np.random.default_rng(1).standard_normal(LANES) * 1e3
    got = compute(f"cvt.{mode}.f32.f64", [x], ["f64"], "f32").view(np.float32).astype(np.float64)
    assert {
        "rn": np.abs(got - x) <= np.spacing(np.abs(x).astype("f4")) / 2,
        "rz": np.abs(got) <= np.abs(x),
        "rm": got <= x,
        "rp": got >= x,
    }[mode].all()
    np.testing.assert_allclose(got, x, rtol=2e-7)


def test_bf16_rounds_to_nearest_even() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, -1.0, np.inf, 3.4e38, 0.1], np.float32)
    got = compute("cvt.rn.bf16.f32", [x], ["f32"], "b16")
    assert got.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF80, 0x7F80, 0x7F80, 0x3DCD]


@pytest.mark.parametrize("opcode", ["fma.rn.f16x2", "add.f16x2", "mul.f16x2"])
def test_packed_halves(opcode: str) -> None:
    count = 3 if opcode.startswith("fma") else 2
    operands = [np.random.default_rng(i).standard_normal(2 * LANES).astype(np.float16) for i in range(count)]
    got = compute(opcode, [x.view("u4") for x in operands], ["f16x2"] * count, "f16x2").view(np.float16)
    x = [o.astype(np.float64) for o in operands]
    want = {"fma": lambda: x[0] * x[1] + x[2], "add": lambda: x[0] + x[1], "mul": lambda: x[0] * x[1]}[
        opcode[:3]
    ]()
    np.testing.assert_array_equal(got, want.astype(np.float16))


@pytest.mark.parametrize(
    "opcode",
    ["wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "tex.2d.v4.f32.f32", "mbarrier.init.shared.b64"],
)
def test_unknown_instruction_is_refused_by_name(opcode: str) -> None:
    memory = GlobalMemory()
    module = parse_ptx(kernel(opcode, ["b32"], "b32"))
    done = execute(module, "k", Geometry((1, 1, 1), (1, 1, 1)), [0, 0], memory)
    (finding,) = done.findings
    assert finding.kind == "unsupported"
    assert opcode in finding.message
    assert not done.completed


def test_unknown_directive_is_refused() -> None:
    with pytest.raises(UnsupportedPtx, match="alias"):
        parse_ptx(".version 8.0\n.target sm_90\n.alias f, g;")
