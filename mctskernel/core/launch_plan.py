"""The launch plan: which kernels run, with which grid, block, shared memory, arguments and scratch buffers.

It is TOML in the leading comment of a `.cu` file or the docstring of a Triton module, so that an edit can change
it and a reader can see it:

    [[launch]]
    kernel = "softmax"
    grid = ["rows"]
    block = ["BLOCK"]             # CUDA C++ alone, as is:
    shared = "BLOCK * 4"          # bytes of dynamic shared memory, optional
    cluster = [2]                 # optional: blocks of a thread block cluster; over 8 with nonportable_cluster = true
    programmatic = true           # optional: may begin before the launch before it ends (dependent launch)
    args = ["x", "out", "rows", "cols"]

    [[scratch]]                   # optional, named in args like a tensor
    name = "partial"
    dtype = "float32"
    shape = ["rows"]
    zero = true                   # filled with zeros before every run, on the candidate's time

    [[tensor_map]]                # CUDA C++ alone: a CUtensorMap for TMA, named in args
    name = "x_map"                # the parameter is `const __grid_constant__ CUtensorMap x_map`
    tensor = "x"                  # a tensor or a scratch buffer
    box = [64, 64]                # elements of a copy, one for each axis, in the order of the tensor's shape
    shape = ["rows", "cols"]      # optional, the tensor's own by default: the same elements seen with other axes
    swizzle = 128                 # optional: 0, 32, 64 or 128 bytes
    element_strides = [1, 1]      # optional
    interleave = 0                # optional: 0, 16 or 32 bytes
    fill = "zero"                 # optional: what lies outside of the tensor, or "nan"
    tf32 = false                  # optional: true rounds copied numbers of float32 to TF32
    optional = false              # optional: true gives zeros in place of a map that TMA refuses; the kernel looks

A Triton launch has, in place of `block`, `shared`, `cluster` and `programmatic`:

    constexprs = { BLOCK = "BLOCK" }   # by the parameter's name; `args` are the other parameters, in order
    num_warps = 4                      # optional, as is:
    num_stages = 3
    num_ctas = 1                       # blocks of a cluster that share a program
    maxnreg = 168                      # registers of a thread at most

Numbers may be expressions over the task's dimensions and scalars and the source's macros (in Triton, the module's
whole-number constants).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from mctskernel.core.documents import DocumentError, parse_toml, read_as
from mctskernel.core.dtypes import DTYPE_BYTES, check_dtype
from mctskernel.core.expression import ExpressionError, Number, evaluate, evaluate_int
from mctskernel.core.kernel import Kernel, Language, leading_comment, leading_docstring
from mctskernel.core.tensor_map import MAX_RANK, ResolvedTensorMap, refused_by_tma

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_CLUSTER = 16
PORTABLE_CLUSTER = 8
"""How many blocks of a cluster every GPU that has clusters promises."""

MAX_LAUNCHES = 512
MAX_PLAN_CHARACTERS = 1 << 18
MAX_STAGES = 16
WARP_THREADS = 32

TRITON_WARPS = 4
TRITON_STAGES = 3
"""What Triton takes where a launch names no number of warps or pipeline stages."""

MAX_REGISTERS = 255
MAX_SCRATCH_BYTES = 8 << 30

Extent = int | str


class LaunchPlanError(ValueError):
    """A plan that can't be launched: an outcome of its candidate. The message is a sentence."""


@dataclass(frozen=True)
class Launch:
    """A launch as written, in numbers or expressions; with `triton` options, its `block` follows from the warps."""

    kernel: str
    grid: tuple[Extent, ...]
    block: tuple[Extent, ...]
    args: tuple[Extent | float, ...]
    shared: Extent = 0
    triton: TritonOptions | None = None
    cluster: tuple[Extent, ...] = ()
    nonportable_cluster: bool = False
    programmatic: bool = False


@dataclass(frozen=True)
class TritonOptions:
    """How a Triton kernel is compiled for a launch, as written; `maxnreg` is 0 where nothing limits registers."""

    constexprs: tuple[tuple[str, Extent | float], ...] = ()
    num_warps: Extent = TRITON_WARPS
    num_stages: Extent = TRITON_STAGES
    num_ctas: Extent = 1
    maxnreg: Extent = 0


_Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*\Z")]


class Scratch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A buffer of the candidate's own, as written."""

    name: _Identifier
    shape: Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=8)]
    dtype: str = "float32"
    zero: bool = False

    def __post_init__(self) -> None:
        check_dtype(self.dtype)


_Axes = Annotated[tuple[Extent, ...], Meta(max_length=MAX_RANK)]


class TensorMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How TMA copies boxes of a buffer, as written; without a shape it is the buffer's own."""

    name: _Identifier
    tensor: _Identifier
    box: _Axes
    shape: _Axes = ()
    swizzle: Literal[0, 32, 64, 128] = 0
    element_strides: _Axes = ()
    interleave: Literal[0, 16, 32] = 0
    fill: Literal["zero", "nan"] = "zero"
    tf32: bool = False
    optional: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """Launches in their order, and the scratch buffers and tensor maps that they share."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()


class Buffer(NamedTuple):
    """What a launch's argument can point to: a tensor at one shape."""

    dtype: str
    extents: tuple[int, ...]


@dataclass(frozen=True)
class ResolvedLaunch:
    """A launch at one shape. `arguments` holds names of buffers and tensor maps (str) and numbers (int, float)."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str | Number, ...]
    triton: ResolvedOptions | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class ResolvedOptions:
    """How a Triton kernel is compiled for a launch, at one shape."""

    constexprs: tuple[tuple[str, Number], ...]
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    maxnreg: int = 0


@dataclass(frozen=True)
class ResolvedScratch:
    name: str
    dtype: str
    extents: tuple[int, ...]
    zero: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class ResolvedPlan:
    launches: tuple[ResolvedLaunch, ...]
    scratch: tuple[ResolvedScratch, ...]
    tensor_maps: tuple[ResolvedTensorMap, ...] = ()


def plan_of(kernel: Kernel) -> LaunchPlan:
    """Parse the plan in a kernel's leading comment (CUDA) or docstring (Triton)."""
    start, end = plan_span(kernel)
    if end - start > MAX_PLAN_CHARACTERS:
        raise LaunchPlanError(
            f"The launch plan has {end - start} characters; the limit is {MAX_PLAN_CHARACTERS}."
        )
    return _read(kernel.source[start:end], kernel.language)


@lru_cache(256)
def _read(text: str, language: Language) -> LaunchPlan:
    """The plan as written; most edits of a kernel leave it as it is."""
    kind: type[_CudaPlan | _TritonPlan] = _CudaPlan if language is Language.CUDA else _TritonPlan
    try:
        written = read_as(_in_lists(parse_toml(text)), kind)
    except DocumentError as error:
        raise LaunchPlanError(f"The launch plan {error}.") from error
    maps = written.tensor_map if isinstance(written, _CudaPlan) else ()
    return LaunchPlan(tuple(each.launch() for each in written.launch), written.scratch, maps)


def _in_lists(document: dict[str, Any]) -> dict[str, Any]:
    """The document with extents in lists where one stands alone."""
    for table in (each for tables in document.values() if isinstance(tables, list) for each in tables):
        for name in _EXTENTS & table.keys() if isinstance(table, dict) else ():
            table[name] = table[name] if isinstance(table[name], list) else [table[name]]
    return document


_EXTENTS = {"grid", "block", "cluster", "shape", "box", "element_strides"}


def plan_span(kernel: Kernel) -> tuple[int, int]:
    """Start and end offsets of the plan's TOML in the source."""
    leading = leading_comment if kernel.language is Language.CUDA else leading_docstring
    span = leading(kernel.source)
    if span is None:
        place = kernel.language.plan_place
        raise LaunchPlanError(f"The kernel has no launch plan: TOML is expected in {place}.")
    return span


def resolve(plan: LaunchPlan, names: Mapping[str, Number], tensors: Mapping[str, Buffer]) -> ResolvedPlan:
    """The plan at one shape: `names` are dimensions, scalars and macros, `tensors` the task's buffers."""
    scratch = tuple(_resolve_scratch(entry, names) for entry in plan.scratch)
    seen = dict(tensors)
    for entry in scratch:
        if entry.name in seen or entry.name in names:
            raise LaunchPlanError(f"The scratch buffer '{entry.name}' takes a name that is already in use.")
        seen[entry.name] = Buffer(entry.dtype, entry.extents)
    total = sum(entry.nbytes for entry in scratch)
    if total > MAX_SCRATCH_BYTES:
        raise LaunchPlanError(
            f"The scratch buffers would take {total} bytes together; the limit is {MAX_SCRATCH_BYTES}."
        )
    maps: dict[str, ResolvedTensorMap] = {}
    for each in plan.tensor_maps:
        if each.name in seen or each.name in names or each.name in maps:
            raise LaunchPlanError(f"The tensor map '{each.name}' takes a name that is already in use.")
        maps[each.name] = _resolve_tensor_map(each, names, seen)
    if plan.launches[0].programmatic:
        raise LaunchPlanError(
            f"The launch of '{plan.launches[0].kernel}' is the first, so there is none that it could overlap with: it "
            "can't be programmatic."
        )
    known = (*seen, *maps)
    return ResolvedPlan(
        tuple(_resolve_launch(launch, names, known) for launch in plan.launches),
        scratch,
        tuple(maps.values()),
    )


def resolve_options(options: TritonOptions, names: Mapping[str, Number], what: str) -> ResolvedOptions:
    """How a Triton kernel is compiled at one shape; `what` is its launch, for the message of a LaunchPlanError."""
    warps = _whole(options.num_warps, names, f"{what}: num_warps")
    if warps < 1 or warps & (warps - 1) or warps * WARP_THREADS > MAX_THREADS:
        raise LaunchPlanError(f"{what}: num_warps is {warps}; it must be a power of two up to 32.")
    stages = _whole(options.num_stages, names, f"{what}: num_stages")
    if not 1 <= stages <= MAX_STAGES:
        raise LaunchPlanError(f"{what}: num_stages is {stages}; it must be from 1 to {MAX_STAGES}.")
    ctas = _whole(options.num_ctas, names, f"{what}: num_ctas")
    if ctas < 1 or ctas & (ctas - 1) or ctas > MAX_CLUSTER:
        raise LaunchPlanError(f"{what}: num_ctas is {ctas}; it must be a power of two up to {MAX_CLUSTER}.")
    registers = _whole(options.maxnreg, names, f"{what}: maxnreg")
    if not 0 <= registers <= MAX_REGISTERS:
        raise LaunchPlanError(
            f"{what}: maxnreg is {registers}; it must be up to {MAX_REGISTERS}, or 0 for no limit."
        )
    constexprs = []
    for name, value in options.constexprs:
        try:
            constexprs.append((name, evaluate(value, names)))
        except ExpressionError as error:
            raise LaunchPlanError(f"{what}: constexpr '{name}': {error}") from error
    return ResolvedOptions(tuple(constexprs), warps, stages, ctas, registers)


_Argument = int | float | str
_Extents = Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=3)]


class _CudaLaunch(msgspec.Struct, forbid_unknown_fields=True):
    kernel: _Identifier
    grid: _Extents
    block: _Extents
    shared: Extent = 0
    args: tuple[_Argument, ...] = ()
    cluster: Annotated[tuple[Extent, ...], Meta(max_length=3)] = ()
    nonportable_cluster: bool = False
    programmatic: bool = False

    def launch(self) -> Launch:
        return Launch(**msgspec.structs.asdict(self))


class _TritonLaunch(msgspec.Struct, forbid_unknown_fields=True):
    kernel: _Identifier
    grid: _Extents
    args: tuple[_Argument, ...] = ()
    constexprs: dict[str, _Argument] = {}
    num_warps: Extent = TRITON_WARPS
    num_stages: Extent = TRITON_STAGES
    num_ctas: Extent = 1
    maxnreg: Extent = 0

    def launch(self) -> Launch:
        options = TritonOptions(
            tuple(self.constexprs.items()), self.num_warps, self.num_stages, self.num_ctas, self.maxnreg
        )
        block = (f"({self.num_warps}) * {WARP_THREADS}",)
        return Launch(self.kernel, self.grid, block, self.args, triton=options)


class _CudaPlan(msgspec.Struct, forbid_unknown_fields=True):
    launch: Annotated[tuple[_CudaLaunch, ...], Meta(min_length=1, max_length=MAX_LAUNCHES)]
    scratch: tuple[Scratch, ...] = ()
    tensor_map: Annotated[tuple[TensorMap, ...], Meta(max_length=MAX_LAUNCHES)] = ()


class _TritonPlan(msgspec.Struct, forbid_unknown_fields=True):
    launch: Annotated[tuple[_TritonLaunch, ...], Meta(min_length=1, max_length=MAX_LAUNCHES)]
    scratch: tuple[Scratch, ...] = ()


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
    cluster = _cluster(launch, grid, names, what)
    arguments = tuple(_argument(argument, names, buffers, what) for argument in launch.args)
    return ResolvedLaunch(
        launch.kernel, grid, block, shared, arguments, triton, cluster, programmatic=launch.programmatic
    )


def _cluster(
    launch: Launch, grid: tuple[int, int, int], names: Mapping[str, Number], what: str
) -> tuple[int, int, int]:
    cluster = _three(launch.cluster, (MAX_CLUSTER,) * 3, names, f"{what}: the cluster")
    blocks = math.prod(cluster)
    if blocks > (MAX_CLUSTER if launch.nonportable_cluster else PORTABLE_CLUSTER):
        allowed = f"; up to {MAX_CLUSTER} take nonportable_cluster = true" if blocks <= MAX_CLUSTER else ""
        raise LaunchPlanError(
            f"{what}: a cluster of {blocks} blocks is over the limit of {PORTABLE_CLUSTER}{allowed}."
        )
    for axis, extent, size in zip("xyz", grid, cluster, strict=True):
        if extent % size:
            raise LaunchPlanError(
                f"{what}: the cluster's {size} blocks in {axis} don't divide the grid's {extent}."
            )
    return cluster


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
    return ResolvedScratch(scratch.name, scratch.dtype, tuple(extents), scratch.zero)


def _resolve_tensor_map(
    written: TensorMap, names: Mapping[str, Number], buffers: Mapping[str, Buffer]
) -> ResolvedTensorMap:
    what = f"The tensor map '{written.name}'"
    if written.tensor not in buffers:
        known = ", ".join(sorted(buffers)) or "none"
        raise LaunchPlanError(f"{what} is of '{written.tensor}', which is no buffer. Buffers: {known}.")
    dtype, own = buffers[written.tensor]
    extents = _axes(written.shape, names, f"{what}: the shape") or own
    if math.prod(extents) > math.prod(own):
        raise LaunchPlanError(
            f"{what} has {math.prod(extents)} elements; '{written.tensor}' has {math.prod(own)}."
        )
    made = ResolvedTensorMap(
        written.name,
        written.tensor,
        dtype,
        extents,
        _axes(written.box, names, f"{what}: the box"),
        _axes(written.element_strides, names, f"{what}: element_strides") or (1,) * len(extents),
        written.swizzle,
        written.interleave,
        written.fill,
        written.tf32,
        written.optional,
    )
    if not made.optional and (reason := refused_by_tma(made)):
        raise LaunchPlanError(f"{what} {reason}.")
    return made


def _axes(extents: tuple[Extent, ...], names: Mapping[str, Number], what: str) -> tuple[int, ...]:
    return tuple(_whole(each, names, what) for each in extents)
