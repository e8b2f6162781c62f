"""Several elements for each thread: a fixed number of them, or as many as a grid of fixed size leaves.

Both wrap what follows a thread's global index in a loop over several indices. So both need a guard on that
index, a body without barriers and warp exchanges, and a grid that divides the guard's bound by the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Extent, Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import AXES, Guarded, global_index_axis, guarded, plan_expression
from mctskernel.edits.plan_text import ceil_div, with_plan
from mctskernel.edits.rewrite import only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule

ITEMS = (4, 2, 8)
MULTIPROCESSORS = 132
THREADS_PER_MULTIPROCESSOR = 2048
COLLECTIVES = ("__sync", "__shfl", "__ballot", "__any", "__all", "__reduce", "__match", "__activemask")
"""How the names of functions begin that threads of a warp or block must reach together."""


@dataclass(frozen=True)
class CoveredIndex:
    """A thread's index along an axis with enough of them for the plan's `count`; `block` is the block's extent."""

    launch: Launch
    function: cu.Function
    index: cu.Declaration
    value: Node
    axis: str
    count: str
    block: str
    bound: Node
    guard: Node

    @property
    def planned_block(self) -> Extent:
        """The block's extent along the axis in the plan's words."""
        return self.launch.block[AXES.index(self.axis)]


@rule(Category.COARSENING, 0.7, "global_latency instruction_issue integer_pipe tail")
def coarsen_threads(context: Context) -> Iterator[Proposal]:
    """Each thread handles ITEMS elements, a block apart so that accesses stay coalesced."""
    for found in covered_indices(context):
        suffix = "" if len(found.launch.block) == 1 else f"_{found.axis.upper()}"
        name, item = cu.fresh_name(context.source, f"ITEMS{suffix}"), cu.fresh_name(context.source, "item")
        first = f"blockIdx.{found.axis}"
        if cu.has(found.value, "cast_expression"):
            first = f"({found.index.type}){first}"
        value = f"({first} * {name} + {item}) * {found.block} + threadIdx.{found.axis}"
        opening = (
            "#pragma unroll",
            f"for (int {item} = 0; {item} < {name}; ++{item}) {{",
            f"    {cu.text_of(found.index.node).partition('=')[0].rstrip()} = {value};",
        )
        grid = f"ceil_div({found.count}, {found.planned_block} * {name})"
        for items in ITEMS:
            if context.fewest_blocks(found.launch) < items * MULTIPROCESSORS:
                continue
            yield Proposal(
                f"compute {items} elements per thread along {found.axis}{context.where(found.function.name)}",
                _wrapped(context, found, opening, grid, {name: items}),
                rationale="Independent elements in one thread overlap loads and share index arithmetic.",
                expected_effect=f"Up to {items} times as many loads in flight for each warp.",
                prior=1.0 if items == ITEMS[0] else 0.7,
            )


@rule(Category.COARSENING, 0.5, "instruction_issue tail launch_overhead")
def grid_stride_loop(context: Context) -> Iterator[Proposal]:
    """A grid of fixed size whose threads stride over all elements."""
    for found in covered_indices(context):
        if len(found.launch.grid) != 1:
            continue
        threads = context.resolved[0].launches[context.plan.launches.index(found.launch)].threads
        blocks = MULTIPROCESSORS * max(1, THREADS_PER_MULTIPROCESSOR // threads)
        if context.fewest_blocks(found.launch) <= blocks:
            continue
        grid = cu.fresh_name(context.source, "GRID")
        index = found.index.name
        start = f"{found.index.type} {index} = {cu.text_of(found.value)}"
        step = f"{index} += gridDim.{found.axis} * {found.block}"
        opening = (f"for ({start}; {index} < {cu.text_of(found.bound)}; {step}) {{",)
        extent = f"min({grid}, ceil_div({found.count}, {found.planned_block}))"
        yield Proposal(
            f"grid-stride loop with {blocks} blocks{context.where(found.function.name)}",
            _wrapped(context, found, opening, extent, {grid: blocks}),
            rationale=f"{blocks} blocks fill {MULTIPROCESSORS} multiprocessors once; their threads do the "
            "rest without further blocks being started.",
            expected_effect="No blocks to launch after the first wave, and no tail.",
        )


def covered_indices(context: Context) -> Iterator[CoveredIndex]:
    """The guarded global indices of elementwise kernels whose grid is `ceil_div(count, block)`."""
    for launch, function in only_launches(context):
        found = guarded(function)
        if found is None or not _independent(function, found):
            continue
        known = definitions(function)
        for index in function.declarations:
            bound = found.bounds.get(index.name)
            if bound is None or index.value is None or index.name not in known:
                continue
            if not _begins_work(index, found):
                continue
            axis = global_index_axis(polynomial(index.value, known), launch, context.kernel.macros)
            expected = plan_expression(bound, function, launch, context.source)
            if axis is None or expected is None or not _only_here(function, index.value, axis):
                continue
            count, block = _planned_count(launch, axis), _block_in_kernel(context, launch, index.value, axis)
            if count is None or block is None or not context.equal(count, expected):
                continue
            yield CoveredIndex(
                launch, function, index, index.value, axis, count, block, bound=bound, guard=found.guard
            )


def _independent(function: cu.Function, found: Guarded) -> bool:
    """Whether one thread can do several threads' work one after another."""
    if any(declaration.shared for declaration in function.declarations):
        return False
    names = [cu.text_of(call.children[0]) for call in cu.calls(function.body)]
    if any(name.startswith(COLLECTIVES) for name in names):
        return False
    if cu.has(function.body, "asm_statement", "gnu_asm_expression", "goto_statement"):
        return False
    returns = list(cu.walk(function.body, "return_statement"))
    if any(not cu.within(node, found.guard) for node in returns) or len(returns) > 1:
        return False
    # A return that isn't the guard's own would end the thread's other elements too.
    return not any(any(cu.within(node, statement) for node in returns) for statement in found.statements)


def _begins_work(index: cu.Declaration, found: Guarded) -> bool:
    """Whether an index is declared alone before the guard, and no memory is touched between the two."""
    if index.node not in found.prologue or not index.alone:
        return False
    after = found.prologue[found.prologue.index(index.node) + 1 :]
    return not any(cu.has(node, "subscript_expression", "pointer_expression") for node in after)


def _only_here(function: cu.Function, value: Node, axis: str) -> bool:
    """Whether the block's place along an axis makes this index and nothing else."""
    wanted = {f"blockIdx.{axis}", f"gridDim.{axis}"}

    def uses(node: Node) -> list[Node]:
        return [found for found in cu.walk(node, "field_expression") if cu.text_of(found) in wanted]

    return f"threadIdx.{axis}" in cu.identifiers(value) and uses(function.body) == uses(value) != []


def _planned_count(launch: Launch, axis: str) -> str | None:
    """`count` where the grid's extent is `ceil_div(count, block's extent)`."""
    position = AXES.index(axis)
    if position >= min(len(launch.grid), len(launch.block)):
        return None
    divided = ceil_div(launch.grid[position])
    return divided[0] if divided and divided[1] == str(launch.block[position]).strip() else None


def _block_in_kernel(context: Context, launch: Launch, value: Node, axis: str) -> str | None:
    """How the kernel itself can name the block's extent along an axis."""
    if f"blockDim.{axis}" in cu.identifiers(value):
        return f"blockDim.{axis}"
    planned = str(launch.block[AXES.index(axis)])
    return planned if planned.isdigit() or planned in context.kernel.macros else None


def _wrapped(
    context: Context, found: CoveredIndex, opening: tuple[str, ...], grid: str, macro: Mapping[str, int]
) -> str:
    """The source with a loop around the index and what follows it, and the plan with the new extent."""
    source, function = context.source, found.function
    indent = cu.indentation(source, found.index.node)
    end = function.body.end_byte - 1
    changes = [
        cu.swap(found.index.node, f"\n{indent}".join(opening)),
        *_shifted(source.text.encode(), found.index.node.end_byte, end),
        cu.Replacement(end, end, f"{indent}}}\n"),
        cu.define(source, macro),
        *(cu.swap(node, "continue;") for node in cu.walk(found.guard, "return_statement")),
    ]
    position = AXES.index(found.axis)
    extents = tuple(grid if i == position else extent for i, extent in enumerate(found.launch.grid))
    plan = with_launch(context.plan, found.launch, extents, found.launch.block)
    return with_plan(Kernel(cu.replace(source, changes)), plan).source


def _shifted(data: bytes, start: int, end: int) -> Iterator[cu.Replacement]:
    """Four more blanks before every line that starts in a range."""
    position = data.find(b"\n", start, end) + 1
    while position:
        if data[position:end].split(b"\n", 1)[0].strip():
            yield cu.Replacement(position, position, "    ")
        position = data.find(b"\n", position, end) + 1
