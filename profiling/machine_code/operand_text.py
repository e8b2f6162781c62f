"""How NVIDIA's disassembler writes an operand: registers, predicates, values, constants, addresses.

Each function here returns a function of a word and its address that writes one operand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Text = str | Callable[[int, int], str | None]
"""A fixed text, or a function of the word and its address; None for an operand that isn't written."""


class UnknownWordError(ValueError):
    """A word that the tables don't explain."""


def modifier(choices: tuple[str, ...], bits: Sequence[tuple[int, int]]) -> Callable[[int, int], str]:
    """The text of the value of a field. `?` and values beyond the last text have no meaning.

    The bits of the field are pairs of lowest bit and width, the lower bits of its value first.
    """
    (low, width), rest = bits[0], bits[1:]
    most = (1 << width) - 1

    def text(word: int, _: int) -> str:
        index, shift = word >> low & most, width
        for next_low, next_width in rest:
            index |= (word >> next_low & (1 << next_width) - 1) << shift
            shift += next_width
        found = choices[index] if index < len(choices) else "?"
        if found == "?":
            raise UnknownWordError
        return found

    return text


REGISTERS = (*(f"R{index}" for index in range(255)), "RZ")
ZERO = 255  # RZ
UNIFORM = (*(f"UR{index}" for index in range(63)), "URZ")


def register(low: int) -> Callable[[int, int], str]:
    """A register of the thread."""
    return lambda word, _: REGISTERS[word >> low & 0xFF]


def uniform_register(low: int) -> Callable[[int, int], str]:
    """A register of the warp."""
    return lambda word, _: UNIFORM[word >> low & 0x3F]


class SourceBits(NamedTuple):
    """Where the bits are that negate a source, take its absolute value, choose its half (2 bits), and keep it in
    the operand cache; `suffix` is always written.
    """

    sign: str
    negate: int | None
    absolute: int | None
    half: int | None
    reuse: int | None
    suffix: str


_HALVES = ("", "?", ".H0_H0", ".H1_H1")


def source(text: Callable[[int, int], str], bits: SourceBits) -> Callable[[int, int], str]:
    """A source with what its bits do to it."""
    sign, negate, absolute, half, reuse, suffix = bits
    if not suffix and negate is absolute is half is reuse is None:
        return text
    negated, absolved, reused = (1 << bit if bit is not None else 0 for bit in (negate, absolute, reuse))

    def written(word: int, address: int) -> str:
        found = text(word, address)
        if word & absolved:
            found = f"|{found}|"
        if word & negated:
            found = sign + found
        if word & reused:
            found += ".reuse"
        if half is not None:
            found += half_name(word >> half & 3)
        return found + suffix

    return written


def bracketed(text: Text) -> Text:
    """An operand in brackets."""
    return f"[{text}]" if isinstance(text, str) else lambda word, address: f"[{text(word, address)}]"


def half_name(index: int) -> str:
    if index == 1:
        raise UnknownWordError
    return _HALVES[index]


def predicate(kind: str, low: int, unwritten: str, *, negatable: bool) -> Callable[[int, int], str | None]:
    """A predicate, not written where it has no effect: `?` the last one of its values, `?T` PT."""
    names: list[str | None] = [*(f"{kind}{index}" for index in range(7)), f"{kind[:-1]}PT"]
    choices = [*names, *(f"!{name}" for name in names)] if negatable else names
    if unwritten:
        choices[7 if unwritten == "?T" else -1] = None
    most = len(choices) - 1
    return lambda word, _: choices[word >> low & most]


def number(low: int, width: int, *, signed: bool) -> Callable[[int, int], str]:
    """A number in hexadecimal."""
    most = (1 << width) - 1
    if signed:
        return lambda word, _: signed_number(word >> low & most, width)
    return lambda word, _: hex(word >> low & most)


def value(style: str) -> Callable[[int, int], str]:
    """The 32 bits from bit 32."""
    write = _VALUES[style]
    return lambda word, _: write(word >> 32 & 0xFFFFFFFF)


def constant(word: int, _: int) -> str:
    """Constant memory: the bank from bit 54, the offset in words from bit 40."""
    return f"c[{word >> 54 & 31:#x}][{signed_number((word >> 40 & 0x3FFF) << 2, 16)}]"


def half_constant(word: int, address: int) -> str:
    """A half of a word of constant memory, chosen by bit 60."""
    return constant(word, address).replace("][", "] [") + half_name(word >> 60 & 3)


def half_uniform_register(word: int, _: int) -> str:
    """A half of the register of the warp at bit 32, chosen by bit 60."""
    return UNIFORM[word >> 32 & 0x3F] + half_name(word >> 60 & 3)


def signed_number(found: int, width: int) -> str:
    if found >> width - 1:
        found -= 1 << width
    return f"-{-found:#x}" if found < 0 else hex(found)


_MOST_SHORT = 1e9


def _float(found: float, *, quiet: bool, negative: bool) -> str:
    """A float as C++ prints it with 20 digits; what isn't finite or is -0 is followed by a space."""
    if math.isnan(found):
        return f"{'-' if negative else '+'}{'Q' if quiet else 'S'}NAN "
    if math.isinf(found):
        return "-INF " if negative else "+INF "
    if not found:
        return "-0.0 " if negative else "0"
    return f"{found:.20e}" if abs(found) >= _MOST_SHORT else f"{found:.20g}"


def _float32(bits: int) -> str:
    (found,) = struct.unpack("<f", struct.pack("<I", bits))
    return _float(found, quiet=bool(bits >> 22 & 1), negative=bool(bits >> 31))


def _float64(bits: int) -> str:
    (found,) = struct.unpack("<d", struct.pack("<Q", bits << 32))
    return _float(found, quiet=bool(bits >> 19 & 1), negative=bool(bits >> 31))


def _float16(bits: int) -> str:
    (found,) = struct.unpack("<e", struct.pack("<H", bits))
    return _float(found, quiet=bool(bits >> 9 & 1), negative=bool(bits >> 15))


def _float16_pair(bits: int) -> str:
    return f"{_float16(bits >> 16)}, {_float16(bits & 0xFFFF)}"


def _bfloat16_pair(bits: int) -> str:
    return f"{_float32(bits & 0xFFFF0000)}, {_float32(bits << 16 & 0xFFFFFFFF)}"


_VALUES: Mapping[str, Callable[[int], str]] = {
    "f": _float32,
    "d": _float64,
    "h": _float16_pair,
    "b": _bfloat16_pair,
    "i": lambda bits: signed_number(bits, 32),
    "x": hex,
}
