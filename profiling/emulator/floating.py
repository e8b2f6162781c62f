"""What PTX floating-point instructions compute, vectorised (*PTX ISA*, "Floating Point" and "Half Precision").

Approximate instructions are computed to full precision, so they are closer to the true value than the hardware's.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from mctskernel.profiling.emulator.arithmetic import V, select

F32 = np.float32
F64 = np.float64


def flush(x: V) -> V:
    """Denormals to zero of the same sign (`.ftz`)."""
    tiny = np.abs(x) < np.finfo(x.dtype).tiny
    return select(tiny, np.copysign(x.dtype.type(0), x), x)


def xor_sign(x: V, a: V, b: V) -> V:
    """A magnitude with the product of two signs (`.xorsign.abs`)."""
    negative = np.signbit(a) ^ np.signbit(b)
    return select(negative, -np.abs(x), np.abs(x))


def saturate(x: V) -> V:
    """Clamp to [0, 1], NaN to 0 (`.sat`)."""
    return np.fmin(np.fmax(x, x.dtype.type(0)), x.dtype.type(1))


def _two_sum(a: V, b: V) -> tuple[V, V]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: V, b: V) -> tuple[V, V]:
    split = F64(134217729.0)
    p = a * b
    c, d = split * a, split * b
    ah, bh = c - (c - a), d - (d - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def fma64(a: V, b: V, c: V) -> V:
    """Fused multiply-add in double precision by error-free transformations (Dekker 1971, Boldo-Melquiond 2011)."""
    product, error = _two_product(a, b)
    high, low = _two_sum(c, error)
    total, rest = _two_sum(product, high)
    accurate = total + odd_sum(rest, low)
    plain = a * b + c
    moderate = (np.abs(product) > F64(1e-290)) & (np.abs(product) < F64(1e290))
    moderate = moderate & (np.abs(a) < F64(1e290)) & (np.abs(b) < F64(1e290)) & (np.abs(c) < F64(1e290))
    result = select(moderate, accurate, plain)
    finite = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    extreme = finite & ~moderate & ~np.isnan(c)
    return _with_exact(result, extreme, a, b, c) if extreme.any() else result


def _with_exact(result: V, where: V, a: V, b: V, c: V) -> V:
    """Lanes whose intermediate values leave the range of f64, one by one."""
    lanes = np.broadcast_arrays(result, where, a, b, c)
    out = np.array(lanes[0])
    for i in np.flatnonzero(lanes[1]):
        x, y, z = (float(v.reshape(-1)[i]) for v in lanes[2:])
        out.reshape(-1)[i] = _exact_fma(x, y, z)
    return out if out.ndim else out[()]


def _exact_fma(a: float, b: float, c: float) -> float:
    if math.isinf(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def odd_sum(a: V, b: V) -> V:
    """a + b rounded to odd, so that a second rounding is harmless."""
    s, e = _two_sum(a, b)
    even = (s.view(np.uint64) & np.uint64(1)) == 0
    toward = select(
        (e > 0) == (s > 0), np.uint64(1) + (s.view(np.uint64) ^ s.view(np.uint64)), np.uint64(2**64 - 1)
    )
    moved = (s.view(np.uint64) + toward).view(F64)
    return select((e != 0) & even & np.isfinite(s), moved, s)


def round32(x: V, mode: str) -> V:
    """A double rounded to f32 in a PTX rounding mode: rn, rz, rm (down) or rp (up)."""
    near = x.astype(F32)
    if mode == "rn":
        return near
    back = near.astype(F64)
    if mode == "rz":
        wrong, target = np.abs(back) > np.abs(x), F32(0)
    elif mode == "rm":
        wrong, target = back > x, F32(-np.inf)
    else:
        wrong, target = back < x, F32(np.inf)
    return select(wrong, np.nextafter(near, target), near)


def float_to_half(x: V, mode: str = "rn") -> V:
    """f32 or f64 to f16."""
    near = x.astype(np.float16)
    if mode == "rn":
        return near
    if mode != "rz":
        raise ValueError(mode)
    wrong = np.abs(near.astype(F64)) > np.abs(x.astype(F64))
    return select(wrong, np.nextafter(near, np.float16(0)), near)


def bfloat_to_float(x: V) -> V:
    """bf16 bits (u2) to f32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(F32)


def float_to_bfloat(x: V, mode: str = "rn") -> V:
    """f32 to bf16 bits (u2); NaN becomes the canonical 0x7fff."""
    bits = x.view(np.uint32)
    sixteen = np.uint32(16)
    if mode == "rz":
        rounded = bits >> sixteen
    elif mode == "rn":
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> sixteen) & np.uint32(1))) >> sixteen
    else:
        raise ValueError(mode)
    return select(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def float_to_tf32(x: V, mode: str = "rna") -> V:
    """f32 to tf32 in its upper 19 bits."""
    bits = x.view(np.uint32)
    if mode == "rna":
        rounded = bits + np.uint32(0x1000)
    elif mode == "rn":
        rounded = bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    else:
        rounded = bits
    rounded = select(np.isfinite(x), rounded, bits)
    return (rounded & np.uint32(0xFFFFE000)).view(F32)


def odd32(x: V) -> V:
    """f64 to f32 rounded to odd, so that a second rounding is harmless."""
    down = round32(x, "rz")
    inexact = (down.astype(F64) != x) & np.isfinite(x)
    return (down.view(np.uint32) | inexact.astype(np.uint32)).view(F32)


def to_integer(x: V, dtype: str, mode: str) -> V:
    """Float to integer: out-of-range values saturate, NaN becomes 0 or, where either side has 64 bits, the top bit."""
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    wide = rounding(x.astype(F64) if x.dtype.itemsize < 8 else x)
    info = np.iinfo(dtype)
    low, high = F64(info.min), F64(info.max)
    inside = (wide >= low) & (wide < high) if info.bits == 64 else (wide >= low) & (wide <= high)
    plain = select(inside, wide, wide.dtype.type(0)).astype(dtype)
    kind = np.dtype(dtype).type
    result = select(inside, plain, select(wide < low, kind(info.min), kind(info.max)))
    top = info.bits == 64 or x.dtype.itemsize == 8
    not_a_number = kind(0) if not top else kind(info.min or 1 << (info.bits - 1))
    return select(np.isnan(wide), not_a_number, result)


def clamp_integer(x: V, dtype: str) -> V:
    """`cvt.sat` between integers."""
    info = np.iinfo(dtype)
    have = np.iinfo(x.dtype)
    kind = x.dtype.type
    if info.min > have.min:
        x = np.maximum(x, kind(info.min))
    if info.max < have.max:
        x = np.minimum(x, kind(info.max))
    return x.astype(dtype)


def halves(x: V, kind: str) -> tuple[V, V]:
    """Both halves of an f16x2 or bf16x2 register in f32."""
    low, high = (x & np.uint32(0xFFFF)).astype(np.uint16), (x >> np.uint32(16)).astype(np.uint16)
    if kind == "f16":
        return low.view(np.float16).astype(F32), high.view(np.float16).astype(F32)
    return bfloat_to_float(low), bfloat_to_float(high)


def join(low: V, high: V) -> V:
    """Two 16-bit values to one 32-bit register."""
    low, high = (
        (low.view(np.uint16) if low.dtype.kind == "f" else low),
        (high.view(np.uint16) if high.dtype.kind == "f" else high),
    )
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def test_property(x: V, name: str) -> V:
    """`testp`."""
    tiny = np.finfo(x.dtype).tiny
    tests = {
        "finite": lambda: np.isfinite(x),
        "infinite": lambda: np.isinf(x),
        "number": lambda: ~np.isnan(x),
        "notanumber": lambda: np.isnan(x),
        "normal": lambda: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda: (np.abs(x) < tiny) & (x != 0),
    }
    return tests[name]()


FLOAT8: dict[str, np.dtype[Any]] = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""The 8-bit floating-point types by PTX's names."""

_FLOAT8_LARGEST = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
_FLOAT8_NAN = np.uint8(0x7F)


def join_float8(low: V, high: V, kind: str) -> V:
    """Two numbers as one 16-bit word, rounded to nearest even and held to the largest finite (`.satfinite`)."""
    return _float8_bits(low, kind).astype(np.uint16) | _float8_bits(high, kind).astype(
        np.uint16
    ) << np.uint16(8)


def _float8_bits(x: V, kind: str) -> V:
    largest = _FLOAT8_LARGEST[kind]
    bits = np.clip(x, -largest, largest).astype(FLOAT8[kind]).view(np.uint8)
    return select(np.isnan(x), _FLOAT8_NAN, bits)


def float8_pair(word: V, kind: str) -> tuple[V, V]:
    """The low and the high number of a 16-bit word, in single precision."""
    low, high = (word & np.uint16(255)).astype(np.uint8), (word >> np.uint16(8)).astype(np.uint8)
    return low.view(FLOAT8[kind]).astype(np.float32), high.view(FLOAT8[kind]).astype(np.float32)
