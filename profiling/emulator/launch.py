"""What is fixed for one launch: packed parameters, addresses of variables, the layout of shared and local memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mctskernel.profiling.emulator import arithmetic, floating, lanes, opcodes_tensor
from mctskernel.profiling.emulator.codegen import Program, compile_program
from mctskernel.profiling.emulator.control_flow import Block, control_flow
from mctskernel.profiling.emulator.lanes import Geometry
from mctskernel.profiling.emulator.memory import LOCAL_WINDOW, SHARED_WINDOW, GlobalMemory, Range
from mctskernel.profiling.emulator.opcodes import ARITHMETIC
from mctskernel.profiling.emulator.opcodes_memory import MEMORY
from mctskernel.profiling.emulator.opcodes_tensor import TENSOR
from mctskernel.profiling.emulator.ptx import Function, Module, Parameter, Variable
from mctskernel.profiling.emulator.slicing import address_slice, with_short_branches_predicated

Argument = int | float | bytes | np.generic
_GUARD_BYTES = 4096  # between shared variables, so that an overrun of one is not an access to the next


def _low24(a: Any) -> Any:
    mask = a.dtype.type(0xFFFFFF)
    if a.dtype.kind == "u":
        return a & mask
    return (a << a.dtype.type(8)) >> a.dtype.type(8)


def _in_space(address: Any, space: str) -> Any:
    shared = (address >= SHARED_WINDOW) & (address < LOCAL_WINDOW)
    local = (address >= LOCAL_WINDOW) & (address < LOCAL_WINDOW + LOCAL_WINDOW)
    return {"shared": shared, "local": local, "global": ~(shared | local)}[space]


def _public(module: Any) -> dict[str, object]:
    return {k: v for k, v in vars(module).items() if callable(v) and not k.startswith("_")}


_UFUNCS = """
    minimum maximum absolute negative fmin fmax sqrt exp2 log2 sin cos tanh copysign rint trunc
    floor ceil
    """.split()
RUNTIME: dict[str, object] = {
    **_public(arithmetic),
    **_public(floating),
    **_public(lanes),
    **_public(opcodes_tensor),
    **{name: getattr(np, name) for name in _UFUNCS},
    "low24": _low24,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "in_space": _in_space,
    "SHARED_WINDOW": SHARED_WINDOW,
    "LOCAL_WINDOW": LOCAL_WINDOW,
}
HANDLERS = {**ARITHMETIC, **MEMORY, **TENSOR}


def program_of(module: Module, entry: str, *, sliced: bool) -> Program:
    """The compiled entry, kept on the module. Raises `UnsupportedPtxError`."""
    key = (entry, sliced)
    if key not in module.compiled:
        function = module.entries[entry]
        blocks = blocks_of(module, entry)
        offsets, _ = parameter_layout(function.parameters)
        placed = {p.name: (offset, p.type) for p, offset in zip(function.parameters, offsets, strict=True)}
        symbols = [v.name for v in variables_of(module, function)]
        needed = None
        if sliced:
            blocks = with_short_branches_predicated(blocks)
            needed = address_slice(blocks)
        module.compiled[key] = compile_program(blocks, HANDLERS, RUNTIME, placed, symbols, needed)
    return module.compiled[key]  # type: ignore[return-value]


def blocks_of(module: Module, entry: str) -> Sequence[Block]:
    """The entry's basic blocks, kept on the module."""
    if entry not in module.blocks:
        module.blocks[entry] = control_flow(module, module.entries[entry])
    blocks: Sequence[Block] = module.blocks[entry]
    return blocks


def variables_of(module: Module, function: Function) -> list[Variable]:
    inlined = [v for f in module.functions.values() for v in f.variables]
    return [v for v in (*module.variables, *function.variables, *inlined) if v.space != "param"]


def parameter_layout(parameters: Sequence[Parameter]) -> tuple[list[int], int]:
    """Byte offset of each parameter, and the size of them all."""
    offsets, end = [], 0
    for p in parameters:
        end = -(-end // p.align) * p.align
        offsets.append(end)
        end += p.size
    return offsets, end


_FORMATS = {"f32": "<f", "f64": "<d"}


def pack(parameters: Sequence[Parameter], arguments: Sequence[Argument]) -> bytes:
    """Arguments as the launch would lay them out. Raises `ValueError` where one doesn't fit its parameter."""
    if len(parameters) != len(arguments):
        raise ValueError(f"the kernel takes {len(parameters)} arguments, not {len(arguments)}")
    offsets, end = parameter_layout(parameters)
    packed = bytearray(end)
    for parameter, offset, argument in zip(parameters, offsets, arguments, strict=True):
        if isinstance(argument, np.generic):
            data = argument.tobytes()
        elif isinstance(argument, bytes):
            data = argument
        elif parameter.type in _FORMATS:
            data = struct.pack(_FORMATS[parameter.type], argument)
        else:
            data = (int(argument) & ((1 << 8 * parameter.size) - 1)).to_bytes(parameter.size, "little")
        if len(data) != parameter.size:
            raise ValueError(f"{parameter.name} takes {parameter.size} bytes, not {len(data)}")
        packed[offset : offset + len(data)] = data
    return bytes(packed)


@dataclass(frozen=True)
class Launch:
    packed: bytes
    addresses: list[np.uint64]
    shared: list[Range]
    local: list[Range]
    shared_bytes: int

    def parameter(self, offset: int, dtype: str) -> np.generic:
        value: np.generic = np.frombuffer(self.packed, dtype, 1, offset)[0]
        return value


def prepare(
    module: Module,
    function: Function,
    geometry: Geometry,
    arguments: Sequence[Argument],
    memory: GlobalMemory,
    *,
    guard_bytes: int = _GUARD_BYTES,
) -> Launch:
    """Lay out a launch. Shared variables are `guard_bytes` apart so that overruns are seen; 0 is the real layout."""
    shared: list[Range] = []
    local: list[Range] = []
    addresses: dict[str, int] = {}
    ends = {"shared": 0, "local": 0}
    variables = variables_of(module, function)
    dynamic = [v for v in variables if v.space == "shared" and v.size == 0]
    for v in [v for v in variables if v not in dynamic]:
        if v.space in ends:
            start = -(-ends[v.space] // v.align) * v.align
            (shared if v.space == "shared" else local).append(Range(v.name, start, start + v.size))
            ends[v.space] = start + v.size + (guard_bytes if v.space == "shared" else 0)
            addresses[v.name] = start
        else:
            addresses[v.name] = _module_variable(memory, v)
    end = ends["shared"]
    for v in dynamic:
        start = -(-end // max(v.align, 16)) * max(v.align, 16)
        addresses[v.name] = start
    if geometry.dynamic_shared_bytes:
        start = -(-end // 16) * 16
        if dynamic:
            start = addresses[dynamic[0].name]
        shared.append(
            Range(
                dynamic[0].name if dynamic else "dynamic shared memory",
                start,
                start + geometry.dynamic_shared_bytes,
            )
        )
        end = start + geometry.dynamic_shared_bytes
    names = [v.name for v in variables]
    return Launch(
        pack(function.parameters, arguments), [np.uint64(addresses[n]) for n in names], shared, local, end
    )


def _module_variable(memory: GlobalMemory, v: Variable) -> int:
    try:
        return memory[v.name].base
    except KeyError:
        contents = np.frombuffer(v.data if v.data is not None else bytes(v.size), "u1")
        return memory.add(v.name, contents, writable=v.space == "global")
