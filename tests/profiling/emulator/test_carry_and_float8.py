"""Opcodes that Triton's kernels use and NVRTC's hardly: the condition code, signs by exclusive or, 8-bit floats."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

WORD = (1 << 32) - 1


def words(rng: np.random.Generator, n: int = 256) -> np.ndarray:
    """Random words, of which many are all ones or nearly nothing, so that carries run through."""
    anything = rng.integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)
    edges = rng.choice(np.array([0, 1, 2, WORD, WORD - 1, 1 << 31], np.uint32), n)
    return np.where(rng.integers(0, 2, n) == 0, anything, edges)


def joined(columns: list[list[int]]) -> list[int]:
    """Numbers from their words, the lowest first."""
    return [sum(word << 32 * i for i, word in enumerate(lane)) for lane in zip(*columns, strict=True)]


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("base", ["add", "sub"])
def test_carries_run_through_a_sum(lanes: Any, base: str, uniform: bool) -> None:
    rng = np.random.default_rng(1)
    columns = [words(rng, 32) for _ in range(6)]
    body = (
        f"{base}.cc.u32 %d0, %a0, %a3; {base}c.cc.u32 %d1, %a1, %a4; {base}c.u32 %d2, %a2, %a5;"
        f"{base}c.cc.s32 %d3, %a0, %a0;"  # reads what came before the last, which wrote none
    )
    given = [column[0] if uniform else column for column in columns]
    found = lanes(body, [("b32", column) for column in given], ["b32"] * 4, lanes=32)
    spread = [np.broadcast_to(column, 32).tolist() for column in given]
    sign = 1 if base == "add" else -1
    for a, b, result in zip(
        joined(spread[:3]), joined(spread[3:]), joined([f.tolist() for f in found[:3]]), strict=True
    ):
        assert result == (a + sign * b) & ((1 << 96) - 1)
    middle = zip(joined(spread[:2]), joined(spread[3:5]), spread[0], found[3].tolist(), strict=True)
    for a, b, low, result in middle:
        carry = int(not 0 <= a + sign * b < 1 << 64)
        assert result == (low + sign * (low + carry)) & WORD


@pytest.mark.parametrize("type_", ["u32", "u64"])
def test_a_long_product(lanes: Any, type_: str) -> None:
    """Two words by one, with two more words added: as the reduction of a large angle does it."""
    bits = int(type_[1:])
    rng = np.random.default_rng(2)
    columns = [
        rng.choice(np.array([0, 1, (1 << bits) - 1, (1 << bits) // 3, 1 << (bits - 1)], f"u{bits // 8}"), 64)
        for _ in range(5)
    ]
    body = (
        f"mad.lo.cc.{type_} %d0, %a0, %a2, %a3; madc.hi.cc.{type_} %d1, %a0, %a2, %a4; addc.{type_} %d2, 0, 0;"
        f"mad.lo.cc.{type_} %d1, %a1, %a2, %d1; madc.hi.{type_} %d2, %a1, %a2, %d2;"
    )
    found = lanes(body, [(f"b{bits}", column) for column in columns], [f"b{bits}"] * 3, lanes=64)
    for a0, a1, b, c0, c1, *result in zip(
        *(column.tolist() for column in columns), *(f.tolist() for f in found), strict=True
    ):
        wanted = (a0 + (a1 << bits)) * b + c0 + (c1 << bits)
        number = sum(word << bits * i for i, word in enumerate(result))
        assert number == wanted & ((1 << 3 * bits) - 1)


@pytest.mark.parametrize("base", ["min", "max"])
def test_the_sign_of_an_extreme_by_exclusive_or(lanes: Any, base: str) -> None:
    values = np.array([0.0, -0.0, 1.5, -1.5, 2.0, -2.0, np.inf, -np.inf], np.float32)
    a, b = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    inputs = [("f32", a.view(np.uint32)), ("f32", b.view(np.uint32))]
    (found,) = lanes(f"{base}.xorsign.abs.f32 %d0, %a0, %a1;", inputs, ["f32"], lanes=64)
    smaller = np.minimum if base == "min" else np.maximum
    wanted = np.where(np.signbit(a) ^ np.signbit(b), -1, 1) * smaller(np.abs(a), np.abs(b))
    np.testing.assert_array_equal(found, wanted.astype(np.float32).view(np.uint32))


def decoded(kind: str, code: int) -> Fraction | float:
    """A number of 8 bits (OCP 8-bit floating point specification, 2023): e4m3 has no infinities and one NaN."""
    mantissa = 3 if kind == "e4m3" else 2
    bias = 7 if kind == "e4m3" else 15
    sign = -1 if code >> 7 else 1
    field, fraction = code >> mantissa & (127 >> mantissa), code & ((1 << mantissa) - 1)
    if kind == "e4m3" and code & 127 == 127:
        return math.nan
    if kind == "e5m2" and field == 31:
        return math.nan if fraction else sign * math.inf
    significand = Fraction(fraction | (1 << mantissa if field else 0), 1 << mantissa)
    return sign * significand * Fraction(2) ** (max(field, 1) - bias)


@functools.cache
def finite(kind: str) -> list[Fraction]:
    """The numbers that are neither negative nor infinite, whose codes are their places."""
    values = [decoded(kind, code) for code in range(127)]
    return [value for value in values if isinstance(value, Fraction)]


def encoded(kind: str, x: float) -> int:
    """The nearest code, of two as near the even one; the largest finite number for anything beyond."""
    if math.isnan(x):
        return 127
    sign, values = 128 if math.copysign(1, x) < 0 else 0, finite(kind)
    if abs(x) >= values[-1]:
        return len(values) - 1 | sign
    above = bisect.bisect_right(values, Fraction(abs(x)))
    return min((above - 1, above), key=lambda code: (abs(values[code] - Fraction(abs(x))), code & 1)) | sign


def awkward_numbers(kind: str) -> np.ndarray:
    """Numbers of the type, those in the middle between two, a little to either side, and beyond the range."""
    exact = [float(v) for code in range(127) if math.isfinite(v := decoded(kind, code))]
    middle = [(a + b) / 2 for a, b in itertools.pairwise(exact)]
    near = np.array([*exact, *middle], np.float32)
    beyond = np.array([0, 1e-9, 449, 464, 465, 480, 57344, 61440, 65504, np.inf, np.nan], np.float32)
    every = np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.float32(1e9)), beyond])
    return np.resize(np.concatenate([every, -every]), 1600).astype(np.float32)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_numbers_to_eight_bits(lanes: Any, kind: str) -> None:
    a = awkward_numbers(kind)
    b = a[::-1].copy()
    inputs = [("f32", a.view(np.uint32)), ("f32", b.view(np.uint32))]
    (found,) = lanes(f"cvt.rn.satfinite.{kind}x2.f32 %d0, %a0, %a1;", inputs, ["b16"], lanes=len(a))
    wanted = {float(x).hex(): encoded(kind, float(x)) for x in a}
    for x, y, word in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        for number, code in ((x, word >> 8), (y, word & 255)):
            assert code & (127 if math.isnan(number) else 255) == wanted[number.hex()], number
    halves = a.astype(np.float16)
    (found,) = lanes(
        f"cvt.rn.satfinite.{kind}x2.f16x2 %d0, %a0;", [("b32", halves.view(np.uint32))], ["b16"], lanes=800
    )
    for number, code in zip(halves.tolist(), found.view(np.uint8).tolist(), strict=True):
        assert code & (127 if math.isnan(number) else 255) == encoded(kind, number)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_numbers_from_eight_bits(lanes: Any, kind: str) -> None:
    codes = np.arange(256, dtype=np.uint8).repeat(2)
    codes[1::2] = codes[::2][::-1]
    for given in (codes.view(np.uint16), codes.view(np.uint16)[5]):
        (found,) = lanes(f"cvt.rn.f16x2.{kind}x2 %d0, %a0;", [("b16", given)], ["b32"], lanes=256)
        spread = np.ascontiguousarray(np.broadcast_to(given, 256)).view(np.uint8)
        for code, half in zip(spread.tolist(), found.view(np.float16).tolist(), strict=True):
            value = decoded(kind, code)
            assert half == value or (math.isnan(half) and math.isnan(value))
