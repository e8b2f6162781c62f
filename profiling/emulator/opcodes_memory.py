"""Memory, atomic, barrier and warp instructions as calls on the machine's memory port and on the warp's lanes."""

from __future__ import annotations

import re

from mctskernel.profiling.emulator.async_copies import ASYNC, bulk_copy
from mctskernel.profiling.emulator.codegen import Emitter, Handler, dtype_of, pair
from mctskernel.profiling.emulator.control_flow import immediate
from mctskernel.profiling.emulator.ptx import (
    SIZES,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    Vector,
)

_SPACES = ("global", "shared", "local", "const", "param")
_STRONG = frozenset(("volatile", "relaxed", "acquire", "release", "mmio", "acq_rel"))
_IGNORED = frozenset(
    """
    nc weak gpu sys cta cluster ca cg cs lu cv wb wt L1::evict_last L1::evict_first
    L1::evict_unchanged L1::no_allocate L1::evict_normal L2::cache_hint L2::64B L2::128B L2::256B
    L2::evict_last L2::evict_first L2::evict_normal noftz
    """.split()
)
MAX_LANE_BYTES = 16


def _parsed(emitter: Emitter, instruction: Instruction) -> tuple[str, int, str, bool]:
    """State space, vector length, type and strength of a load or store."""
    space, count, type_, strong = "generic", 1, "", False
    for part in instruction.parts[1:]:
        name = part.partition("::")[0]
        if name in _SPACES and part not in ("shared::cluster",):
            space = name
        elif part in ("v2", "v4", "v8"):
            count = int(part[1:])
        elif part in SIZES:
            type_ = part
        elif part in _STRONG:
            strong = True
        elif part not in _IGNORED:
            raise emitter.unsupported("." + part)
    if type_ not in SIZES or SIZES[type_] * count > MAX_LANE_BYTES:
        raise emitter.unsupported()
    return space, count, type_, strong


def _load(emitter: Emitter, instruction: Instruction) -> None:
    space, count, type_, strong = _parsed(emitter, instruction)
    target, source = instruction.operands[:2]
    if space == "param":
        _load_parameter(emitter, target, source, type_, count)
        return
    base, offset = emitter.address(source)
    element = dtype_of(type_)
    access = emitter.access("load", space, element, count=count, offset=offset, strong=strong)
    call = f"m.load({access}, g, {base}, {emitter.guard()})"
    if emitter.accesses[-1].value_needed:
        _assign_all(emitter, target, call, element, count)
    else:
        emitter.emit(call)


def _assign_all(emitter: Emitter, target: Operand | None, call: str, element: str, count: int) -> None:
    value = emitter.temporary(call)
    if count == 1:
        emitter.assign(target, value, element)
        return
    if not isinstance(target, Vector) or len(target.elements) != count:
        raise emitter.unsupported("vector")
    for i, each in enumerate(target.elements):
        emitter.assign(each, f"{value}[{i}]", element)


def _load_parameter(
    emitter: Emitter, target: Operand | None, source: Operand | None, type_: str, count: int
) -> None:
    if not isinstance(source, Address) or not isinstance(source.base, Symbol):
        raise emitter.unsupported("computed parameter address")
    if source.base.name not in emitter.parameters:
        raise emitter.unsupported("unknown parameter")
    start, _ = emitter.parameters[source.base.name]
    start += source.base.offset + source.offset
    element = dtype_of(type_)
    elements = target.elements if isinstance(target, Vector) else (target,)
    if len(elements) != count:
        raise emitter.unsupported("vector")
    for i, each in enumerate(elements):
        emitter.assign(each, f"m.parameter({start + i * SIZES[type_]}, {element!r})", element)


def _store(emitter: Emitter, instruction: Instruction) -> None:
    space, count, type_, strong = _parsed(emitter, instruction)
    target, source = instruction.operands[:2]
    base, offset = emitter.address(target)
    element = f"u{SIZES[type_]}"
    access = emitter.access("store", space, element, count=count, offset=offset, strong=strong)
    values = source.elements if isinstance(source, Vector) else (source,)
    if len(values) != count:
        raise emitter.unsupported("vector")
    text = "None"
    if emitter.through_memory or emitter.slice is None:
        text = ", ".join(_stored(emitter, v, type_) for v in values)
    _release(emitter, instruction)
    emitter.emit(f"m.store({access}, g, {base}, {emitter.guard()}, ({text},))")


def _stored(emitter: Emitter, value: Operand | None, type_: str) -> str:
    floating = type_ in ("f32", "f64") and isinstance(value, Immediate)
    text = emitter.read(value, type_ if floating else f"b{8 * SIZES[type_]}")
    return f"{text}.view(u{SIZES[type_]})" if floating else text


def _release(emitter: Emitter, instruction: Instruction) -> None:
    """What a store or an atomic releases it makes visible first, as a fence before it would."""
    if _RELEASING.intersection(instruction.parts) and "cta" not in instruction.parts:
        emitter.emit("m.fence(g)")


_RELEASING = frozenset(("release", "acq_rel"))
_ATOMICS = frozenset("add min max exch cas and or xor inc dec".split())


def _atomic(emitter: Emitter, instruction: Instruction) -> None:
    reduction = instruction.parts[0] == "red"
    scope = "cta" if "cta" in instruction.parts else ""
    space, type_, operation, count = "generic", instruction.parts[-1], "", 1
    for part in instruction.parts[1:-1]:
        name = part.partition("::")[0]
        if part in _ATOMICS:
            operation = part
        elif name in _SPACES:
            space = name
        elif part in ("v2", "v4"):
            count = int(part[1:])
        elif part not in _IGNORED and part not in _STRONG:
            raise emitter.unsupported("." + part)
    if count != 1 or not operation or type_ not in SIZES or type_ == "b128":
        raise emitter.unsupported()
    operands = list(instruction.operands)
    target = None if reduction else operands.pop(0)
    base, offset = emitter.address(operands.pop(0))
    packed = type_ if type_ in ("f16x2", "bf16x2", "bf16", "f16") else None
    element = "u" + str(SIZES[type_]) if packed or type_[0] == "b" else dtype_of(type_)
    access = emitter.access(
        "reduction" if reduction else "atomic", space, element, offset=offset, strong=True, scope=scope
    )
    values = "None, None"
    if emitter.through_memory or emitter.slice is None:
        kind = f"b{8 * SIZES[type_]}" if packed else type_
        values = ", ".join([emitter.read(o, kind) for o in operands[:2]] + ["None"] * (2 - len(operands[:2])))
    name = packed + "." + operation if packed else operation
    _release(emitter, instruction)
    call = f"m.atomic({access}, g, {base}, {emitter.guard()}, {name!r}, {values})"
    if target is not None and emitter.accesses[-1].value_needed:
        emitter.assign(target, emitter.temporary(call), element)
    else:
        emitter.emit(call)


def _copy(emitter: Emitter, instruction: Instruction) -> None:
    """`cp.async` and the instructions that order it."""
    opcode = instruction.opcode
    if opcode.startswith("cp.async.bulk"):
        bulk_copy(emitter, instruction)
        return
    if opcode == "cp.async.commit_group":
        emitter.emit("m.commit(g)")
        return
    if opcode == "cp.async.wait_all":
        emitter.emit("m.wait(g, None)")
        return
    if opcode == "cp.async.wait_group":
        keep = immediate(instruction.operands[0])
        if keep is None:
            raise emitter.unsupported()
        emitter.emit(f"m.wait(g, {keep})")
        return
    if not opcode.startswith(("cp.async.ca.shared", "cp.async.cg.shared")) or "mbarrier" in opcode:
        raise emitter.unsupported()
    target, source, size, *rest = instruction.operands
    total = immediate(size)
    if total not in (4, 8, 16):
        raise emitter.unsupported("size")
    to, to_offset = emitter.address(target)
    origin, origin_offset = emitter.address(source)
    element, count = {4: ("u4", 1), 8: ("u4", 2), 16: ("u4", 4)}[total]
    read = emitter.access("copy", "global", element, count=count, offset=origin_offset)
    write = emitter.access("copy", "shared", element, count=count, offset=to_offset)
    bytes_read = "None"
    if rest and isinstance(rest[0], Register) and rest[0].type == "pred":
        raise emitter.unsupported("ignore-src")
    if rest and not ("cache_hint" in opcode and len(rest) == 1):
        bytes_read = emitter.read(rest[0], "u32")
    emitter.emit(f"m.copy({read}, {write}, g, {origin}, {to}, {emitter.guard()}, {bytes_read})")


def _fence(emitter: Emitter, instruction: Instruction) -> None:
    if instruction.opcode.startswith(("fence.proxy.async", "fence.mbarrier_init")):
        # Bulk copies are done at once, so there is no other proxy.
        return
    if instruction.parts[0] == "membar" or any(
        s in instruction.parts for s in ("gpu", "sys", "cta", "cluster")
    ):
        if "proxy" in instruction.opcode:
            raise emitter.unsupported()
        emitter.emit("m.fence(g)")
    else:
        raise emitter.unsupported()


def barrier(emitter: Emitter, instruction: Instruction) -> str:
    """`bar` and `barrier`: inside a block for warps, otherwise the text of what the block returns."""
    parts = [p for p in instruction.parts[1:] if p not in ("cta", "aligned")]
    operands = list(instruction.operands)
    if parts and parts[0] == "warp":
        mask = _converged(emitter, operands[0], emitter.instruction)
        emitter.emit(f"m.warp_barrier(g, {mask})")
        return ""
    if not parts or parts[0] not in ("sync", "arrive"):
        raise emitter.unsupported()
    number = emitter.read(operands[0], "u32")
    count = emitter.read(operands[1], "u32") if len(operands) > 1 else "None"
    return f"({parts[0]!r}, {number}, {count})"


def _contribute(emitter: Emitter, instruction: Instruction) -> None:
    condition = emitter.read(instruction.operands[1], "pred")
    emitter.emit(f"m.reductions.contribute(g, {immediate(instruction.operands[0])}, {condition})")


def _contributed(emitter: Emitter, instruction: Instruction) -> None:
    target, number = instruction.operands
    mode = instruction.parts[1]
    text = f"m.reductions.result(g, {immediate(number)}, {mode!r})"
    emitter.assign(target, text, "u4" if mode == "popc" else "b1")


_WARP_OPERATIONS = {
    "shfl": (
        r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.(?P<type>b32)",
        "shuffle(m, g, {mode!r}, {values}, {mask}, {line})",
    ),
    "vote": (
        r"vote\.sync\.(?P<mode>all|any|uni|ballot)\.(?P<type>pred|b32)",
        "vote(g, {mode!r}, {values}, {mask})",
    ),
    "match": (r"match\.(?P<mode>any|all)\.sync\.(?P<type>b32|b64)", "match(g, {mode!r}, {values}, {mask})"),
    "redux": (
        r"redux\.sync\.(?P<mode>add|min|max|and|or|xor)\.(?P<type>[usb]32)",
        "reduce_warp(g, {mode!r}, {values}, {mask})",
    ),
}


def _warp_operation(emitter: Emitter, instruction: Instruction) -> None:
    """A call on the lanes of a warp. The last operand is the mask of those that must execute it."""
    base = instruction.parts[0]
    pattern, call = _WARP_OPERATIONS[base]
    match = re.fullmatch(pattern, instruction.opcode)
    if match is None:
        raise emitter.unsupported()
    type_ = match["type"]
    target, *sources, last = instruction.operands
    values = ", ".join(emitter.read(each, "pred" if base == "vote" else type_) for each in sources)
    mask = _converged(emitter, last, instruction)
    text = call.format(mode=match["mode"], values=values, mask=mask, line=_line(instruction))
    if base in ("vote", "redux"):
        emitter.assign(target, text, dtype_of(type_))
        return
    result = emitter.temporary(text)
    for i, (each, dtype) in enumerate(zip(pair(target), ("u4", "b1"), strict=True)):
        emitter.assign(each, f"{result}[{i}]", dtype)


def _converged(emitter: Emitter, operand: Operand | None, instruction: Instruction) -> str:
    """The mask of a warp operation, checked against the lanes that execute it."""
    mask = emitter.read(operand, "b32")
    emitter.emit(f"m.converged(g, {mask}, {_line(instruction)})")
    return mask


def _line(instruction: Instruction) -> int:
    return instruction.line or 0


def _activemask(emitter: Emitter, instruction: Instruction) -> None:
    emitter.assign(instruction.operands[0], "active_mask(g)", "u4")


def _create_policy(emitter: Emitter, instruction: Instruction) -> None:
    """How long caches should keep what hinted accesses touch: nothing that is computed depends on it."""
    if "fractional" not in instruction.parts:
        raise emitter.unsupported()
    emitter.write(instruction.operands[0], emitter.constant(0, "u8"), "b64")


MEMORY: dict[str, Handler] = {
    **ASYNC,
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "cp": _copy,
    "membar": _fence,
    "fence": _fence,
    "contribute": _contribute,
    "contributed": _contributed,
    "bar": barrier,  # type: ignore[dict-item]
    "barrier": barrier,  # type: ignore[dict-item]
    **dict.fromkeys(_WARP_OPERATIONS, _warp_operation),
    "activemask": _activemask,
    "createpolicy": _create_policy,
}
