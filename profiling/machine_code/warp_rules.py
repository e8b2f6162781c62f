"""Moves, special registers, constants, and what lanes of a warp tell each other, in the emulator's instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mctskernel.profiling.emulator.ptx import Immediate, Pair
from mctskernel.profiling.emulator.ptx import Operand as Value
from mctskernel.profiling.machine_code.lowering import (
    ZERO,
    Lowering,
    Rule,
    leading_predicates,
    name_of,
    opaque_words,
    with_uniform_twins,
)
from mctskernel.profiling.machine_code.operands import (
    ConstantOperand,
    Operand,
    RegisterOperand,
)

Operands = Sequence[Operand]


def _move(x: Lowering, operands: Operands) -> None:
    if "64" in x.modifiers:
        x.define_wide(operands[0], x.wide_source(operands[1]))
    else:
        x.define(operands[0], "mov.b32", x.source(operands[1]))


def _special_register(x: Lowering, operands: Operands) -> None:
    target, name = operands[0], name_of(operands[1])
    wide = x.machine.mnemonic == "CS2R" and "32" not in x.modifiers
    if name == "SRZ":
        value: Value = ZERO
    elif name in _SPECIAL:
        value = x.temporary("b32", "special.b32", Immediate(_SPECIAL[name], "int"))
    else:
        raise x.unknown()
    if wide:
        extended = value if value is ZERO else x.temporary("b64", "cvt.u64.u32", value)
        x.define_wide(target, extended)
    else:
        x.define(target, "mov.b32", value)


SPECIAL_REGISTERS = (
    *(f"{name}.{axis}" for name in ("tid", "ctaid", "nctaid", "ntid") for axis in "xyz"),
    "laneid",
    "warpid",
    "smid",
    "clock",
    "zero",
    "shared window",
    "local window",
    *(f"lanemask_{name}" for name in ("eq", "le", "lt", "ge", "gt")),
    "one",
)


_NAMES = {
    **{f"SR_{name.upper()}.{axis.upper()}": f"{name}.{axis}" for name in ("tid", "ctaid") for axis in "xyz"},
    **{f"SR_NCTAID.{axis.upper()}": f"nctaid.{axis}" for axis in "xyz"},
    "SR_LANEID": "laneid",
    "SR_VIRTID": "warpid",
    "SR_VIRTUALSMID": "smid",
    "SR_SMID": "smid",
    **dict.fromkeys(("SR_CLOCKLO", "SR_CLOCKHI", "SR_GLOBALTIMERLO", "SR_GLOBALTIMERHI"), "clock"),
    **dict.fromkeys(("SR_CgaCtaId", "SR_SWINLO", "SR_LWINLO", "SR_CgaCtaId.X", "SR_REGALLOC"), "zero"),
    "SR_CgaSize": "one",
    "SR_SWINHI": "shared window",
    "SR_LWINHI": "local window",
    "SR_EQMASK": "lanemask_eq",
    "SR_LTMASK": "lanemask_lt",
    "SR_LEMASK": "lanemask_le",
    "SR_GTMASK": "lanemask_gt",
    "SR_GEMASK": "lanemask_ge",
}


_SPECIAL = {name: SPECIAL_REGISTERS.index(own) for name, own in _NAMES.items()}


def _constant_load(x: Lowering, operands: Operands) -> None:
    parts = x.modifiers
    if "64" in parts:
        x.define_wide(operands[0], x.wide_source(operands[1]))
    elif "128" in parts:
        _load_four_words(x, operands[0], operands[1])
    elif {"U8", "S8", "U16", "S16"} & set(parts):
        kind = next(part for part in parts if part in {"U8", "S8", "U16", "S16"})
        word = x.source(operands[1])
        size = kind[1:]
        opcode = f"cvt.{'s32' if kind[0] == 'S' else 'u32'}.{kind[0].lower()}{size}"
        x.define(operands[0], opcode, word)
    else:
        x.define(operands[0], "mov.b32", x.source(operands[1]))


def _load_four_words(x: Lowering, target: Operand, place: Operand) -> None:
    if not isinstance(target, RegisterOperand) or not isinstance(place, ConstantOperand):
        raise x.unknown()
    if target.index is not None:
        for half in range(2):
            words = replace(target, index=target.index + 2 * half)
            x.define_wide(words, x.constant(replace(place, offset=place.offset + 8 * half), "b64"))


def _vote(x: Lowering, operands: Operands) -> None:
    """`VOTE.ANY [d,] P, P`: the ballot, and what the vote says."""
    mode = next((p.lower() for p in x.modifiers if p in {"ANY", "ALL", "EQ"}), "")
    mode = {"eq": "uni"}.get(mode, mode)
    condition = x.predicate(operands[-1])
    everybody = Immediate(0xFFFFFFFF, "int")
    if not mode:
        raise x.unknown()
    for operand in operands[:-1]:
        if isinstance(operand, RegisterOperand) and operand.is_predicate:
            x.define(operand, f"vote.sync.{mode}.pred", condition, everybody)
        else:
            x.define(operand, "vote.sync.ballot.b32", condition, everybody)


_SHUFFLES = {"UP": "up", "DOWN": "down", "BFLY": "bfly", "IDX": "idx"}


def _shuffle(x: Lowering, operands: Operands) -> None:
    truth, target, value, source, clamp = operands
    mode = next(_SHUFFLES[p] for p in x.modifiers if p in _SHUFFLES)
    values = [x.source(o) for o in (value, source, clamp)]
    pair = Pair(x.target(target), x.target(truth))
    x.effect(f"shfl.sync.{mode}.b32", pair, *values, Immediate(0xFFFFFFFF, "int"))


def _reduce_warp(x: Lowering, operands: Operands) -> None:
    parts = x.modifiers
    names = {"SUM": "add", "MIN": "min", "MAX": "max", "AND": "and", "OR": "or", "XOR": "xor"}
    operation = next((names[p] for p in parts if p in names), "or")
    kind = "s32" if "S32" in parts else "b32" if operation in {"and", "or", "xor"} else "u32"
    x.define(
        operands[-2], f"redux.sync.{operation}.{kind}", x.source(operands[-1]), Immediate(0xFFFFFFFF, "int")
    )


def _match(x: Lowering, operands: Operands) -> None:
    parts = x.modifiers
    outs = leading_predicates(operands)
    truth = x.target(operands[0]) if outs else None
    target, value = operands[outs], operands[outs + 1]
    wide = "U64" in parts or "64" in parts
    source = x.wide_source(value) if wide else x.source(value)
    mode = "all" if "ALL" in parts else "any"
    x.effect(
        f"match.{mode}.sync.b{64 if wide else 32}",
        Pair(x.target(target), truth),
        source,
        Immediate(0xFFFFFFFF, "int"),
    )


def _elect(x: Lowering, operands: Operands) -> None:
    """`ELECT P, d, P`: true of the first lane."""
    lane = x.temporary("b32", "special.b32", Immediate(SPECIAL_REGISTERS.index("laneid"), "int"))
    for operand in operands[:-1]:
        if isinstance(operand, RegisterOperand) and operand.is_predicate:
            x.define(operand, "setp.eq.u32", lane, ZERO)
        else:
            x.define(operand, "mov.b32", Immediate(1, "int"))


def _to_uniform(x: Lowering, operands: Operands) -> None:
    """`R2UR d, a`: all lanes of the warp hold the same."""
    outs = leading_predicates(operands)
    target, source = operands[outs : outs + 2]
    x.define(target, "mov.b32", x.source(source))


def _nothing(x: Lowering, operands: Operands) -> None:
    """Changes no register and touches no memory."""


# What changes no register that matters and touches no memory that is counted.
_WITHOUT_EFFECT = (
    *("NOP", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "YIELD", "ENDCOLLECTIVE", "NANOSLEEP", "PMTRIG", "BPT"),
    *("DEPBAR", "LDGDEPBAR", "MEMBAR", "ERRBAR", "CGAERRBAR", "FENCE", "CCTL", "CCTLL", "PREEXIT", "ACQBULK"),
    *("WARPGROUP", "WARPGROUPSET", "USETMAXREG", "UCGABAR_ARV", "UCGABAR_WAIT", "RPCMOV"),
)

WARP_RULES: dict[str, Rule] = {
    **with_uniform_twins({"MOV": _move}),
    "MOV32I": _move,
    **dict.fromkeys(("S2R", "S2UR", "CS2R", "CS2UR"), _special_register),
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), _constant_load),
    **dict.fromkeys(("R2UR", "UR2R"), _to_uniform),
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
    "SHFL": _shuffle,
    **dict.fromkeys(("REDUX", "CREDUX"), _reduce_warp),
    "MATCH": _match,
    "ELECT": _elect,
    **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
    **dict.fromkeys(("BMOV", "B2R"), opaque_words(1)),
    "LEPC": opaque_words(2),
}
