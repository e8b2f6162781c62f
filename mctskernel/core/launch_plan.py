"""The launch plan: which kernels run, with which grid, block, shared memory, arguments and scratch buffers.

It is TOML in the leading comment of a `.cu` file or the docstring of a Triton module, so that an edit can change
it and a reader can see it:

    [[launch]]
    kernel = "softmax"
    grid = ["rows"]
    block = ["BLOCK"]             # CUDA C++ alone, as is:
    shared = "BLOCK * 4"          # bytes of dynamic shared memory, optional
    args = ["x", "out", "rows", "cols"]

    [[scratch]]                   # optional, named in args like a tensor
    name = "partial"
    dtype = "float32"
    shape = ["rows"]
    zero = true                   # filled with zeros before every run, on the candidate's time

A Triton launch has, in place of `block` and `shared`:

    constexprs = { BLOCK = "BLOCK" }   # by the parameter's name; `args` are the other parameters, in order
    num_warps = 4                      # optional, as is:
    num_stages = 3

Numbers may be expressions over the task's dimensions and scalars and the source's macros (in Triton, the module's
whole-number constants).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from mctskernel.core.documents import DocumentError, parse_toml, read_as
from mctskernel.core.dtypes import DTYPE_BYTES, check_dtype
from mctskernel.core.expression import ExpressionError, Number, evaluate, evaluate_int
from mctskernel.core.kernel import Kernel, Language, leading_comment, leading_docstring

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_LAUNCHES = 512
MAX_PLAN_CHARACTERS = 1 << 18
MAX_STAGES = 16
WARP_THREADS = 32

TRITON_WARPS = 4
TRITON_STAGES = 3
"""What Triton takes where a launch names no number of warps or pipeline stages."""

MAX_SCRATCH_BYTES = 8 << 30

Extent = int | str


class LaunchPlanError(ValueError):
    """A plan that can't be launched: an outcome of its candidate. The message is a sentence."""


@dataclass(frozen=True)
class Launch:
    """One launch as written: extents and arguments are numbers or expressions.

    `triton` is what a launch of a Triton kernel has beside them; its `block` follows from the warps.
    """

    kernel: str
    grid: tuple[Extent, ...]
    block: tuple[Extent, ...]
    args: tuple[Extent | float, ...]
    shared: Extent = 0
    triton: TritonOptions | None = None


@dataclass(frozen=True)
class TritonOptions:
    """How a Triton kernel is compiled for a launch, as written."""

    constexprs: tuple[tuple[str, Extent | float], ...] = ()
    num_warps: Extent = TRITON_WARPS
    num_stages: Extent = TRITON_STAGES


@dataclass(frozen=True)
class Scratch:
    """A buffer of the candidate's own, as written."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]
    zero: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """Launches in their order, and the scratch buffers that they share."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()


@dataclass(frozen=True)
class ResolvedLaunch:
    """A launch at one shape. `arguments` holds buffer names (str) and scalar values (int, float)."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str | Number, ...]
    triton: ResolvedOptions | None = None

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class ResolvedOptions:
    """How a Triton kernel is compiled for a launch, at one shape."""

    constexprs: tuple[tuple[str, Number], ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class ResolvedScratch:
    """A scratch buffer at one shape."""

    name: str
    dtype: str
    elements: int
    zero: bool

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan at one shape."""

    launches: tuple[ResolvedLaunch, ...]
    scratch: tuple[ResolvedScratch, ...]


def plan_of(kernel: Kernel) -> LaunchPlan:
    """Parse the plan in a kernel's leading comment (CUDA) or docstring (Triton)."""
    start, end = plan_span(kernel)
    if end - start > MAX_PLAN_CHARACTERS:
        raise LaunchPlanError(
            f"The launch plan has {end - start} characters; the limit is {MAX_PLAN_CHARACTERS}."
        )
    kind: type[_CudaPlan | _TritonPlan] = _CudaPlan if kernel.language is Language.CUDA else _TritonPlan
    try:
        written = read_as(parse_toml(kernel.source[start:end]), kind)
    except DocumentError as error:
        raise LaunchPlanError(f"The launch plan {error}.") from error
    return LaunchPlan(
        tuple(each.launch() for each in written.launch), tuple(each.scratch() for each in written.scratch)
    )


def plan_span(kernel: Kernel) -> tuple[int, int]:
    """Start and end offsets of the plan's TOML in the source."""
    leading = leading_comment if kernel.language is Language.CUDA else leading_docstring
    span = leading(kernel.source)
    if span is None:
        place = kernel.language.plan_place
        raise LaunchPlanError(f"The kernel has no launch plan: TOML is expected in {place}.")
    return span


def resolve(plan: LaunchPlan, names: Mapping[str, Number], tensors: Collection[str]) -> ResolvedPlan:
    """The plan at one shape: `names` are dimensions, scalars and macros, `tensors` the task's buffers."""
    scratch = tuple(_resolve_scratch(entry, names) for entry in plan.scratch)
    seen = set(tensors)
    for entry in scratch:
        if entry.name in seen or entry.name in names:
            raise LaunchPlanError(f"The scratch buffer '{entry.name}' takes a name that is already in use.")
        seen.add(entry.name)
    total = sum(entry.nbytes for entry in scratch)
    if total > MAX_SCRATCH_BYTES:
        raise LaunchPlanError(
            f"The scratch buffers would take {total} bytes together; the limit is {MAX_SCRATCH_BYTES}."
        )
    return ResolvedPlan(tuple(_resolve_launch(launch, names, seen) for launch in plan.launches), scratch)


def resolve_options(options: TritonOptions, names: Mapping[str, Number], what: str) -> ResolvedOptions:
    """How a Triton kernel is compiled at one shape; `what` is its launch, for the message of a LaunchPlanError."""
    warps = _whole(options.num_warps, names, f"{what}: num_warps")
    if warps < 1 or warps & (warps - 1) or warps * WARP_THREADS > MAX_THREADS:
        raise LaunchPlanError(f"{what}: num_warps is {warps}; it must be a power of two up to 32.")
    stages = _whole(options.num_stages, names, f"{what}: num_stages")
    if not 1 <= stages <= MAX_STAGES:
        raise LaunchPlanError(f"{what}: num_stages is {stages}; it must be from 1 to {MAX_STAGES}.")
    constexprs = []
    for name, value in options.constexprs:
        try:
            constexprs.append((name, evaluate(value, names)))
        except ExpressionError as error:
            raise LaunchPlanError(f"{what}: constexpr '{name}': {error}") from error
    return ResolvedOptions(tuple(constexprs), warps, stages)


_Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*\Z")]
_Argument = int | float | str
_Extents = Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=3)] | int | str


class _CudaLaunch(msgspec.Struct, forbid_unknown_fields=True):
    kernel: _Identifier
    grid: _Extents
    block: _Extents
    shared: Extent = 0
    args: tuple[_Argument, ...] = ()

    def launch(self) -> Launch:
        return Launch(self.kernel, _tuple(self.grid), _tuple(self.block), self.args, self.shared)


class _TritonLaunch(msgspec.Struct, forbid_unknown_fields=True):
    kernel: _Identifier
    grid: _Extents
    args: tuple[_Argument, ...] = ()
    constexprs: dict[str, _Argument] = {}
    num_warps: Extent = TRITON_WARPS
    num_stages: Extent = TRITON_STAGES

    def launch(self) -> Launch:
        options = TritonOptions(tuple(self.constexprs.items()), self.num_warps, self.num_stages)
        block = (f"({self.num_warps}) * {WARP_THREADS}",)
        return Launch(self.kernel, _tuple(self.grid), block, self.args, triton=options)


class _Scratch(msgspec.Struct, forbid_unknown_fields=True):
    name: _Identifier
    shape: Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=8)] | int | str
    dtype: str = "float32"
    zero: bool = False

    def __post_init__(self) -> None:
        check_dtype(self.dtype)

    def scratch(self) -> Scratch:
        return Scratch(self.name, self.dtype, _tuple(self.shape), self.zero)


class _CudaPlan(msgspec.Struct, forbid_unknown_fields=True):
    launch: Annotated[tuple[_CudaLaunch, ...], Meta(min_length=1, max_length=MAX_LAUNCHES)]
    scratch: tuple[_Scratch, ...] = ()


class _TritonPlan(msgspec.Struct, forbid_unknown_fields=True):
    launch: Annotated[tuple[_TritonLaunch, ...], Meta(min_length=1, max_length=MAX_LAUNCHES)]
    scratch: tuple[_Scratch, ...] = ()


def _tuple(extents: tuple[Extent, ...] | Extent) -> tuple[Extent, ...]:
    return extents if isinstance(extents, tuple) else (extents,)


def _whole(extent: Extent, names: Mapping[str, Number], what: str) -> int:
    try:
        return evaluate_int(extent, names)
    except ExpressionError as error:
        raise LaunchPlanError(f"{what}: {error}") from error


def _three(
    extents: tuple[Extent, ...], limits: tuple[int, int, int], names: Mapping[str, Number], what: str
) -> tuple[int, int, int]:
    values = [_whole(extent, names, what) for extent in extents] + [1] * (3 - len(extents))
    for axis, value, limit in zip("xyz", values, limits, strict=True):
        if not 1 <= value <= limit:
            raise LaunchPlanError(f"{what} is {value} in {axis}; it must be from 1 to {limit}.")
    return values[0], values[1], values[2]


def _resolve_launch(launch: Launch, names: Mapping[str, Number], buffers: Collection[str]) -> ResolvedLaunch:
    what = f"The launch of '{launch.kernel}'"
    triton = resolve_options(launch.triton, names, what) if launch.triton is not None else None
    grid = _three(launch.grid, MAX_GRID, names, f"{what}: the grid")
    block = _three(launch.block, MAX_BLOCK, names, f"{what}: the block")
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise LaunchPlanError(f"{what}: a block of {threads} threads is over the limit of {MAX_THREADS}.")
    shared = _whole(launch.shared, names, f"{what}: shared memory")
    if shared < 0:
        raise LaunchPlanError(f"{what}: {shared} bytes of shared memory is negative.")
    arguments = tuple(_argument(argument, names, buffers, what) for argument in launch.args)
    return ResolvedLaunch(launch.kernel, grid, block, shared, arguments, triton)


def _argument(
    argument: Extent | float, names: Mapping[str, Number], buffers: Collection[str], what: str
) -> str | Number:
    if isinstance(argument, str) and argument in buffers:
        return argument
    try:
        return evaluate(argument, names)
    except ExpressionError as error:
        raise LaunchPlanError(
            f"{what}: argument {error} Buffers: {', '.join(sorted(buffers)) or 'none'}."
        ) from error


def _resolve_scratch(scratch: Scratch, names: Mapping[str, Number]) -> ResolvedScratch:
    what = f"The scratch buffer '{scratch.name}'"
    extents = [_whole(extent, names, what) for extent in scratch.shape]
    if min(extents) < 1:
        raise LaunchPlanError(f"{what} has an extent of {min(extents)}; it must be at least 1.")
    return ResolvedScratch(scratch.name, scratch.dtype, math.prod(extents), scratch.zero)
