"""How operands with rules of their own are written: addresses, targets of branches, descriptors.

`OPERANDS` and `NAMES` are what the encoding tables call them by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.profiling.machine_code.cubin import INSTRUCTION_BYTES
from mctskernel.profiling.machine_code.operand_text import (
    REGISTERS,
    UNIFORM,
    ZERO,
    UnknownWordError,
    half_name,
    modifier,
    signed_number,
)


def _offset(word: int, low: int = 40, width: int = 24) -> str:
    """The offset of an address, nothing when it is 0."""
    found = word >> low & (1 << width) - 1
    return "+" + signed_number(found, width) if found else ""


def _local(word: int, _: int) -> str:
    """[R1+0x10]"""
    return _address(word, "")


def _shared(word: int, _: int) -> str:
    """[R1.X4+0x10]"""
    return _address(word, _SCALES[word >> 78 & 3])


def _address(word: int, scale: str) -> str:
    base, offset = word >> 24 & 0xFF, word >> 40 & 0xFFFFFF
    if base == ZERO:
        return f"[{hex(offset) if offset else 'RZ'}]"
    return f"[{REGISTERS[base]}{scale}{_offset(word)}]"


def _shared_with(uniform_low: int) -> Callable[[int, int], str]:
    """[R1.X4+UR4+0x10], where bit 91 says that there is a uniform register; RZ isn't written beside it."""

    def text(word: int, address: int) -> str:
        if not word >> 91 & 1:
            return _shared(word, address)
        base = word >> 24 & 0xFF
        scale = _SCALES[word >> 78 & 3]
        register = "" if base == ZERO and not scale else f"{REGISTERS[base]}{scale}+"
        return f"[{register}{UNIFORM[word >> uniform_low & 63]}{_offset(word)}]"

    return text


def _tile(uniform_low: int) -> Callable[[int, int], str]:
    """[R1+UR4+0x10] without a scale, for loads and stores of matrices."""
    shared = _shared_with(uniform_low)

    def text(word: int, address: int) -> str:
        if word >> 24 & 0xFF == ZERO and not word >> 91 & 1 and _offset(word):
            return f"[{_offset(word)[1:]}]"
        return shared(word & ~_bits(78, 2), address)

    return text


_SCALES = ("", ".X4", ".X8", ".X16")


def _staged(word: int, _: int) -> str:
    """[R22+0x400], where an asynchronous copy goes."""
    if word >> 16 & 0xFF == ZERO and _offset(word, 44, 20):
        return f"[{_offset(word, 44, 20)[1:]}]"
    return f"[{REGISTERS[word >> 16 & 0xFF]}{_offset(word, 44, 20)}]"


def _window(uniform_low: int) -> Callable[[int, int], str]:
    """[R2.U32+UR4+0x10]"""

    def text(word: int, _: int) -> str:
        return f"[{REGISTERS[word >> 24 & 0xFF]}.U32+{UNIFORM[word >> uniform_low & 63]}{_offset(word)}]"

    return text


def _uniform_address(word: int, _: int) -> str:
    """[UR4+0x10]"""
    return f"[{UNIFORM[word >> 24 & 63]}{_offset(word)}]"


def _wide(low: int, width: int) -> Callable[[int, int], str]:
    """[R2.64+0x10], the descriptor unwritten."""
    return lambda word, _: f"[{REGISTERS[word >> 24 & 0xFF]}.64{_offset(word, low, width)}]"


def _byte(word: int, _: int) -> str:
    """R2.B1, a byte of a register."""
    reuse = ".reuse" * (word >> 123 & 1)
    return REGISTERS[word >> 32 & 0xFF] + reuse + ("", ".B1", ".B2", ".B3")[word >> 60 & 3]


def _global(uniform_low: int, low: int = 40, width: int = 24) -> Callable[[int, int], str]:
    """desc[UR4][R2.64+0x10], the descriptor's register at a bit that loads and stores disagree on."""

    def text(word: int, _: int) -> str:
        address = f"[{REGISTERS[word >> 24 & 0xFF]}.64{_offset(word, low, width)}]"
        return f"desc[{UNIFORM[word >> uniform_low & 63]}]{address}"

    return text


def _loaded_constant(word: int, _: int) -> str:
    """c[0x0][R2+0x10], where a zero register isn't written."""
    base = word >> 24 & 0xFF
    offset = signed_number(word >> 38 & 0xFFFF, 16)
    if base != ZERO or offset == "0x0":
        offset = REGISTERS[base] + (f"+{offset}" if offset != "0x0" else "")
    return f"c[{word >> 54 & 31:#x}][{offset}]"


def _bank(word: int, _: int) -> str:
    """c[0x0][0x10], to the byte."""
    return f"c[{word >> 54 & 31:#x}][{signed_number(word >> 38 & 0xFFFF, 16)}]"


def branch_target(word: int, address: int) -> int:
    """Where a branch goes: relative to the next instruction, in units of 4 bytes, low 8 bits at 16."""
    distance = (word >> 34 & (1 << 48) - 1) << 8 | word >> 16 & 0xFF
    if distance >> 55:
        distance -= 1 << 56
    return address + INSTRUCTION_BYTES + 4 * distance


def synchronisation_target(word: int, address: int) -> int:
    """Where the threads that BSSY names meet again, relative to the next instruction."""
    distance = word >> 34 & (1 << 30) - 1
    if distance >> 29:
        distance -= 1 << 30
    return address + INSTRUCTION_BYTES + 4 * distance


def far_target(word: int, address: int) -> int:
    """Where a branch goes before Hopper: relative to the next instruction, in bytes from bit 32."""
    distance = word >> 34 & (1 << 48) - 1
    if distance >> 47:
        distance -= 1 << 48
    return address + INSTRUCTION_BYTES + 4 * distance


def _far_return(word: int, address: int) -> str:
    return f"{REGISTERS[word >> 24 & 0xFF]} {_target(far_target)(word, address)}"


def _far_jump(word: int, _: int) -> str:
    return _jump_by(word, far_target(word, -INSTRUCTION_BYTES))


def _jump(word: int, _: int) -> str:
    """R4 -0x1b0: the register with an address, and what is added to it."""
    return _jump_by(word, branch_target(word, -INSTRUCTION_BYTES))


def _jump_by(word: int, distance: int) -> str:
    added = f" {'-' if distance < 0 else ''}{abs(distance):#x}" if distance else ""
    return REGISTERS[word >> 24 & 0xFF] + added


def _target(find: Callable[[int, int], int]) -> Callable[[int, int], str]:
    def text(word: int, address: int) -> str:
        found = find(word, address)
        return f"-{-found:#x}" if found < 0 else hex(found)

    return text


def _call_target(word: int, address: int) -> str:
    """R6 0x100: the register with the address to return to, or the one returned to."""
    return f"{REGISTERS[word >> 24 & 0xFF]} {_target(branch_target)(word, address)}"


def _special(word: int, _: int) -> str:
    found = _SPECIAL_REGISTERS.get(word >> 72 & 0xFF)
    if found is None:
        raise UnknownWordError
    return f"SR{'' if found == 'Z' else '_'}{found}"


_SPECIAL_REGISTERS = {
    0: "LANEID", 2: "VIRTCFG", 3: "VIRTID", 33: "TID.X", 34: "TID.Y", 35: "TID.Z", 37: "CTAID.X",
    38: "CTAID.Y", 39: "CTAID.Z", 48: "SWINLO", 49: "SWINSZ", 50: "SMEMSZ", 53: "LWINSZ", 56: "EQMASK",
    57: "LTMASK", 58: "LEMASK", 59: "GTMASK", 60: "GEMASK", 80: "CLOCKLO", 81: "CLOCKHI",
    44: "SM_SPA_VERSION", 47: "SWINHI", 64: "GLOBALERRORSTATUS", 66: "WARPERRORSTATUS", 67: "VIRTUALSMID",
    82: "GLOBALTIMERLO", 83: "GLOBALTIMERHI", 136: "CgaCtaId", 137: "GpcLocalCgaId", 255: "Z",
}  # fmt: skip


def _half_addend(word: int, _: int) -> str:
    """The third source of VHMNMX, whose bits are its own."""
    found = REGISTERS[word >> 64 & 0xFF]
    if word >> 83 & 1:
        found = f"|{found}|"
    return f"{'-' * (word >> 84 & 1)}{found}{'.reuse' * (word >> 124 & 1)}{half_name(word >> 76 & 3)}"


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
        if no_addend and not no_factor and factor & factor - 1 == 0 and factor not in {1 << 16, 1 << 31}:
            return ".SHL"
    return ".MOV" if no_factor and form not in {6, 7} else ""


def _tile_shape(word: int, _: int) -> str:
    """.64x128x16: what a warp group multiplies at once."""
    return f".64x{8 * (word >> 53 & 31) + 8}x{8 if word >> 58 & 1 else 16}"


def _matrices(word: int, _: int) -> str:
    """gdesc[UR4].tnspB: two matrices in shared memory, either of them transposed."""
    return f"gdesc[{UNIFORM[word >> 24 & 63]}]{'.tnspA' * (word >> 61 & 1)}{'.tnspB' * (word >> 62 & 1)}"


def _matrix(word: int, _: int) -> str:
    """gdesc[UR4].tnspB"""
    return f"gdesc[{UNIFORM[word >> 32 & 63]}]{'.tnspB' * (word >> 62 & 1)}"


def _accumulate(word: int, _: int) -> str | None:
    """Whether a product is added: a predicate counted down, unwritten where it is UPT."""
    found = word >> 87 & 15
    number = 7 - (found & 7)
    return f"{'!' * (found >> 3)}UP{number if number < 7 else 'T'}" if found else None


def _group(word: int, _: int) -> str | None:
    """The scoreboard of a warp group's products."""
    found = word >> 84 & 7
    if found not in {0, 7}:
        raise UnknownWordError
    return None if found else "gsb0"


def _bits(low: int, width: int) -> int:
    return (1 << width) - 1 << low


_ADDRESS = _bits(24, 8) | _bits(40, 24)
_BRANCH = _bits(34, 48) | _bits(16, 8)

NAMES: Mapping[str, tuple[int, Callable[[int, int], str]]] = {
    "multiply-add": (0, _multiply_add),
    "tile": (_bits(53, 6), _tile_shape),
}
"""Parts of a name with their own rules: the bits that only they depend on, and how they are written."""

OPERANDS: Mapping[str, tuple[int, Callable[[int, int], str | None]]] = {
    "matrices24": (_bits(24, 6) | _bits(61, 2), _matrices),
    "matrix32": (_bits(32, 6) | _bits(62, 1), _matrix),
    "accumulate": (_bits(87, 4), _accumulate),
    "group": (_bits(84, 3), _group),
    "local": (_ADDRESS, _local),
    "plain": (_ADDRESS, _local),
    "wide32": (_ADDRESS | _bits(32, 6), _wide(40, 24)),
    "wide64": (_ADDRESS | _bits(64, 6), _wide(40, 24)),
    "wide12": (_bits(24, 8) | _bits(32, 12) | _bits(64, 6), _wide(32, 12)),
    "byte32": (_bits(32, 8) | _bits(60, 2) | _bits(123, 1), _byte),
    "mask24": (_bits(24, 7), lambda word, _: f"{'~' * (word >> 30 & 1)}{UNIFORM[word >> 24 & 63]}"),
    "far": (_bits(34, 48), _target(far_target)),
    "farreturn": (_bits(34, 48) | _bits(24, 8), _far_return),
    "farjump": (_bits(34, 48) | _bits(24, 8), _far_jump),
    "tile32": (_ADDRESS | _bits(32, 6) | _bits(91, 1), _tile(32)),
    "tile64": (_ADDRESS | _bits(64, 6) | _bits(91, 1), _tile(64)),
    "shared": (_ADDRESS | _bits(78, 2), _shared),
    "shared32": (_ADDRESS | _bits(78, 2) | _bits(32, 6) | _bits(91, 1), _shared_with(32)),
    "global32": (_ADDRESS | _bits(32, 6), _global(32)),
    "global64": (_ADDRESS | _bits(64, 6), _global(64)),
    "shared64": (_ADDRESS | _bits(78, 2) | _bits(64, 6) | _bits(91, 1), _shared_with(64)),
    "global12": (_bits(24, 8) | _bits(32, 12) | _bits(64, 6), _global(64, 32, 12)),
    "staged": (_bits(16, 8) | _bits(44, 20), _staged),
    "window32": (_ADDRESS | _bits(32, 6), _window(32)),
    "window64": (_ADDRESS | _bits(64, 6), _window(64)),
    "uniform24": (_bits(24, 6) | _bits(40, 24), _uniform_address),
    "constant": (_bits(24, 8) | _bits(38, 21), _loaded_constant),
    "half64": (_bits(64, 8) | _bits(76, 2) | _bits(83, 2) | _bits(124, 1), _half_addend),
    "jump": (_BRANCH | _bits(24, 8), _jump),
    "scoreboard": (_bits(44, 3), modifier(("SB0", "SB1", "SB2", "SB3", "SB4", "SB5"), ((44, 3),))),
    "bank": (_bits(38, 21), _bank),
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
    "far": far_target,
    "call": branch_target,
    "meeting": synchronisation_target,
}
"""The operands that say where a branch goes, and how to find it."""
