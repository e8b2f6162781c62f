"""The instructions that lowering adds to the emulator's own, as generated text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from mctskernel.profiling.emulator.codegen import Emitter, Handler
from mctskernel.profiling.emulator.launch import HANDLERS
from mctskernel.profiling.emulator.ptx import Immediate, Instruction, Operand, Vector
from mctskernel.profiling.machine_code.warp_rules import SPECIAL_REGISTERS


def _number(operand: Operand | None) -> int:
    assert isinstance(operand, Immediate)  # noqa: S101 - lowering writes it so
    return operand.value


def _bank(emitter: Emitter, instruction: Instruction) -> None:
    """A constant: `bank.b32 d, bank, offset`."""
    target, bank, offset = instruction.operands
    dtype = "u8" if instruction.parts[-1] == "b64" else "u4"
    if isinstance(offset, Immediate):
        text = f"m.constant({_number(bank)}, {offset.value}, {dtype!r})"
    else:
        text = f"m.constants({_number(bank)}, {emitter.read(offset, 'u32')}, {dtype!r})"
    emitter.assign(target, text, dtype)


_WINDOWS = {"shared window": 1 << 8, "local window": 2 << 8, "zero": 0, "one": 1}


def _special(emitter: Emitter, instruction: Instruction) -> None:
    name = SPECIAL_REGISTERS[_number(instruction.operands[1])]
    text = emitter.constant(_WINDOWS[name], "u4") if name in _WINDOWS else f"g.special({name!r})"
    emitter.assign(instruction.operands[0], text, "u4")


def _decide(emitter: Emitter, instruction: Instruction) -> None:
    emitter.assign(instruction.operands[0], f"m.decide(g, {_number(instruction.operands[1])})", "b1")


def _logic(emitter: Emitter, instruction: Instruction) -> None:
    """`logic3 d, a, b, c, table` of words."""
    target, *sources, table = instruction.operands
    texts = [emitter.read(source, "b32") for source in sources]
    constants = (emitter.constant(0, "u4"), emitter.constant(0xFFFFFFFF, "u4"))
    emitter.assign(target, _filled(_number(table), texts, constants), "u4")


def _truth(emitter: Emitter, instruction: Instruction) -> None:
    """`truth3 d, a, b, c, table` of predicates."""
    target, *sources, table = instruction.operands
    number = _number(table)
    texts = []
    for position, source in enumerate(sources):
        if isinstance(source, Immediate):
            number = _restricted(number, position, source.value)
        texts.append("" if isinstance(source, Immediate) else emitter.read(source, "pred"))
    constants = (emitter.constant(value=False, dtype="b1"), emitter.constant(value=True, dtype="b1"))
    emitter.assign(target, _filled(number, texts, constants), "b1")


def _restricted(table: int, position: int, value: int) -> int:
    """A truth table of three variables of which one (0 is the slowest) is known."""
    bit = 4 >> position
    return sum(1 << row for row in range(8) if table >> ((row | bit) if value else (row & ~bit)) & 1)


def _filled(table: int, sources: Sequence[str], constants: tuple[str, str]) -> str:
    names = dict(zip("abc01", (*sources, *constants), strict=True))
    return "".join(names.get(letter, letter) for letter in truth_text(table))


@cache
def truth_text(table: int) -> str:
    """An expression over `a`, `b` and `c` (bits 4, 2, 1 of the row) for a truth table, by Shannon's expansion."""
    return _expanded(table, "abc")


def _expanded(table: int, letters: str) -> str:
    rows = 1 << len(letters)
    full = (1 << rows) - 1
    if table in (0, full):
        return "1" if table else "0"
    first, rest = letters[0], letters[1:]
    half = rows // 2
    low, high = table & ((1 << half) - 1), table >> half
    if low == high:
        return _expanded(low, rest)
    whole = (1 << half) - 1
    if (low, high) == (0, whole):
        return first
    if (low, high) == (whole, 0):
        return f"(~{first})"
    if low == 0:
        return f"({first} & {_expanded(high, rest)})"
    if high == 0:
        return f"(~{first} & {_expanded(low, rest)})"
    if high == whole:
        return f"({first} | {_expanded(low, rest)})"
    if low == whole:
        return f"(~{first} | {_expanded(high, rest)})"
    if low == whole ^ high:
        return f"({first} ^ {_expanded(low, rest)})"
    return f"(({first} & {_expanded(high, rest)}) | (~{first} & {_expanded(low, rest)}))"


def _parts_of_a_sum(
    emitter: Emitter, instruction: Instruction
) -> tuple[Vector, Operand | None, Vector, list[Operand | None]]:
    """Outputs, the term that is added first, the other terms and the carries in."""
    outputs, extra, terms, *truths = instruction.operands
    if not isinstance(outputs, Vector) or not isinstance(terms, Vector):
        raise emitter.unsupported()
    return outputs, extra, terms, truths


def _add_with_carries(emitter: Emitter, instruction: Instruction) -> None:
    """`add_with_carries (d, p, q), extra, (terms), carries in`: the carries are those of a sum without end."""
    outputs, extra, terms, truths = _parts_of_a_sum(emitter, instruction)
    target, *carries = outputs.elements
    values = [emitter.read(term, "u32") for term in terms.elements]
    more = [f"{emitter.read(truth, 'pred')}.astype(u4)" for truth in truths]
    if _number(extra):
        more.append(emitter.constant(_number(extra), "u4"))
    zero = emitter.constant(0, "u4")
    if not any(carries):
        emitter.assign(target, " + ".join([*values, *more]) or zero, "u4")
        return
    if len(values) + len(more) == 2:
        first, second = [*values, *more]
        total = emitter.temporary(f"{first} + {second}")
        over = [f"{total} < {first}", None]
    else:
        wide = " + ".join(f"({v}).astype(u8)" for v in [*values, *more]) or f"{zero}.astype(u8)"
        whole = emitter.temporary(wide)
        total = f"{whole}.astype(u4)"
        over = [
            f"{whole} > {emitter.constant(0xFFFFFFFF, 'u8')}",
            f"{whole} > {emitter.constant(0x1FFFFFFFF, 'u8')}",
        ]
    texts = [None if text is None else emitter.temporary(text) for text in over]
    emitter.assign(target, total, "u4")
    for carry, text in zip(carries, texts, strict=False):
        emitter.assign(carry, text or emitter.constant(value=False, dtype="b1"), "b1")


def _add_with_carries_wide(emitter: Emitter, instruction: Instruction) -> None:
    outputs, extra, terms, truths = _parts_of_a_sum(emitter, instruction)
    first, second = (emitter.read(term, "u64") for term in terms.elements)
    total = emitter.temporary(f"{first} + {second}")
    over = emitter.temporary(f"{total} < {first}")
    more = [f"{emitter.read(truth, 'pred')}.astype(u8)" for truth in truths]
    if _number(extra):
        more.append(emitter.constant(_number(extra), "u8"))
    for text in more:
        after = emitter.temporary(f"{total} + {text}")
        over = emitter.temporary(f"{over} | ({after} < {total})")
        total = after
    target, carry = outputs.elements
    emitter.assign(target, total, "u8")
    emitter.assign(carry, over, "b1")


def _load(emitter: Emitter, instruction: Instruction) -> None:
    """`ld`, whose values may be of no interest; `ld.matrix.n None, [a]`."""
    if instruction.operands[0] is not None:
        HANDLERS["ld"](emitter, instruction)
        return
    _count(emitter, instruction, "load", instruction.operands[1])


def _store(emitter: Emitter, instruction: Instruction) -> None:
    if len(instruction.operands) > 1 and instruction.operands[1] is not None:
        HANDLERS["st"](emitter, instruction)
        return
    _count(emitter, instruction, "store", instruction.operands[0])


_ELEMENTS = {"b32": "u4", "u8": "u1", "s8": "u1", "u16": "u2", "s16": "u2"}


def _count(emitter: Emitter, instruction: Instruction, kind: str, place: Operand | None) -> None:
    base, offset = emitter.address(place)
    parts = instruction.parts
    if parts[1] == "matrix":
        matrices = int(parts[2])
        access = emitter.access(kind, "shared", "u4", count=4, offset=offset)
        guard = emitter.guard()
        mask = None if matrices == 4 else f"g.first_lanes({8 * matrices})"
        both = guard if mask is None else mask if guard is None else f"({mask} & {guard})"
        _touch(emitter, kind, access, base, both)
        return
    space = next((p for p in parts if p in {"global", "shared", "local"}), "generic")
    count = next((int(p[1:]) for p in parts if p in {"v2", "v4"}), 1)
    access = emitter.access(kind, space, _ELEMENTS[parts[-1]], count=count, offset=offset)
    _touch(emitter, kind, access, base, emitter.guard())


def _touch(emitter: Emitter, kind: str, access: str, base: str, mask: str | None) -> None:
    values = ", (None,)" if kind == "store" else ""
    emitter.emit(f"m.{kind}({access}, g, {base}, {mask}{values})")


def _atomic(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.operands[-1] is not None:
        HANDLERS["atom"](emitter, instruction)
        return
    parts = instruction.parts
    space = next((p for p in parts if p in {"global", "shared"}), "generic")
    base, offset = emitter.address(instruction.operands[0])
    size = 8 if parts[-1].endswith("64") else 4
    access = emitter.access("reduction", space, f"u{size}", offset=offset, strong=True)
    emitter.emit(f"m.atomic({access}, g, {base}, {emitter.guard()}, 'add', None, None)")


def _copy(emitter: Emitter, instruction: Instruction) -> None:
    """`cp.words.n [shared], [global], P`."""
    to, source, reads = instruction.operands
    count = int(instruction.parts[2])
    target, target_offset = emitter.address(to)
    origin, origin_offset = emitter.address(source)
    read = emitter.access("copy", "global", "u4", count=count, offset=origin_offset)
    write = emitter.access("copy", "shared", "u4", count=count, offset=target_offset)
    size = "None"
    if isinstance(reads, Immediate):
        size = "None" if reads.value else emitter.constant(0, "u4")
    elif reads is not None:
        size = f"{emitter.read(reads, 'pred')}.astype(u4)"
    emitter.emit(f"m.copy({read}, {write}, g, {origin}, {target}, {emitter.guard()}, {size})")


def _unresolved(emitter: Emitter, instruction: Instruction) -> None:
    emitter.assign(instruction.operands[0], f"m.unresolved({instruction.line})", "b1")


INTERPRETED: dict[str, Handler] = {
    **HANDLERS,
    "bank": _bank,
    "special": _special,
    "decide": _decide,
    "logic3": _logic,
    "truth3": _truth,
    "add_with_carries": _add_with_carries,
    "add_with_carries_wide": _add_with_carries_wide,
    "ld": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "cp": _copy,
    "unresolved": _unresolved,
}
