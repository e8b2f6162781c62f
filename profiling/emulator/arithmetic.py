"""What PTX integer instructions compute, vectorised; semantics: *PTX ISA*, "Integer Arithmetic" and "Logic and Shift".

Arguments are numpy arrays or scalars of the instruction's type; results are new values of the same kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

V = Any  # a numpy array over lanes, or a numpy scalar for a value that all lanes share

U32 = np.uint32
U64 = np.uint64


def select(condition: V, yes: V, no: V) -> V:
    """`condition ? yes : no` by lane; stays scalar where it can."""
    if condition.ndim == 0:
        return yes if condition else no
    return np.where(condition, yes, no)


def multiply_high(a: V, b: V) -> V:
    """Upper half of the product of two integers of equal type."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        shift = wide.type(8 * a.dtype.itemsize)
        return ((a.astype(wide) * b.astype(wide)) >> shift).astype(a.dtype)
    if a.dtype.kind == "i":
        high = multiply_high(a.view(U64), b.view(U64)).view(np.int64)
        return high - select(a < 0, b, b - b) - select(b < 0, a, a - a)
    mask, half = U64(0xFFFFFFFF), U64(32)
    a0, a1, b0, b1 = a & mask, a >> half, b & mask, b >> half
    low, mid1, mid2 = a0 * b0, a1 * b0, a0 * b1
    carry = ((low >> half) + (mid1 & mask) + (mid2 & mask)) >> half
    return a1 * b1 + (mid1 >> half) + (mid2 >> half) + carry


def divide(a: V, b: V) -> V:
    """Integer division rounding to zero; the result for a zero divisor is all ones, as on the machine."""
    zero = b == 0
    divisor = select(zero, b + b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return select(zero, ~(a - a) | (b - b), a // divisor)
    minus = divisor == -1
    safe = select(minus, divisor.dtype.type(1) + (a - a), divisor)
    quotient = a // safe
    quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return select(zero, ~(a - a) | (b - b), select(minus, -a, quotient))


def remainder(a: V, b: V) -> V:
    return select(b == 0, a | (b - b), a - divide(a, b) * b)


def saturated(total: V) -> V:
    """A 64-bit sum held to the range of s32."""
    return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)


def bit_count(a: V) -> V:
    return np.bitwise_count(a).astype(U32)


def highest_bit(a: V) -> V:
    """Position of the most significant set bit, all ones for zero."""
    one = a.dtype.type(1)
    for shift in (1, 2, 4, 8, 16, 32)[: 5 + (a.dtype.itemsize == 8)]:
        a = a | (a >> a.dtype.type(shift))
    return np.bitwise_count(a).astype(U32) - U32(one)


def leading_zeros(a: V) -> V:
    return U32(8 * a.dtype.itemsize - 1) - highest_bit(a)


def find_bit(a: V, *, shift_amount: bool = False) -> V:
    """`bfind`: position of the most significant bit that isn't a sign bit."""
    width = 8 * a.dtype.itemsize
    bits = a.view(f"u{a.dtype.itemsize}")
    bits = select(a < 0, ~bits, bits) if a.dtype.kind == "i" else bits
    position = highest_bit(bits)
    return select(bits == 0, position, U32(width - 1) - position) if shift_amount else position


def reverse_bits(a: V) -> V:
    size = a.dtype.itemsize
    for shift, mask in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        pattern = a.dtype.type(int.from_bytes(bytes([mask]) * size, "little"))
        step = a.dtype.type(shift)
        a = ((a >> step) & pattern) | ((a & pattern) << step)
    return a.byteswap()


def permute_bytes(a: V, b: V, selector: V) -> V:
    both = a.astype(U64) | (b.astype(U64) << U64(32))
    result = U32(0)
    for i in range(4):
        nibble = (selector >> U32(4 * i)) & U32(15)
        byte = ((both >> ((nibble & U32(7)) * U32(8)).astype(U64)) & U64(0xFF)).astype(U32)
        sign = select((byte & U32(0x80)) != 0, U32(0xFF), U32(0))
        result = result | (select((nibble & U32(8)) != 0, sign, byte) << U32(8 * i))
    return result


def funnel(a: V, b: V, c: V, *, left: bool, clamp: bool) -> V:
    """`shf`: the upper word of `b:a` shifted to the left, or the lower one of it shifted to the right."""
    amount = (np.minimum(c, U32(32)) if clamp else c & U32(31)).astype(U64)
    both = (b.astype(U64) << U64(32)) | a.astype(U64)
    return ((both << amount) >> U64(32) if left else both >> amount).astype(U32)


def shift_left(a: V, b: V) -> V:
    width = a.dtype.type(8 * a.dtype.itemsize)
    amount = np.minimum(b, U32(width)).astype(a.dtype)
    return select(amount == width, a ^ a, a << (amount & (width - a.dtype.type(1))))


def shift_right(a: V, b: V) -> V:
    """Logical for unsigned types, arithmetic for signed ones; amounts are clamped to the width."""
    width = 8 * a.dtype.itemsize
    if a.dtype.kind == "i":
        return a >> np.minimum(b, U32(width - 1)).astype(a.dtype)
    amount = np.minimum(b, U32(width)).astype(a.dtype)
    return select(amount == width, a ^ a, a >> (amount & a.dtype.type(width - 1)))


def lookup3(a: V, b: V, c: V, table: int) -> V:
    """`lop3` with an immediate truth table."""
    result = a ^ a ^ b ^ b ^ c ^ c
    for i in range(8):
        if table >> i & 1:
            result = result | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
    return result


def extract_field(a: V, b: V, c: V) -> V:
    """`bfe`."""
    size = a.dtype.itemsize
    bits = a.view(f"u{size}")
    width = U32(8 * size)
    position, length = b & U32(0xFF), c & U32(0xFF)
    length64 = length.astype(bits.dtype)
    ones = ~bits.dtype.type(0)
    mask = select(length >= width, ones, ~shift_left(ones + (length64 ^ length64), length))
    value = shift_right(bits, position) & mask
    if a.dtype.kind == "u":
        return value
    mask = mask & shift_right(ones + (length64 ^ length64), position)
    top = np.minimum(position + length - U32(1), width - U32(1))
    sign = (shift_right(bits, top) & bits.dtype.type(1)) != 0
    result = select(sign, value | ~mask, value)
    return select(length == 0, result ^ result, result).view(a.dtype)


def insert_field(a: V, b: V, c: V, d: V) -> V:
    """`bfi`: the low `d` bits of `a` placed at bit `c` of `b`."""
    position, length = c & U32(0xFF), d & U32(0xFF)
    ones = ~a.dtype.type(0) + (a ^ a)
    low = select(length >= U32(8 * a.dtype.itemsize), ones, ~shift_left(ones, length))
    mask = shift_left(low, position)
    return (shift_left(a, position) & mask) | (b & ~mask)


def absolute_difference(a: V, b: V, c: V) -> V:
    return select(a < b, b - a, a - b) + c


def _lanes(a: V, *, signed: bool, bits: int) -> list[V]:
    mask = U32((1 << bits) - 1)
    kind = np.dtype(f"i{bits // 8}") if signed else np.dtype(f"u{bits // 8}")
    return [
        ((a >> U32(bits * i)) & mask).astype(f"u{bits // 8}").view(kind).astype(np.int64)
        for i in range(32 // bits)
    ]


def dot4(a: V, b: V, c: V, *, signed_a: bool, signed_b: bool) -> V:
    total = c.astype(np.int64)
    for x, y in zip(_lanes(a, signed=signed_a, bits=8), _lanes(b, signed=signed_b, bits=8), strict=True):
        total = total + x * y
    return total.view(U64).astype(U32)


def dot2(a: V, b: V, c: V, *, signed_a: bool, signed_b: bool, high: bool) -> V:
    total = c.astype(np.int64)
    bytes_of_b = _lanes(b, signed=signed_b, bits=8)[2 if high else 0 :]
    for x, y in zip(_lanes(a, signed=signed_a, bits=16), bytes_of_b, strict=False):
        total = total + x * y
    return total.view(U64).astype(U32)


def add_with_carry(a: V, b: V, carry: V) -> tuple[V, V]:
    """A sum of unsigned numbers and of a carry, modulo the type's range, and the carry out of it."""
    partial = a + b
    total = partial + carry.astype(a.dtype)
    return total, (partial < a) | (total < partial)


def subtract_with_borrow(a: V, b: V, borrow: V) -> tuple[V, V]:
    """A difference of unsigned numbers and of a borrow, modulo the type's range, and the borrow out of it."""
    partial = a - b
    total = partial - borrow.astype(a.dtype)
    return total, (partial > a) | (total > partial)


def _halves(x: V, kind: str) -> tuple[V, V]:
    dtype = np.int16 if kind == "s16" else np.uint16
    return (x & np.uint32(0xFFFF)).astype(dtype), (x >> np.uint32(16)).astype(dtype)


def _pair(low: V, high: V) -> V:
    wide = [half.astype(np.uint16).astype(np.uint32) for half in (low, high)]
    return wide[0] | wide[1] << np.uint32(16)


_PAIRED = {"add": np.add, "min": np.minimum, "max": np.maximum}


def of_pairs(a: V, b: V, operation: str, kind: str) -> V:
    """The sums (modulo their range), minima or maxima of both 16-bit halves."""
    function = _PAIRED[operation]
    return _pair(*(function(x, y) for x, y in zip(_halves(a, kind), _halves(b, kind), strict=True)))
