"""Integer opcodes against the PTX ISA's definitions, written out in Python integers."""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Reference = Callable[..., int]
LANES = 256
SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
BITS = ("b16", "b32", "b64")


def width(type_: str) -> int:
    return int(type_[1:])


def edges(type_: str) -> list[int]:
    top = 1 << width(type_)
    return [*(0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 255), top // 2, top // 2 - 1, top - 1, top - 2, 0xAAAA]


def sample(type_: str, rng: np.random.Generator, n: int = LANES) -> np.ndarray:
    """Bits of random values: of the full range, small ones and edges."""
    w = width(type_)
    wide = rng.integers(0, 1 << 64, n, dtype=np.uint64) & np.uint64((1 << w) - 1)
    small = rng.integers(0, 80, n, dtype=np.uint64)
    chosen = rng.choice(np.array([e & ((1 << w) - 1) for e in edges(type_)], np.uint64), n)
    kind = rng.integers(0, 3, n)
    return np.where(kind == 0, wide, np.where(kind == 1, small, chosen)).astype(f"u{w // 8}")


def value(type_: str, bits: int) -> int:
    w = width(type_)
    return bits - (1 << w) if type_[0] == "s" and bits >> (w - 1) else bits


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bit_field_extract(type_: str) -> Reference:
    def extract(a: int, b: int, c: int) -> int:
        top, at, n = width(type_) - 1, b & 255, c & 255
        sign = 0 if type_[0] == "u" or n == 0 else a >> min(at + n - 1, top) & 1
        return sum((a >> (at + i) & 1 if i < n and at + i <= top else sign) << i for i in range(top + 1))

    return extract


def bit_field_insert(type_: str) -> Reference:
    def insert(a: int, b: int, c: int, d: int) -> int:
        at, n, f = c & 255, d & 255, b
        for i in range(n):
            if at + i < width(type_):
                f = f & ~(1 << (at + i)) | (a >> i & 1) << (at + i)
        return f

    return insert


def permute(a: int, b: int, c: int) -> int:
    data = [(b << 32 | a) >> (8 * i) & 255 for i in range(8)]
    result = 0
    for i in range(4):
        control = c >> (4 * i)
        byte = data[control & 7]
        result |= ((255 if byte & 128 else 0) if control & 8 else byte) << (8 * i)
    return result


def most_significant(type_: str) -> Reference:
    def find(a: int) -> int:
        return (a if a >= 0 else ~a).bit_length() - 1

    return find


def dot(type_a: str, type_b: str) -> Reference:
    def lane(bits: int, i: int, type_: str) -> int:
        return value(f"{type_[0]}8", bits >> (8 * i) & 255)

    return lambda a, b, c: c + sum(lane(a, i, type_a) * lane(b, i, type_b) for i in range(4))


def dot2(type_a: str, type_b: str, half: int) -> Reference:
    def total(a: int, b: int, c: int) -> int:
        low = [value(f"{type_a[0]}16", a >> (16 * i) & 0xFFFF) for i in range(2)]
        return c + sum(x * value(f"{type_b[0]}8", b >> (16 * half + 8 * i) & 255) for i, x in enumerate(low))

    return total


def funnel(direction: str, mode: str) -> Reference:
    def shift(a: int, b: int, c: int) -> int:
        n = min(c, 32) if mode == "clamp" else c & 31
        both = b << 32 | a
        return both << n >> 32 if direction == "l" else both >> n

    return shift


def saturated(exact: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, exact))


def low24(type_: str, a: int) -> int:
    return value(type_[0] + "24", a & 0xFFFFFF)


def by_halves(type_: str, operation: Callable[[int, int], int]) -> Reference:
    def both(a: int, b: int) -> int:
        halves = ((value(type_, a >> at & 0xFFFF), value(type_, b >> at & 0xFFFF), at) for at in (0, 16))
        return sum((operation(x, y) & 0xFFFF) << at for x, y, at in halves)

    return both


Case = tuple[
    list[str], str, Reference
]  # types of the sources, type of the result, the result as an exact integer


def arithmetic(t: str) -> dict[str, Case]:
    w = width(t)
    wide = f"{t[0]}{2 * w}"
    table: dict[str, Case] = {
        f"add.{t}": ([t, t], t, lambda a, b: a + b),
        f"sub.{t}": ([t, t], t, lambda a, b: a - b),
        f"mul.lo.{t}": ([t, t], t, lambda a, b: a * b),
        f"mul.hi.{t}": ([t, t], t, lambda a, b: a * b >> w),
        f"mad.lo.{t}": ([t] * 3, t, lambda a, b, c: a * b + c),
        f"mad.hi.{t}": ([t] * 3, t, lambda a, b, c: (a * b >> w) + c),
        f"min.{t}": ([t, t], t, min),
        f"max.{t}": ([t, t], t, max),
        f"sad.{t}": ([t] * 3, t, lambda a, b, c: c + abs(a - b)),
        f"shr.{t}": ([t, "u32"], t, lambda a, b: a >> b),
    }
    if w < 64:
        table[f"mul.wide.{t}"] = ([t, t], wide, lambda a, b: a * b)
        table[f"mad.wide.{t}"] = ([t, t, wide], wide, lambda a, b, c: a * b + c)
    if w > 16:
        find = most_significant(t)
        table[f"bfind.{t}"] = ([t], "u32", find)
        table[f"bfind.shiftamt.{t}"] = ([t], "u32", lambda a: -1 if find(a) < 0 else w - 1 - find(a))
        table[f"bfe.{t}"] = ([t, "u32", "u32"], t, bit_field_extract(t))
    if t[0] == "s":
        table |= {f"abs.{t}": ([t], t, abs), f"neg.{t}": ([t], t, lambda a: -a)}
    return table


def bitwise(t: str) -> dict[str, Case]:
    w = width(t)
    table: dict[str, Case] = {
        f"and.{t}": ([t, t], t, lambda a, b: a & b),
        f"or.{t}": ([t, t], t, lambda a, b: a | b),
        f"xor.{t}": ([t, t], t, lambda a, b: a ^ b),
        f"not.{t}": ([t], t, lambda a: ~a),
        f"cnot.{t}": ([t], t, lambda a: int(a == 0)),
        f"shl.{t}": ([t, "u32"], t, lambda a, b: a << min(b, 128)),
        f"shr.{t}": ([t, "u32"], t, lambda a, b: a >> b),
        f"mov.{t}": ([t], t, lambda a: a),
    }
    if w > 16:
        table |= {
            f"popc.{t}": ([t], "u32", int.bit_count),
            f"clz.{t}": ([t], "u32", lambda a: w - a.bit_length()),
            f"brev.{t}": ([t], t, lambda a: int(f"{a:0{w}b}"[::-1], 2)),
            f"bfi.{t}": ([t, t, "u32", "u32"], t, bit_field_insert(t)),
        }
    return table


def of_32_bits() -> dict[str, Case]:
    table: dict[str, Case] = {
        "prmt.b32": (["b32"] * 3, "b32", permute),
        "add.sat.s32": (["s32", "s32"], "s32", lambda a, b: saturated(a + b)),
        "sub.sat.s32": (["s32", "s32"], "s32", lambda a, b: saturated(a - b)),
    }
    for t, u in itertools.product(("s32", "u32"), repeat=2):
        c = "u32" if t == u == "u32" else "s32"
        table[f"dp4a.{t}.{u}"] = (["b32", "b32", c], "b32", dot(t, u))
        table[f"dp2a.lo.{t}.{u}"] = (["b32", "b32", c], "b32", dot2(t, u, 0))
        table[f"dp2a.hi.{t}.{u}"] = (["b32", "b32", c], "b32", dot2(t, u, 1))
    for t in ("s32", "u32"):
        table[f"mul24.lo.{t}"] = ([t, t], t, lambda a, b, t=t: low24(t, a) * low24(t, b))
        table[f"mad24.lo.{t}"] = ([t] * 3, t, lambda a, b, c, t=t: low24(t, a) * low24(t, b) + c)
    for t in ("s16", "u16"):
        for name, operation in (("add", operator.add), ("min", min), ("max", max)):
            table[f"{name}.{t}x2"] = (["b32", "b32"], "b32", by_halves(t, operation))
    for direction, mode in itertools.product("lr", ("clamp", "wrap")):
        table[f"shf.{direction}.{mode}.b32"] = (["b32", "b32", "u32"], "b32", funnel(direction, mode))
    return table


def conversions() -> dict[str, Case]:
    table: dict[str, Case] = {}
    for source, target in itertools.product(("s8", "u8", *SIGNED, *UNSIGNED), (*SIGNED, *UNSIGNED)):
        values = 1 << width(target)
        low, high = (0, values - 1) if target[0] == "u" else (-values // 2, values // 2 - 1)
        table[f"cvt.{target}.{source}"] = ([source], target, lambda a: a)
        table[f"cvt.sat.{target}.{source}"] = (
            [source],
            target,
            lambda a, low=low, high=high: max(low, min(high, a)),
        )
    return table


CASES: dict[str, Case] = {
    **{opcode: case for t in (*SIGNED, *UNSIGNED) for opcode, case in arithmetic(t).items()},
    **{opcode: case for t in BITS for opcode, case in bitwise(t).items()},
    **of_32_bits(),
    **conversions(),
}


def expected(types: list[str], result: str, reference: Reference, arguments: list[list[int]]) -> list[int]:
    mask = (1 << width(result)) - 1
    return [
        reference(*(value(t, bits) for t, bits in zip(types, each, strict=True))) & mask
        for each in zip(*arguments, strict=True)
    ]


SIGNATURES: dict[tuple[tuple[str, ...], str], list[str]] = {}
for _opcode, (_types, _result, _) in CASES.items():
    SIGNATURES.setdefault((tuple(_types), _result), []).append(_opcode)


@pytest.mark.parametrize(
    ("signature", "way"),
    [
        (signature, way)
        for signature in SIGNATURES
        for way in ("by lane", "uniform", "first uniform", "others uniform", "literal")
        if len(signature[0]) > 1 or way in ("by lane", "uniform")
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join((*each[0], each[1])),
)
def test_integer_opcodes(lanes: Any, signature: tuple[tuple[str, ...], str], way: str) -> None:
    """All opcodes of a signature in one kernel; operands by lane, shared by all lanes, or a literal second one."""
    types, result = signature
    opcodes = SIGNATURES[signature]
    rng = np.random.default_rng(list("".join(opcodes).encode()))
    n = LANES if way == "by lane" else 32
    given: list[Any] = [sample(t, rng, n) for t in types]
    shared = {"uniform": range(len(types)), "first uniform": [0], "others uniform": range(1, len(types))}
    for i in shared.get(way, ()):
        given[i] = given[i][0]
    sources = [f"%a{i}" for i in range(len(types))]
    literal = int(rng.choice([-5, 3, 0x7FFF]))
    if way == "literal":
        opcodes = [opcode for opcode in opcodes if not opcode.startswith("cvt")]
        sources[1] = str(literal)
    body = "".join(f"{opcode} %d{i}, {', '.join(sources)};" for i, opcode in enumerate(opcodes))
    found = lanes(body, list(zip(types, given, strict=True)), [result] * len(opcodes), lanes=n)
    spread = [np.broadcast_to(each, n).tolist() for each in given]
    if way == "literal":
        spread[1] = [literal & ((1 << width(types[1])) - 1)] * n
    for opcode, values in zip(opcodes, found, strict=True):
        wanted = expected(list(types), result, CASES[opcode][2], spread)
        pairs = zip(*spread, values.tolist(), wanted, strict=True)
        assert [(opcode, *given, hex(f), hex(w)) for *given, f, w in pairs if f != w] == []


@pytest.mark.parametrize("type_", ["s16", "s32", "s64", "u16", "u32", "u64"])
@pytest.mark.parametrize("opcode", ["div", "rem"])
def test_division(lanes: Any, opcode: str, type_: str) -> None:
    """Rounds to zero; the most negative value over -1 wraps; a zero divisor stops nothing."""
    rng = np.random.default_rng(7)
    a, b = sample(type_, rng), sample(type_, rng)
    (found,) = lanes(f"{opcode}.{type_} %d0, %a0, %a1;", [(type_, a), (type_, b)], [type_], lanes=LANES)
    for bits_a, bits_b, f in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        if bits_b:
            x, y = value(type_, bits_a), value(type_, bits_b)
            exact = quotient(x, y) if opcode == "div" else x - quotient(x, y) * y
            assert f == exact & (1 << width(type_)) - 1, (x, y)


@pytest.mark.parametrize("table", [0, 255, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0xD8, 0x1B, 0x3C])
def test_lop3(lanes: Any, table: int) -> None:
    rng = np.random.default_rng(table)
    columns = [sample("b32", rng) for _ in range(3)]
    body = f"lop3.b32 %d0, %a0, %a1, %a2, {table};"
    (found,) = lanes(body, [("b32", c) for c in columns], ["b32"], lanes=LANES)
    for a, b, c, f in zip(*(x.tolist() for x in columns), found.tolist(), strict=True):
        bits = (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1 for i in range(32))
        assert f == sum(bit << i for i, bit in enumerate(bits))


ORDER = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le}
ORDER |= {"gt": operator.gt, "ge": operator.ge}
UNSIGNED_ORDER = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}


@pytest.mark.parametrize("type_", [*SIGNED, *UNSIGNED])
def test_comparisons(lanes: Any, type_: str) -> None:
    """`setp` with both destinations and a combining predicate, `set` and `selp`."""
    comparisons = ORDER | (UNSIGNED_ORDER if type_[0] == "u" else {})
    rng = np.random.default_rng(3)
    a, b, c = sample(type_, rng), sample(type_, rng), sample("u32", rng)
    body = "setp.ne.u32 %p0, %a2, 0;" + "".join(
        f"setp.{name}.xor.{type_} %p1|%p2, %a0, %a1, %p0; setp.{name}.{type_} %p3, %a0, %a1;"
        "selp.u32 %t0, 1, 0, %p1; selp.u32 %t1, 2, 0, %p2; selp.u32 %t2, 4, 0, %p3;"
        f"set.{name}.u32.{type_} %t3, %a0, %a1; and.b32 %t3, %t3, 8;"
        f"add.u32 %d{i}, %t0, %t1; add.u32 %d{i}, %d{i}, %t2; add.u32 %d{i}, %d{i}, %t3;"
        for i, name in enumerate(comparisons)
    )
    inputs = [(type_, a), (type_, b), ("u32", c)]
    found = lanes(body, inputs, ["u32"] * len(comparisons), lanes=LANES)
    for (name, compare), results in zip(comparisons.items(), found, strict=True):
        for x, y, z, f in zip(a.tolist(), b.tolist(), c.tolist(), results.tolist(), strict=True):
            true = compare(value(type_, x), value(type_, y))
            assert f == (true ^ (z != 0)) + 2 * ((not true) ^ (z != 0)) + 4 * true + 8 * true, name


SWAP_64 = "mov.b64 {%t0, %t1}, %a0; mov.b64 %d0, {%t1, %t0};"
SWAP_32 = "{ .reg .b16 %h<2>; mov.b32 {%h0, %h1}, %a0; mov.b32 %d0, {%h1, %h0}; }"
SINK = "{ .reg .b16 %h; mov.b32 {_, %h}, %a0; cvt.u32.u16 %d0, %h; }"
GUARDS = "setp.lt.s32 %p0, %a0, 5; mov.u32 %d0, 1; @%p0 mov.u32 %d0, 2; @!%p0 add.u32 %d0, %d0, 5;"
LITERALS: list[tuple[str, str, str, Reference]] = [
    ("mul.wide.s32 %d0, %a0, -5;", "s32", "s64", lambda a: a * -5),
    ("mul.wide.u32 %d0, %a0, 4294967295;", "u32", "u64", lambda a: a * 0xFFFFFFFF),
    ("mad.wide.s32 %d0, %a0, -4, -8;", "s32", "s64", lambda a: a * -4 - 8),
    ("shl.b32 %d0, %a0, 32;", "b32", "b32", lambda a: 0),
    ("shr.s32 %d0, %a0, 40;", "s32", "s32", lambda a: a >> 40),
    (SWAP_64, "b64", "b64", lambda a: a >> 32 | a << 32),
    (SWAP_32, "b32", "b32", lambda a: a >> 16 | a << 16),
    (SINK, "b32", "b32", lambda a: a >> 16),
    (GUARDS, "s32", "u32", lambda a: 2 if a < 5 else 6),
    ("slct.u32.s32 %d0, 11, 22, %a0;", "s32", "u32", lambda a: 11 if a >= 0 else 22),
    ("{ .reg .u32 %a0; mov.u32 %a0, 9; } mov.u32 %d0, %a0;", "u32", "u32", lambda a: a),
]


@pytest.mark.parametrize(("body", "source", "result", "reference"), LITERALS)
def test_literals_and_guards(lanes: Any, body: str, source: str, result: str, reference: Reference) -> None:
    a = sample(source, np.random.default_rng(5))
    (found,) = lanes(body, [(source, a)], [result], lanes=LANES)
    assert found.tolist() == expected([source], result, reference, [a.tolist()])
