"""Classes of PTX instructions, for mixes."""

from __future__ import annotations

from mctskernel.profiling.emulator.control_flow import Block
from mctskernel.profiling.emulator.ptx import Instruction

_INTEGER = frozenset(
    [
        "add",
        "sub",
        "mul",
        "mad",
        "mul24",
        "mad24",
        "div",
        "rem",
        "min",
        "max",
        "abs",
        "neg",
        "and",
        "or",
        "xor",
        "not",
        "cnot",
        "shl",
        "shr",
        "shf",
        "bfe",
        "bfi",
        "bfind",
        "brev",
        "popc",
        "clz",
        "lop3",
        "prmt",
        "sad",
        "dp4a",
        "dp2a",
    ]
)
_SPECIAL = frozenset(["rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"])
_BY_OPCODE = {
    **dict.fromkeys(("setp", "set", "selp", "slct", "testp"), "compare"),
    **dict.fromkeys(("mov", "cvta", "isspacep"), "move"),
    **dict.fromkeys(("bra", "brx", "ret", "exit", "call", "trap"), "branch"),
    **dict.fromkeys(("bar", "barrier"), "barrier"),
    **dict.fromkeys(("mma", "wmma", "wgmma"), "mma"),
    **dict.fromkeys(("shfl", "vote", "match", "redux", "activemask"), "warp"),
    **dict.fromkeys(("membar", "fence"), "fence"),
    "cvt": "convert",
    "ldmatrix": "load.shared",
    "stmatrix": "store.shared",
}
_MEMORY = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}


def instruction_class(instruction: Instruction) -> str:
    """Names such as "fma32", "int", "load.global", "branch"; "other" for hints and what has no class."""
    parts = instruction.parts
    base, type_ = parts[0], parts[-1]
    if instruction.opcode.startswith(("wmma.load", "wmma.store")):
        return f"{parts[1]}.{next((p for p in parts if p in ('global', 'shared')), 'generic')}"
    if base in _BY_OPCODE:
        return _BY_OPCODE[base]
    if base in _MEMORY:
        spaces = ("global", "shared", "local", "const", "param")
        space = next((p.partition("::")[0] for p in parts if p.partition("::")[0] in spaces), "generic")
        return f"{_MEMORY[base]}.{space}"
    if instruction.opcode.startswith("cp.async"):
        return "copy" if ".shared" in instruction.opcode else "fence"
    if base in _SPECIAL:
        return "special"
    if type_ in ("f16", "f16x2", "bf16", "bf16x2"):
        return "fp16"
    if type_ == "f64":
        return "fp64"
    if type_ == "f32":
        if base in ("fma", "mad"):
            return "fma32"
        return {"mul": "mul32", "div": "special"}.get(base, "add32")
    return "int" if base in _INTEGER else "other"


def classify(block: Block) -> dict[str, int]:
    """Instructions of a basic block by class."""
    counts: dict[str, int] = {}
    for instruction in [*block.instructions, *([block.final] if block.final is not None else [])]:
        if instruction.parts[0] in ("contribute", "contributed"):  # the barrier beside them counts
            continue
        name = instruction_class(instruction)
        counts[name] = counts.get(name, 0) + 1
    return counts
