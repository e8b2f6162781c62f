"""Opcodes that Triton's kernels use and NVRTC's hardly: the condition code, signs by exclusive or, 8-bit floats."""

from typing import Any

import ml_dtypes
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


FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def codes_of(kind: str, numbers: np.ndarray) -> np.ndarray:
    """The nearest code of each number, that of the largest finite one for anything beyond; the code of NaN is 127."""
    largest = float(ml_dtypes.finfo(FLOAT8[kind]).max)
    codes = np.clip(numbers, -largest, largest).astype(FLOAT8[kind]).view(np.uint8)
    return np.where(np.isnan(numbers), 127, codes)


def awkward_numbers(kind: str) -> np.ndarray:
    """Numbers of the type, those in the middle between two, a little to either side, and beyond the range."""
    exact = np.arange(127, dtype=np.uint8).view(FLOAT8[kind]).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    near = np.concatenate([exact, (exact[1:] + exact[:-1]) / 2])
    beyond = np.array([0, 1e-9, 449, 464, 465, 480, 57344, 61440, 65504, np.inf, np.nan], np.float32)
    every = np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.float32(1e9)), beyond])
    return np.resize(np.concatenate([every, -every]), 1600).astype(np.float32)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_numbers_to_eight_bits(lanes: Any, kind: str) -> None:
    a = awkward_numbers(kind)
    b = a[::-1].copy()
    halves = a.astype(np.float16)
    inputs = [("f32", a.view(np.uint32)), ("f32", b.view(np.uint32))]
    (pairs,) = lanes(f"cvt.rn.satfinite.{kind}x2.f32 %d0, %a0, %a1;", inputs, ["b16"], lanes=len(a))
    (narrow,) = lanes(
        f"cvt.rn.satfinite.{kind}x2.f16x2 %d0, %a0;", [("b32", halves.view(np.uint32))], ["b16"], lanes=800
    )
    for numbers, codes in ((a, pairs >> 8), (b, pairs & 255), (halves, narrow.view(np.uint8))):
        mask = np.where(np.isnan(numbers), 127, 255)
        np.testing.assert_array_equal(codes & mask, codes_of(kind, numbers))


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_numbers_from_eight_bits(lanes: Any, kind: str) -> None:
    codes = np.arange(256, dtype=np.uint8).repeat(2)
    codes[1::2] = codes[::2][::-1]
    for given in (codes.view(np.uint16), codes.view(np.uint16)[5]):
        (found,) = lanes(f"cvt.rn.f16x2.{kind}x2 %d0, %a0;", [("b16", given)], ["b32"], lanes=256)
        spread = np.ascontiguousarray(np.broadcast_to(given, 256)).view(FLOAT8[kind])
        np.testing.assert_array_equal(found.view(np.float16), spread.astype(np.float16))
