"""One generated Python function per basic block, registers as local variables.

Values are numpy arrays over lanes or, where all lanes agree, numpy scalars; neither is ever changed in place.
Generated text is built from our own identifiers and parsed numbers only; no text of the kernel reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.ptx import (
    SIZES,
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    UnsupportedPtxError,
    Vector,
)

BlockFunction = Callable[..., object]
Value = np.ndarray | np.generic

_LETTERS = {"u": "u", "s": "i", "b": "u", "f": "f"}


def dtype_of(type_: str) -> str:
    """The numpy type (such as "i4") in which values of a PTX type are computed."""
    if type_ == "pred":
        return "b1"
    if type_ in ("f16x2", "bf16x2", "tf32"):
        return "u4"
    if type_ == "bf16":
        return "u2"
    return _LETTERS[type_[0]] + str(SIZES[type_])


def storage_of(type_: str) -> str:
    """The numpy type in which a register of a declared PTX type is kept."""
    if type_ == "pred":
        return "b1"
    return dtype_of(type_) if type_ in ("f32", "f64") else "u" + str(SIZES[type_])


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A static memory instruction. `element` is a numpy type, `bytes` what one lane moves.

    `scope` is that of an atomic which other blocks don't see as one (`cta`), otherwise empty.
    """

    ordinal: int
    opcode: str
    kind: str
    space: str
    element: str
    count: int
    offset: int
    line: int | None
    block: int
    strong: bool = False
    value_needed: bool = True
    scope: str = ""
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", int(self.element[1:]) * self.count)


@dataclass
class Program:
    """A compiled entry: block functions and what the machine must know of each block."""

    blocks: Sequence[Block]
    functions: list[BlockFunction]
    live_slots: list[tuple[int, ...]]
    accesses: list[Access]
    lengths: list[int]
    warp_synchronous: list[bool]
    defaults: list[Value]


@dataclass
class Emitter:
    """The text of one block while it is written."""

    parameters: Mapping[str, tuple[int, str]]
    symbols: list[str]
    accesses: list[Access]
    namespace: dict[str, object]
    slice: set[Register] | None
    through_memory: bool
    block: int = 0
    instruction: Instruction = field(default_factory=lambda: Instruction("nop", ()))
    lines: list[str] = field(default_factory=list)
    views: dict[Register, dict[str, str]] = field(default_factory=dict)
    temporaries: int = 0
    constants: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def unsupported(self, detail: str = "") -> UnsupportedPtxError:
        what = self.instruction.opcode + (f": {detail}" if detail else "")
        return UnsupportedPtxError(what, self.instruction.line)

    def emit(self, text: str) -> None:
        self.lines.append(text)

    def temporary(self, expression: str) -> str:
        self.temporaries += 1
        name = f"t{self.temporaries}"
        self.emit(f"{name} = {expression}")
        return name

    def constant(self, value: object, dtype: str) -> str:
        """The name of a numpy scalar in the namespace of the generated functions."""
        scalar = np.dtype(dtype).type(value)
        key = (dtype, scalar.tobytes())
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            self.constants[key] = name
            self.namespace[name] = scalar
        return self.constants[key]

    def literal(self, immediate: Immediate, dtype: str) -> str:
        bits, size = immediate.value, int(dtype[1:])
        if dtype == "b1":
            return self.constant(bool(bits), "b1")
        if immediate.form == "int" and dtype[0] == "f":
            raise self.unsupported("integer literal for a float")
        if immediate.form == "f64" and size == 4:
            single = np.array([bits], "u8").view("f8").astype("f4")
            return self.constant(single.view(dtype)[0], dtype)
        if immediate.form != "int" and size != int(immediate.form[1:]) // 8:
            raise self.unsupported("float literal of another size")
        raw = np.array([bits & ((1 << 8 * size) - 1)], f"u{size}").view(dtype)[0]
        return self.constant(raw, dtype)

    def read(self, operand: Operand | None, type_: str) -> str:
        """An expression for an operand seen as a PTX type."""
        dtype = dtype_of(type_)
        match operand:
            case Register():
                return self.register(operand, dtype)
            case Negated(register):
                return f"(~{self.register(register, 'b1')})"
            case Immediate():
                return self.literal(operand, dtype)
            case Symbol(name, offset):
                return self.symbol(name, offset, dtype)
            case Vector(elements) if all(elements):
                return self.packed(elements, dtype)
        raise self.unsupported("operand")

    def packed(self, elements: tuple[Operand | None, ...], dtype: str) -> str:
        part = int(dtype[1:]) // len(elements)
        wide = f"u{int(dtype[1:])}"
        terms = [
            f"({self.read(element, f'b{8 * part}')}.astype({wide}) << {self.constant(8 * part * i, wide)})"
            for i, element in enumerate(elements)
        ]
        joined = " | ".join(terms)
        return f"({joined})" + (f".view({dtype})" if dtype != wide else "")

    def register(self, register: Register, dtype: str) -> str:
        known = self.views.setdefault(register, {})
        if dtype in known:
            return known[dtype]
        storage = storage_of(register.type)
        if storage not in known:
            size = storage[1:]
            same = next((d for d in known if d[1:] == size and d != "w8"), None)
            if same is None:
                raise self.unsupported("register without a value")
            known[storage] = f"r{register.ordinal}"
            self.emit(f"r{register.ordinal} = {known[same]}.view({storage})")
        if dtype == storage:
            return known[storage]
        if (dtype == "b1") != (storage == "b1"):
            raise self.unsupported("predicate and number mixed")
        have, want = int(storage[1:]), int(dtype[1:])
        name = f"r{register.ordinal}_{dtype}"
        if have == want:
            self.emit(f"{name} = {known[storage]}.view({dtype})")
        elif have > want:
            bits = known[storage] if storage[0] == "u" else f"{known[storage]}.view(u{have})"
            self.emit(f"{name} = {bits}.astype(u{want}).view({dtype})")
        else:
            raise self.unsupported("register narrower than its use")
        known[dtype] = name
        return name

    def wide(self, operand: Operand | None) -> str:
        """An f32 operand in double precision, converted once a block."""
        if not isinstance(operand, Register):
            text = self.read(operand, "f32")
            return self.constant(float(self.namespace[text]), "f8")  # type: ignore[arg-type]
        single = self.read(operand, "f32")
        known = self.views[operand]
        if "w8" not in known:
            known["w8"] = f"r{operand.ordinal}_w"
            self.emit(f"r{operand.ordinal}_w = {single}.astype(f8)")
        return known["w8"]

    def symbol(self, name: str, offset: int, dtype: str) -> str:
        if name.startswith("%"):
            special = name[1:]
            if special not in SPECIAL_TYPES:
                raise self.unsupported("special register " + name)
            text = f"g.special({special!r})"
            have = SPECIAL_TYPES[special]
            return text if have == dtype else f"{text}.astype({dtype})"
        if name not in self.symbols:
            raise self.unsupported("unknown symbol")
        text = f"m.addresses[{self.symbols.index(name)}]"
        total = f"({text} + {self.constant(offset & (2**64 - 1), 'u8')})" if offset else text
        return total if dtype == "u8" else f"{total}.astype({dtype})"

    def write(self, operand: Operand | None, expression: str, type_: str) -> None:
        """Assign a value of a PTX type to a destination; a guarded write keeps the old value elsewhere."""
        self.assign(operand, expression, dtype_of(type_))

    def assign(self, operand: Operand | None, expression: str, dtype: str) -> None:
        if operand is None:
            return
        if isinstance(operand, Vector):
            self.unpack(operand, expression, dtype)
            return
        if not isinstance(operand, Register):
            raise self.unsupported("destination")
        storage = storage_of(operand.type)
        have, want = int(storage[1:]), int(dtype[1:])
        if (dtype == "b1") != (storage == "b1") or have < want:
            raise self.unsupported("destination of another size")
        if have > want:
            signed = dtype[0] == "i"
            bits = expression if dtype[0] in "ui" else f"({expression}).view(u{want})"
            expression, dtype = (
                f"({bits}).astype({'i' if signed else 'u'}{have})",
                f"{'i' if signed else 'u'}{have}",
            )
        guard = self.guard()
        if guard is not None:
            old = self.register(operand, storage)
            same = expression if dtype == storage else f"({expression}).view({storage})"
            expression, dtype = f"select({guard}, {same}, {old})", storage
        name = f"r{operand.ordinal}" + ("" if dtype == storage else f"_{dtype}")
        self.emit(f"{name} = {expression}")
        self.views[operand] = {dtype: name}

    def unpack(self, target: Vector, expression: str, dtype: str) -> None:
        part = int(dtype[1:]) // len(target.elements)
        whole = self.temporary(f"({expression}).view(u{dtype[1:]})")
        for i, element in enumerate(target.elements):
            shifted = f"({whole} >> {self.constant(8 * part * i, 'u' + dtype[1:])})" if i else whole
            self.assign(element, f"{shifted}.astype(u{part})", f"u{part}")

    def guard(self) -> str | None:
        guard = self.instruction.guard
        return None if guard is None else self.read(guard, "pred")

    def address(self, operand: Operand | None) -> tuple[str, int]:
        """Base expression and constant offset of a memory operand."""
        if not isinstance(operand, Address):
            raise self.unsupported("address")
        if operand.base is None:
            return self.constant(operand.offset & (2**64 - 1), "u8"), 0
        if isinstance(operand.base, Symbol):
            return self.symbol(operand.base.name, operand.base.offset, "u8"), operand.offset
        return self.register(operand.base, f"u{SIZES[operand.base.type]}"), operand.offset

    def access(
        self,
        kind: str,
        space: str,
        element: str,
        *,
        count: int = 1,
        offset: int = 0,
        strong: bool = False,
        scope: str = "",
    ) -> str:
        """Register a static memory instruction; returns its name in the generated text."""
        wanted = self.slice is None or bool(self.slice.intersection(self.instruction.definitions))
        access = Access(
            len(self.accesses),
            self.instruction.opcode,
            kind,
            space,
            element,
            count,
            offset,
            self.instruction.line,
            self.block,
            strong,
            wanted or (kind in ("store", "atomic", "reduction", "copy") and self.through_memory),
            scope,
        )
        self.accesses.append(access)
        name = f"A{access.ordinal}"
        self.namespace[name] = access
        return name

    def skipped(self, instruction: Instruction) -> bool:
        if self.slice is None or instruction.parts[0] in TOUCHES_MEMORY:
            return False
        return not self.slice.intersection(instruction.definitions)


TOUCHES_MEMORY = frozenset(
    "ld ldu st atom red cp mbarrier ldmatrix wmma stmatrix membar fence bar barrier contribute".split()
)
_AXES = ("tid", "ntid", "ctaid", "nctaid")
SPECIAL_TYPES = {
    **{f"{name}.{axis}": "u4" for name in _AXES for axis in "xyz"},
    **dict.fromkeys(
        "laneid warpid nwarpid smid nsmid clock clock_hi globaltimer_lo globaltimer_hi".split(), "u4"
    ),
    **dict.fromkeys(("dynamic_smem_size", "total_smem_size", "cluster_ctarank", "cluster_nctarank"), "u4"),
    **{
        f"{name}.{axis}": "u4"
        for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
        for axis in "xyz"
    },
    **{f"lanemask_{name}": "u4" for name in ("eq", "le", "lt", "ge", "gt")},
    **dict.fromkeys(("clock64", "globaltimer", "gridid"), "u8"),
}

Handler = Callable[[Emitter, Instruction], None]


def compile_program(  # noqa: PLR0917
    blocks: Sequence[Block],
    handlers: Mapping[str, Handler],
    runtime: Mapping[str, object],
    parameters: Mapping[str, tuple[int, str]],
    symbols: list[str],
    needed: tuple[set[Register], bool] | None = None,
) -> Program:
    """Generate and compile every block; `needed` is the slice to keep, None keeps all. Raises `UnsupportedPtxError`."""
    namespace: dict[str, object] = dict(runtime)
    namespace.update({f"{k}{s}": np.dtype(f"{k}{s}") for k in "ui" for s in (1, 2, 4, 8)})
    namespace.update({"f2": np.dtype("f2"), "f4": np.dtype("f4"), "f8": np.dtype("f8"), "b1": np.dtype("b1")})
    emitter = Emitter(
        parameters, symbols, [], namespace, needed[0] if needed else None, needed[1] if needed else True
    )
    kept = needed[0] if needed else None
    alive = [[r for r in b.live_in if kept is None or r in kept] for b in blocks]
    slots: dict[Register, int] = {}
    for registers in alive:
        for register in sorted(registers, key=lambda r: r.ordinal):
            slots.setdefault(register, len(slots))
    source: list[str] = []
    for block in blocks:
        source += _block_source(emitter, block, handlers, slots, set(alive[block.number]))
    text = "\n".join(source)
    # our own text: see the module's docstring
    exec(compile(text, "<ptx blocks>", "exec"), namespace)  # noqa: S102
    functions = [namespace[f"block_{b.number}"] for b in blocks]
    defaults: list[Value] = [np.dtype(storage_of(r.type)).type(0) for r in slots]
    return Program(
        blocks,
        functions,  # type: ignore[arg-type]
        [tuple(sorted(slots[r] for r in registers)) for registers in alive],
        emitter.accesses,
        [len(b.instructions) + (b.final is not None) for b in blocks],
        [b.warp_synchronous for b in blocks],
        defaults,
    )


def _block_source(
    emitter: Emitter,
    block: Block,
    handlers: Mapping[str, Handler],
    slots: Mapping[Register, int],
    alive: set[Register],
) -> list[str]:
    emitter.block, emitter.lines, emitter.views = block.number, [], {}
    for register in sorted(alive, key=lambda r: r.ordinal):
        emitter.emit(f"r{register.ordinal} = R[{slots[register]}]")
        emitter.views[register] = {storage_of(register.type): f"r{register.ordinal}"}
    for instruction in block.instructions:
        emitter.instruction = instruction
        if emitter.skipped(instruction):
            continue
        handler = handlers.get(instruction.parts[0])
        if handler is None:
            raise emitter.unsupported()
        handler(emitter, instruction)
    emitter.instruction = block.final or Instruction("nop", ())
    outcome = "None"
    if block.condition is not None:
        outcome = emitter.read(block.condition, "u32" if block.end == "switch" else "pred")
    elif block.end == "barrier" and block.final is not None:
        outcome = handlers["bar"](emitter, block.final)  # type: ignore[assignment]
    written = {r for i in block.instructions for r in i.definitions}
    if block.final is not None:
        written.update(block.final.definitions)
    for register in sorted(written & set(slots) & block.live_out, key=lambda r: r.ordinal):
        if register in emitter.views:
            emitter.emit(f"R[{slots[register]}] = {emitter.register(register, storage_of(register.type))}")
    emitter.emit(f"return {outcome}")
    return [f"def block_{block.number}(m, g, R):", *("    " + line for line in emitter.lines)]


def pair(operand: Operand | None) -> tuple[Operand | None, Operand | None]:
    """Both destinations of `d|p`, the second None where there is one only."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)
