"""Tuning of Triton kernels: how large tiles are, and other block sizes, numbers of warps and pipeline stages.

A constant may be a fact of the problem (the size of a quantisation group) as well as a choice. It counts as a choice
where the plan passes it to a constexpr parameter that the code uses only as the size of a block: as the end of an
`arange`, the step of a loop, an extent of a new tensor, or what a program's number is multiplied by; and where a loop
steps by it or the grid is divided by it, so that all of the data is covered whatever its value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod

from mctskernel.core.edit import Category, Factor
from mctskernel.core.expression import names_in
from mctskernel.core.launch_plan import WARP_THREADS, LaunchPlanError, ResolvedOptions, resolve_options
from mctskernel.edits.rule import Proposal
from mctskernel.edits.syntax import Constant, Replacement
from mctskernel.edits.triton import module as py

SMALLEST_DOT = 16  # the least extent of a tile that `tl.dot` multiplies

ELEMENTS_PER_THREAD = 0.5, 128
"""Fewer leave most threads idle; more don't fit into the 255 registers that a thread may have."""

MOST_SUMS = 32
"""Sums of exact products of 32-bit floats for each thread: more of them take the compiler many seconds."""

LARGEST_TILE = 1 << 16


@dataclass(frozen=True)
class Tiles:
    """What a function's blocks are made of.

    `sizes` are the parameters that are used as sizes of blocks and as nothing else; `shapes` the extents of its
    tiles, by name, as far as it makes them itself.
    """

    sizes: frozenset[str]
    shapes: frozenset[tuple[str, ...]]
    multiplied: bool

    def largest(self, values: Mapping[str, int]) -> int:
        """Elements of the largest tile; an extent that isn't known counts as 1."""
        return max((prod(values.get(name, 1) for name in shape) for shape in self.shapes), default=1)


@lru_cache(maxsize=64)
def tiles_of(function: ast.FunctionDef) -> Tiles:
    """The tiles of a function. Ranges along two axes are taken to meet in one tile where no new tensor says more."""
    uses, sizes = dict[str, int](), dict[str, int]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            uses[node.id] = uses.get(node.id, 0) + 1
        for name in _sizes(node):
            sizes[name] = sizes.get(name, 0) + 1
    alone = frozenset(name for name, count in sizes.items() if uses[name] == count)
    return Tiles(alone, frozenset(_shapes(function)), any(True for _ in py.calls(function, "dot")))


def is_sensible(
    context: py.TritonContext,
    launched: py.LaunchedFunction,
    constants: Mapping[str, int] | None = None,
    *,
    warps: int | None = None,
    rows: int = 1,
) -> bool:
    """Whether threads get a sensible number of elements at the first search shape, or none worse than before."""
    options, before = (_options(context, launched, each) for each in (constants or {}, {}))
    if options is None or before is None:
        return False
    tiles = tiles_of(launched.function)
    values = _values(options)
    now = rows * tiles.largest(values) / (WARP_THREADS * (warps or options.num_warps))
    then = tiles.largest(_values(before)) / (WARP_THREADS * before.num_warps)
    least, most = ELEMENTS_PER_THREAD
    most = MOST_SUMS if tiles.multiplied and _multiplies_exactly(context, launched.function) else most
    if (now > most and now > then) or (now < least and now < then):
        return False
    if tiles.multiplied and any(values.get(name, SMALLEST_DOT) < SMALLEST_DOT for name in tiles.sizes):
        return False
    return rows * tiles.largest(values) <= LARGEST_TILE


def _multiplies_exactly(context: py.TritonContext, function: ast.FunctionDef) -> bool:
    """Whether tiles are multiplied as 32-bit floats without TF32, as far as their source says so."""
    if not any(tensor.dtype == "float32" for tensor in context.task.inputs):
        return False
    text = ast.unparse(function)
    return "ALLOW_TF32: tl.constexpr = False" in text or "allow_tf32=False" in text or "'ieee'" in text


def _options(
    context: py.TritonContext, launched: py.LaunchedFunction, constants: Mapping[str, int]
) -> ResolvedOptions | None:
    launch = launched.launch
    names = {**context.kernel.macros, **constants, **context.task.scalars, **context.shapes[0]}
    try:
        return resolve_options(launch.triton, names, launch.kernel) if launch.triton else None
    except LaunchPlanError:
        return None


def _values(options: ResolvedOptions) -> dict[str, int]:
    return {name: int(value) for name, value in options.constexprs}


def _sizes(node: ast.AST) -> Iterator[str]:
    """The names that a node uses directly as sizes of blocks, or to ask whether blocks of their size fit."""
    match node:
        case (
            ast.Call(
                func=ast.Attribute(
                    attr="arange" | "cdiv" | "broadcast_to" | "multiple_of" | "max_contiguous"
                ),
                args=[_, size],
            )
            | ast.Call(func=ast.Attribute(attr="zeros" | "full"), args=[size, *_])
            | ast.BinOp(op=ast.Mod(), right=size)
            | ast.Compare(comparators=[size])
            | ast.For(iter=ast.Call(args=[_, _, ast.UnaryOp(operand=size) | size]))
            | ast.AugAssign(value=size)
            | ast.BinOp(left=size, op=ast.Sub(), right=ast.Constant(value=1))
        ):
            yield from _names(size)
        case ast.BinOp(
            left=ast.BinOp(left=ast.BinOp(right=size)), op=ast.FloorDiv(), right=ast.Name(id=name)
        ):
            if ast.unparse(node).endswith(f" + {name} - 1) // {name}"):
                yield from (*_names(size), name)  # how many blocks
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from (*_names(left), *_names(right))


def _names(node: ast.expr) -> Iterator[str]:
    """A name, or those in a shape."""
    for each in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
        if isinstance(each, ast.Name):
            yield each.id


def _shapes(function: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    ranges = {
        call.args[1].id
        for call in py.calls(function, "arange")
        if len(call.args) == 2 and isinstance(call.args[1], ast.Name)
    }
    yield from ((name,) for name in ranges)
    made = list(py.calls(function, "zeros", "full"))
    for call in made:
        match call.args:
            case [ast.List(elts=extents) | ast.Tuple(elts=extents), *_]:
                yield tuple(extent.id for extent in extents if isinstance(extent, ast.Name))
    if not made:
        subscripts = [node for node in ast.walk(function) if isinstance(node, ast.Subscript)]
        named = {name.id for each in subscripts for name in ast.walk(each) if isinstance(name, ast.Name)}
        yield tuple(sorted(named & ranges))


WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4, 5)
BLOCKS_RELIEVE = (
    "l2_bandwidth l1_throughput uncoalesced_access global_latency shared_throughput "
    "barriers instruction_issue fp32_pipe low_occupancy too_few_blocks tail spills"
)


@py.rule(Category.TUNING, 1.0, BLOCKS_RELIEVE)
def block_sizes(context: py.TritonContext) -> Iterator[Proposal]:
    """Larger and smaller blocks, one extent at a time."""
    for constant in block_constants(context):
        for factor, prior in ((2.0, 1.0), (4.0, 1.0), (8.0, 0.7), (0.5, 0.7), (0.25, 0.4)):
            yield from _set(context, {constant: constant.value * factor}, prior=prior)


@py.rule(Category.TUNING, 1.0, BLOCKS_RELIEVE)
def block_shapes(context: py.TritonContext) -> Iterator[Proposal]:
    """Several extents at once: all of them larger or smaller, or one for another."""
    constants = block_constants(context)
    for first, second in combinations(constants, 2):
        for up, down, prior in ((2.0, 2.0, 1.0), (4.0, 4.0, 0.8), (2.0, 0.5, 0.5), (0.5, 2.0, 0.5)):
            yield from _set(context, {first: first.value * up, second: second.value * down}, prior=prior)
    if len(constants) > 2:
        for factor, prior in ((2.0, 1.0), (4.0, 0.8)):
            yield from _set(context, {each: each.value * factor for each in constants}, prior=prior)


@py.rule(Category.LAUNCH, 0.8, "global_latency barriers low_occupancy too_few_blocks spills")
def warps(context: py.TritonContext) -> Iterator[Proposal]:
    for launched in context.launched:
        before = launched.options.num_warps
        if before not in WARPS or _is_trifle(context, launched):
            continue
        for warps in WARPS:
            factor = warps / int(before)
            if factor in {0.25, 0.5, 2.0, 4.0} and is_sensible(context, launched, warps=warps):
                yield Proposal(
                    f"set num_warps={warps}{context.where(launched.launch.kernel)}",
                    context.written([], context.with_options(launched.index, num_warps=warps)),
                    rationale="A program's elements are spread over its warps: more of them hold fewer registers "
                    "each and hide more latency, fewer of them exchange less in reductions.",
                    expected_effect="Another balance of registers, latency and exchange.",
                    prior=1.0 if factor in {0.5, 2.0} else 0.5,
                    factors=_option(launched, "num_warps", warps),
                )


@py.rule(Category.ASYNC_COPY, 0.6, "global_latency barriers tensor_pipe")
def stages(context: py.TritonContext) -> Iterator[Proposal]:
    """More or fewer tiles in flight, where the compiler pipelines a loop: one that multiplies tiles."""
    for launched in context.launched:
        before = launched.options.num_stages
        loops = [node for node in ast.walk(launched.function) if isinstance(node, ast.For)]
        if before not in STAGES or not any(True for loop in loops for _ in py.calls(loop, "dot")):
            continue
        for stages in STAGES:
            if abs(stages - int(before)) in {1, 2}:
                yield Proposal(
                    f"set num_stages={stages}{context.where(launched.launch.kernel)}",
                    context.written([], context.with_options(launched.index, num_stages=stages)),
                    rationale="Tiles of later iterations are copied to shared memory while earlier ones are "
                    "multiplied.",
                    expected_effect="Latency hidden, for shared memory.",
                    prior=1.0 if stages > int(before) else 0.5,
                    factors=_option(launched, "num_stages", stages),
                )


def block_constants(context: py.TritonContext) -> list[Constant]:
    """The constants that are sizes of blocks, which a loop or the grid covers the data with, in order."""
    return [
        constant
        for constant in context.module.constants
        if constant.value & (constant.value - 1) == 0 and _is_block_size(context, constant.name)
    ]


def _is_block_size(context: py.TritonContext, name: str) -> bool:
    """Whether the plan makes nothing of a constant but blocks, and what it divides by them."""
    uses = [
        (launched, parameter, value)
        for launched in context.launched
        for parameter, value in launched.constexprs.items()
        if name in names_in(value)
    ]
    if not uses or len(context.launched) != len(context.plan.launches):
        return False
    if any(
        name in py.names_read(function) and name not in py.parameters(function)
        for function in context.module.functions.values()
    ):
        return False
    return all(
        value == name
        and parameter in tiles_of(launched.function).sizes
        and (_is_step(launched.function, parameter) or name in launched.grid_names)
        for launched, parameter, value in uses
    )


def _is_trifle(context: py.TritonContext, launched: py.LaunchedFunction) -> bool:
    """Whether a launch is one program without a loop, whose time is that of the launch itself."""
    loops = any(isinstance(node, ast.For | ast.While) for node in ast.walk(launched.function))
    return not loops and context.resolved[0].launches[launched.index].blocks == 1


def _is_step(function: ast.FunctionDef, name: str) -> bool:
    """Whether a loop goes on by a parameter, or counts its blocks: it covers what it must whatever the size."""
    loops = (node for node in ast.walk(function) if isinstance(node, ast.For))
    ranges = (loop.iter for loop in loops if isinstance(loop.iter, ast.Call))
    steps = [each.args[2] for each in ranges if len(each.args) == 3]
    counts = [call.args[1] for call in py.calls(function, "cdiv") if len(call.args) == 2]
    return any(name in py.names_read(each) for each in (*steps, *counts))


def _set(context: py.TritonContext, values: Mapping[Constant, float], *, prior: float) -> Iterator[Proposal]:
    """The edit, unless it makes blocks that are too small, or too large for their warps."""
    if any(not value.is_integer() or value < 1 for value in map(float, values.values())):
        return
    texts = [Replacement(constant.start, constant.end, str(int(value))) for constant, value in values.items()]
    constants = {constant.name: int(value) for constant, value in values.items()}
    if not all(is_sensible(context, launched, constants) for launched in context.launched):
        return
    yield Proposal(
        ", ".join(f"{constant.name} {constant.value} -> {int(value)}" for constant, value in values.items()),
        context.written(texts),
        rationale="Larger blocks load more at once and reuse more of it; smaller ones hold fewer registers "
        "and make more programs.",
        expected_effect="Another balance of reuse, parallelism and registers.",
        prior=prior,
        factors=tuple(Factor(name, value) for name, value in constants.items()),
    )


def _option(launched: py.LaunchedFunction, name: str, value: int) -> tuple[Factor, ...]:
    """What a launch option is called among the things that edits decide."""
    return (Factor(f"{launched.launch.kernel}.{name}", value),)
