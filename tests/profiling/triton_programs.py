"""Triton modules for the tests, and how they are built and emulated without a task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Buffer, ResolvedPlan, plan_of, resolve
from mctskernel.profiling.build import BuildFailure
from mctskernel.profiling.candidate import Specialised
from mctskernel.profiling.emulator import Finding, Geometry, GlobalMemory, execute, parse_ptx
from mctskernel.profiling.ptx_text import bind, parameter_types
from mctskernel.profiling.source_rules import rejection
from mctskernel.profiling.triton.build import build_triton

Array = npt.NDArray[Any]

HEADER = "import triton\nimport triton.language as tl\n"


@dataclass(frozen=True)
class Emulation:
    """What a module did: its buffers afterwards, and what the emulator found."""

    arrays: Mapping[str, Array]
    findings: tuple[Finding, ...]


def module(
    body: str,
    kernel: str,
    args: list[str],
    *,
    grid: Sequence[str] = ("1",),
    constexprs: Mapping[str, Number | str] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
) -> str:
    """A Triton module with one launch, of everything below the imports."""
    given = ", ".join(f"{name} = {value!r}" for name, value in (constexprs or {}).items())
    return (
        f'"""\n[[launch]]\nkernel = "{kernel}"\ngrid = {list(grid)!r}\nargs = {args!r}\nconstexprs = {{ {given} }}\n'
        f'num_warps = {num_warps}\nnum_stages = {num_stages}\n"""\n{HEADER}{body}'
    )


def plan(source: str, names: Mapping[str, Number], buffers: Mapping[str, str]) -> ResolvedPlan:
    """The module's launch plan at one shape."""
    kernel = Kernel(source, Language.TRITON)
    tensors = {name: Buffer(dtype, ()) for name, dtype in buffers.items()}
    return resolve(plan_of(kernel), {**kernel.macros, **names}, tensors)


def built(
    source: str, plans: list[ResolvedPlan], dtypes: Mapping[str, str], architecture: str = "sm_90"
) -> Specialised:
    """The module built for the plans, of which the first is searched at."""
    kernel = Kernel(source, Language.TRITON)
    assert rejection(kernel) == ""
    made = build_triton(kernel, plans, 1, architecture, dtypes)
    assert not isinstance(made, BuildFailure), f"{made.message}\n{made.log}"
    return made


def emulate(
    source: str, arrays: Mapping[str, Array], names: Mapping[str, Number], architecture: str = "sm_90"
) -> Emulation:
    """Build and emulate a module over copies of the arrays."""
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    resolved = plan(source, names, dtypes)
    made = built(source, [resolved], dtypes, architecture)
    memory = GlobalMemory()
    addresses = {name: memory.add(name, array.copy()) for name, array in arrays.items()}
    findings: list[Finding] = []
    for launch in resolved.launches:
        ready, index = made.launches[launch]
        build = made.builds[index]
        entry = build.entries[launch.kernel]
        arguments = bind(ready, parameter_types(build.ptx, entry), addresses)
        geometry = Geometry(ready.grid, ready.block, ready.shared_bytes)
        findings.extend(execute(parse_ptx(build.ptx), entry, geometry, arguments, memory).findings)
    results = {name: memory.array(name, array.dtype).reshape(array.shape) for name, array in arrays.items()}
    return Emulation(results, tuple(findings))
