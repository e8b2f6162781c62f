"""How NVIDIA's disassembler writes an operand: registers, predicates, values, constants, addresses.

Each function here returns a function of a word and its address that writes one operand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

Text = str | Callable[[int, int], str | None]
"""A fixed text, or a function of the word and its address; None for an operand that isn't written."""


class UnknownWordError(ValueError):
    """A word that the tables don't explain."""


def modifier(choices: tuple[str, ...], low: int, width: int) -> Callable[[int, int], str]:
    """The text of a field's value. `?` and values beyond the last text have no meaning."""
    most = (1 << width) - 1

    def text(word: int, _: int) -> str:
        index = word >> low & most
        if index >= len(choices) or choices[index] == "?":
            raise UnknownWordError
        return choices[index]

    return text


_REGISTERS = (*(f"R{index}" for index in range(255)), "RZ")
_UNIFORM = (*(f"UR{index}" for index in range(63)), "URZ")


def register(low: int) -> Callable[[int, int], str]:
    """A register of the thread."""
    return lambda word, _: _REGISTERS[word >> low & 0xFF]


def uniform_register(low: int) -> Callable[[int, int], str]:
    """A register of the warp."""
    return lambda word, _: _UNIFORM[word >> low & 0x3F]


class SourceBits(NamedTuple):
    """Where the bits are that negate a source, take its absolute value, and keep it in the operand cache."""

    sign: str
    negate: int | None
    absolute: int | None
    reuse: int | None


def signed_register(text: Callable[[int, int], str], bits: SourceBits) -> Callable[[int, int], str]:
    """A source with what its bits do to it."""
    sign, negate, absolute, reuse = bits
    flags = sum(1 << bit for bit in (negate, absolute, reuse) if bit is not None)
    if not flags:
        return text
    negated, absolved, reused = (1 << bit if bit is not None else 0 for bit in (negate, absolute, reuse))

    def written(word: int, address: int) -> str:
        found = text(word, address)
        if word & flags:
            if word & absolved:
                found = f"|{found}|"
            if word & negated:
                found = sign + found
            if word & reused:
                found += ".reuse"
        return found

    return written


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
        return lambda word, _: _signed(word >> low & most, width)
    return lambda word, _: hex(word >> low & most)


def value(style: str) -> Callable[[int, int], str]:
    """The 32 bits from bit 32."""
    write = _VALUES[style]
    return lambda word, _: write(word >> 32 & 0xFFFFFFFF)


def constant() -> Callable[[int, int], str]:
    """Constant memory: the bank from bit 54, the offset in bytes from bit 38."""
    return lambda word, _: f"c[{word >> 54 & 31:#x}][{_signed(word >> 38 & 0xFFFF, 16)}]"


def _signed(found: int, width: int) -> str:
    if found >> width - 1:
        found -= 1 << width
    return f"-{-found:#x}" if found < 0 else hex(found)


_MOST_SHORT = 1e10


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
    "i": lambda bits: _signed(bits, 32),
    "x": hex,
}


def _offset(word: int, low: int = 40, width: int = 24) -> str:
    """The offset of an address, nothing when it is 0."""
    found = word >> low & (1 << width) - 1
    return "+" + _signed(found, width) if found else ""


def _local(word: int, _: int) -> str:
    """[R1+0x10]"""
    return f"[{_REGISTERS[word >> 24 & 0xFF]}{_offset(word)}]"


def _shared(word: int, _: int) -> str:
    """[R1.X4+0x10]"""
    return f"[{_REGISTERS[word >> 24 & 0xFF]}{_SCALES[word >> 78 & 3]}{_offset(word)}]"


def _shared_with(uniform_low: int) -> Callable[[int, int], str]:
    """[R1.X4+UR4+0x10], where bit 91 says that there is a uniform register; RZ isn't written beside it."""

    def text(word: int, address: int) -> str:
        if not word >> 91 & 1:
            return _shared(word, address)
        base = word >> 24 & 0xFF
        register = "" if base == 255 else f"{_REGISTERS[base]}{_SCALES[word >> 78 & 3]}+"
        return f"[{register}{_UNIFORM[word >> uniform_low & 63]}{_offset(word)}]"

    return text


_SCALES = ("", ".X4", ".X8", ".X16")


def _global(uniform_low: int) -> Callable[[int, int], str]:
    """desc[UR4][R2.64+0x10], the descriptor's register at a bit that loads and stores disagree on."""

    def text(word: int, _: int) -> str:
        address = f"[{_REGISTERS[word >> 24 & 0xFF]}.64{_offset(word)}]"
        return f"desc[{_UNIFORM[word >> uniform_low & 63]}]{address}"

    return text


def _loaded_constant(word: int, _: int) -> str:
    """c[0x0][R2+0x10], where a zero register isn't written."""
    base = word >> 24 & 0xFF
    offset = _signed(word >> 38 & 0xFFFF, 16)
    if base != 255:
        offset = _REGISTERS[base] + (f"+{offset}" if offset != "0x0" else "")
    return f"c[{word >> 54 & 31:#x}][{offset}]"


def branch_target(word: int, address: int) -> int:
    """Where a branch goes: relative to the next instruction, in units of 4 bytes, low 8 bits at 16."""
    distance = (word >> 34 & (1 << 48) - 1) << 8 | word >> 16 & 0xFF
    if distance >> 55:
        distance -= 1 << 56
    return address + 16 + 4 * distance


def synchronisation_target(word: int, address: int) -> int:
    """Where the threads that BSSY names meet again, relative to the next instruction."""
    distance = word >> 34 & (1 << 30) - 1
    if distance >> 29:
        distance -= 1 << 30
    return address + 16 + 4 * distance


def _target(find: Callable[[int, int], int]) -> Callable[[int, int], str]:
    def text(word: int, address: int) -> str:
        found = find(word, address)
        return f"-{-found:#x}" if found < 0 else hex(found)

    return text


def _call_target(word: int, address: int) -> str:
    """R6 0x100: the register with the address to return to, or the one returned to."""
    return f"{_REGISTERS[word >> 24 & 0xFF]} {_target(branch_target)(word, address)}"


def _special(word: int, _: int) -> str:
    found = _SPECIAL_REGISTERS.get(word >> 72 & 0xFF)
    if found is None:
        raise UnknownWordError
    return f"SR{'' if found == 'Z' else '_'}{found}"


_SPECIAL_REGISTERS = {
    0: "LANEID", 2: "VIRTCFG", 3: "VIRTID", 33: "TID.X", 34: "TID.Y", 35: "TID.Z", 37: "CTAID.X",
    38: "CTAID.Y", 39: "CTAID.Z", 48: "SWINLO", 49: "SWINSZ", 50: "SMEMSZ", 53: "LWINSZ", 56: "EQMASK",
    57: "LTMASK", 58: "LEMASK", 59: "GTMASK", 60: "GEMASK", 80: "CLOCKLO", 81: "CLOCKHI",
    82: "GLOBALTIMERLO", 83: "GLOBALTIMERHI", 136: "CgaCtaId", 137: "GpcLocalCgaId", 255: "Z",
}  # fmt: skip


def _truth_table(word: int, _: int) -> str:
    """The first truth table of PLOP3, its upper 5 bits apart from the lower 3."""
    return hex((word >> 72 & 31) << 3 | word >> 64 & 7)


def _multiply_add(word: int, _: int) -> str:
    """What IMAD is called when it multiplies by a simple factor: it then moves, adds or shifts."""
    form, factor = word >> 9 & 7, word >> 32 & 0xFFFFFFFF
    no_factor, no_addend = word >> 24 & 0xFF == 255, word >> 64 & 0xFF == 255
    if form in {2, 3}:
        no_factor |= no_addend
    elif form == 1:
        no_factor |= factor & 0xFF == 255
    elif form == 4:
        if factor == 1:
            return ".MOV" if no_addend or no_factor else ".IADD"
        no_factor |= not factor
        if no_addend and not no_factor and factor & factor - 1 == 0 and factor < 1 << 31:
            return ".SHL"
    return ".MOV" if no_factor and form not in {6, 7} else ""


NAMES: Mapping[str, Callable[[int, int], str]] = {"multiply-add": _multiply_add}
"""Parts of a name with their own rules."""


def _bits(low: int, width: int) -> int:
    return (1 << width) - 1 << low


_ADDRESS = _bits(24, 8) | _bits(40, 24)
_BRANCH = _bits(34, 48) | _bits(16, 8)

OPERANDS: Mapping[str, tuple[int, Callable[[int, int], str | None]]] = {
    "local": (_ADDRESS, _local),
    "shared": (_ADDRESS | _bits(78, 2), _shared),
    "shared32": (_ADDRESS | _bits(78, 2) | _bits(32, 6) | _bits(91, 1), _shared_with(32)),
    "global32": (_ADDRESS | _bits(32, 6), _global(32)),
    "global64": (_ADDRESS | _bits(64, 6), _global(64)),
    "shared64": (_ADDRESS | _bits(78, 2) | _bits(64, 6) | _bits(91, 1), _shared_with(64)),
    "constant": (_bits(24, 8) | _bits(38, 21), _loaded_constant),
    "branch": (_BRANCH, _target(branch_target)),
    "call": (_BRANCH | _bits(24, 8), _call_target),
    "return": (_BRANCH | _bits(24, 8), _call_target),
    "meeting": (_bits(34, 30), _target(synchronisation_target)),
    "barrier": (_bits(16, 4), lambda word, _: f"B{word >> 16 & 15}"),
    "special": (_bits(72, 8), _special),
    "table": (_bits(72, 5) | _bits(64, 3), _truth_table),
}
"""Operands with their own rules: the bits that they depend on, and how they are written."""

TARGETS: Mapping[str, Callable[[int, int], int]] = {
    "branch": branch_target,
    "call": branch_target,
    "meeting": synchronisation_target,
}
"""The operands that say where a branch goes, and how to find it."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "round": ("", ".RM", ".RP", ".RZ"),
    "logic": (".AND", ".OR", ".XOR", "?"),
    "compare": (".F", ".LT", ".EQ", ".LE", ".GT", ".NE", ".GE", ".T"),
    "fcompare": (
        ".F", ".LT", ".EQ", ".LE", ".GT", ".NE", ".GE", ".NUM",
        ".NAN", ".LTU", ".EQU", ".LEU", ".GTU", ".NEU", ".GEU", ".T",
    ),
    "size": (".U8", ".S8", ".U16", ".S16", "", ".64", ".128", "?"),
    "evict": (".EF", "", ".EL", ".LU", ".EU", ".NA", "?", "?"),
    "load": (
        "", "?", "?", "?", ".CONSTANT", ".STRONG.SM", "?", ".STRONG.GPU",
        ".MMIO.GPU", "?", ".STRONG.SYS", "?", ".MMIO.SYS", "?", "?", "?",
    ),
    "store": (
        "", "?", "?", "?", "?", ".STRONG.SM", "?", ".STRONG.GPU",
        ".MMIO.GPU", "?", ".STRONG.SYS", "?", ".MMIO.SYS", "?", "?", "?",
    ),
    "added": (
        ".F16x2.RN", ".F16x4.RN", ".F16x8.RN", ".BF16x2.RN", ".BF16x4.RN", ".BF16x8.RN", "?", "?", "?",
        ".F32.FTZ.RN", ".F32x2.FTZ.RN", ".F32x4.FTZ.RN", ".F32.RN", ".F32x2.RN", ".F32x4.RN", ".F64.RN",
    ),
    "ahead": ("", ".LTC64B", ".LTC128B", ".LTC256B"),
}  # fmt: skip
"""The texts of modifiers that several instructions share."""
