"""Block reductions of one element a thread: each thread first adds up many, in strides of the whole grid.

The grid then has a size of its own, and so have the buffer of partial results and the launch that adds them up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Extent, Launch, LaunchPlan
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import (
    code,
    distinct_arguments,
    global_index_axis,
    is_block_extent,
    plan_expression,
    upper_bounds,
)
from mctskernel.edits.reductions import COMBINED, NEUTRAL, is_zero, reduced_value, reductions_of
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names, indented, only_launches
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.warp_reduction import Tree, trees_in
from mctskernel.edits.syntax import (
    Access,
    Declaration,
    Function,
    Loop,
    Replacement,
    accesses,
    calls,
    fresh_name,
    has,
    identifiers,
    indentation,
    names_in_scope,
    squeezed,
    strip_parentheses,
    swap,
    text_of,
    uses,
    walk,
    within,
)

BLOCKS = (1056, 4224)
"""8 and 32 blocks for each of an H100's 132 multiprocessors."""


@dataclass(frozen=True)
class Element:
    """What one thread puts into the reduction: `value` at `index` where that is below `bound`."""

    index: Declaration
    start: Node
    bound: Node
    value: Node


@dataclass(frozen=True)
class PartialSums:
    """A launch whose blocks leave one partial result each in `buffer`, and the launch that reduces those.

    `count` is the place of the number of partial results in the second launch's arguments.
    """

    launch: Launch
    function: Function
    tree: Tree
    element: Element
    buffer: str
    consumer: Launch
    count: int


@rule(
    Category.COARSENING,
    2.0,
    "global_latency shared_throughput bank_conflicts barriers instruction_issue divergence launch_overhead",
)
def strided_block_reduction(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        found = _partial_sums(context, launch, function)
        if found is None:
            continue
        fewest = context.fewest_blocks(launch)
        for blocks in BLOCKS:
            if fewest <= blocks:
                continue
            yield Proposal(
                f"grid-stride reduction with {blocks} blocks{context.where(function.name)}",
                _strided(context, found, blocks),
                rationale=(
                    "A block pays its barriers and its exchange for one element a thread; threads that first gather "
                    "many elements in a register pay them once for all of these."
                ),
                expected_effect=f"{fewest // blocks} times fewer block reductions and partial results.",
                prior=1.0 if blocks == BLOCKS[0] else 0.8,
            )


def _partial_sums(context: Context, launch: Launch, function: Function) -> PartialSums | None:
    trees = trees_in(function)
    if len(trees) != 1 or len(launch.grid) != 1 or len(launch.block) != 1:
        return None
    (tree,) = trees
    element = _element(context, launch, function, tree)
    stored = _stored_partial(function, tree)
    if element is None or stored is None or not distinct_arguments(launch):
        return None
    if uses(function.body, "blockIdx.x") != 2 or any(
        name.startswith("gridDim") for name in identifiers(function.body)
    ):
        return None
    position = next((i for i, p in enumerate(function.parameters) if p.name == stored), len(launch.args))
    buffer = str(launch.args[position]) if position < len(launch.args) else ""
    scratch = [entry for entry in context.plan.scratch if entry.name == buffer]
    users = [entry for entry in context.plan.launches if buffer in map(str, entry.args)]
    if (
        len(scratch) != 1
        or scratch[0].zero
        or len(scratch[0].shape) != 1
        or len(users) != 2
        or users[0] is not launch
    ):
        return None
    if not context.equal(scratch[0].shape[0], launch.grid[0]):
        return None
    count = _count_of(context, users[1], buffer, tree.operation, launch.grid[0])
    return None if count is None else PartialSums(launch, function, tree, element, buffer, users[1], count)


def _element(context: Context, launch: Launch, function: Function, tree: Tree) -> Element | None:
    """The element behind `index < bound ? value : neutral`, if the grid has a thread for each and no more blocks."""
    value = strip_parentheses(tree.value)
    if value.type != "conditional_expression":
        return None
    condition, then = value.child_by_field_name("condition"), value.child_by_field_name("consequence")
    otherwise = value.child_by_field_name("alternative")
    if condition is None or then is None or otherwise is None or calls(condition):
        return None
    neutral = is_zero(otherwise) if tree.operation == "sum" else text_of(otherwise) == NEUTRAL[tree.operation]
    bounds = upper_bounds(condition)
    if not neutral or len(bounds) != 1:
        return None
    ((name, bound),) = bounds.items()
    known = definitions(function)
    declared = [d for d in function.declarations if d.name == name]
    extent = plan_expression(bound, function, launch, context.source)
    if name not in known or extent is None or declared[0].value is None:
        return None
    if global_index_axis(polynomial(known[name], known), launch, context.kernel.macros) != "x":
        return None
    if not context.equal(launch.grid[0], f"ceil_div({extent}, {launch.block[0]})"):
        return None
    outside = [n for n in walk(function.body, "identifier") if text_of(n) == name and not within(n, value)]
    alone = declared[0].alone
    if len(outside) != 1 or not alone or not _is_pure(function, then):
        return None
    return Element(declared[0], declared[0].value, bound, then)


def _is_pure(function: Function, value: Node) -> bool:
    """Whether a value only reads buffers that the kernel doesn't write."""
    written = {access.array for access in function.accesses if access.writes}
    changes = has(value, "assignment_expression", "update_expression", "pointer_expression")
    read = {access.array for access in accesses(value)}
    return not changes and not read & written and not any("sync" in text_of(call) for call in calls(value))


def _stored_partial(function: Function, tree: Tree) -> str | None:
    """The pointer of `if (thread == 0) pointer[blockIdx.x] = tile[0];`, the kernel's only store."""
    stores = [a for a in function.accesses if a.writes and a.array != tree.array.name]
    if len(stores) != 1 or stores[0].reads or len(stores[0].indices) != 1:
        return None
    known = definitions(function)
    assignment = stores[0].node.parent
    value = assignment.child_by_field_name("right") if assignment is not None else None
    if value is None or str(polynomial(stores[0].indices[0], known)) != "blockIdx.x":
        return None
    parameter = function.parameter(stores[0].array)
    is_first = squeezed(value) == f"{tree.array.name}[0]"
    named = uses(function.body, stores[0].array)
    if parameter is None or parameter.type != "float" or not is_first or named != 1:
        return None
    return parameter.name


def _count_of(context: Context, launch: Launch, buffer: str, operation: str, blocks: Extent) -> int | None:
    """The place of the number of partial results among the second launch's arguments, if it only reduces them."""
    function = next((f for entry, f in only_launches(context) if entry is launch), None)
    arguments = [str(argument) for argument in launch.args]
    if function is None or arguments.count(buffer) != 1 or len(set(arguments)) != len(arguments):
        return None
    if len(function.parameters) != len(arguments):
        return None
    name = function.parameters[arguments.index(buffer)].name
    reads = [access for access in function.accesses if access.array == name]
    loops = [loop for loop in function.loops if any(within(read.node, loop.node) for read in reads)]
    if len(reads) != 1 or reads[0].writes or len(loops) != 1 or uses(function.body, name) != 1:
        return None
    (loop,) = loops
    if not _gathers_each((launch, function), loop, reads[0], operation, context.kernel.macros):
        return None
    counts = [i for i, p in enumerate(function.parameters) if p.name == text_of(loop.bound)]
    if len(counts) != 1 or uses(function.body, text_of(loop.bound)) != 1:
        return None
    return counts[0] if context.equal(launch.args[counts[0]], blocks) else None


def _gathers_each(
    consumer: tuple[Launch, Function], loop: Loop, read: Access, operation: str, macros: Mapping[str, int]
) -> bool:
    """Whether a loop reduces the elements themselves, each by one thread of the block."""
    launch, function = consumer
    known = definitions(function)
    found, statements = reductions_of(loop.body), code(loop.body)
    if found is None or [r.operation for r in found] != [operation] or len(statements) != 1:
        return False
    if str(polynomial(read.indices[0], known)) != loop.variable or loop.comparison != "<":
        return False
    assignment = statements[0].named_children[0]
    folded = reduced_value(statements[0], found[0].variable) or assignment.child_by_field_name("right")
    if folded != read.node or str(polynomial(loop.start, known)) != "threadIdx.x":
        return False
    update = loop.node.child_by_field_name("update")
    step = update.child_by_field_name("right") if update is not None else None
    if step is None or len(launch.block) != 1:
        return False
    return is_block_extent(polynomial(step, known), "x", launch.block[0], macros)


def _strided(context: Context, found: PartialSums, blocks: int) -> str:
    source, function, element = context.source, found.function, found.element
    limit = fresh_name(source, "BLOCKS")
    (total,) = fresh_names(names_in_scope(source, function), "total")
    index, operation = element.index.name, found.tree.operation
    value = text_of(element.value)
    added = (
        f"{total} += {value};"
        if operation == "sum"
        else f"{total} = {COMBINED[operation].format(total, value)};"
    )
    stride = f"gridDim.x * {found.launch.block[0]}"
    lines = [
        f"float {total} = {NEUTRAL[operation]};",
        f"for ({element.index.type} {index} = {text_of(element.start)}; {index} < {text_of(element.bound)}; "
        f"{index} += {stride}) {{",
        *indented([added]),
        "}",
    ]
    margin = indentation(source, found.tree.first)
    gathered = "".join(f"{line}\n{margin}" for line in lines)
    first = found.tree.first
    changes = [
        _without_line(source.text.encode(), element.index.node),
        Replacement(first.start_byte, first.start_byte, gathered),
        swap(found.tree.value, total),
    ]
    grid = f"min({limit}, {found.launch.grid[0]})"
    rewrite = Rewrite(
        function,
        plan=_with_grid(context.plan, found, grid),
        about=f"Each thread gathers a share of the elements, then each of {limit} blocks reduces its threads' shares.",
        defines={limit: blocks},
        more=changes,
    )
    return apply(context, rewrite)


def _with_grid(plan: LaunchPlan, found: PartialSums, grid: str) -> LaunchPlan:
    """The plan with another number of blocks, and as many partial results."""

    def changed(launch: Launch) -> Launch:
        if launch is found.launch:
            return dataclasses.replace(launch, grid=(grid,))
        if launch is found.consumer:
            args = tuple(grid if i == found.count else argument for i, argument in enumerate(launch.args))
            return dataclasses.replace(launch, args=args)
        return launch

    scratch = tuple(
        dataclasses.replace(entry, shape=(grid,)) if entry.name == found.buffer else entry
        for entry in plan.scratch
    )
    return LaunchPlan(tuple(changed(launch) for launch in plan.launches), scratch)


def _without_line(data: bytes, node: Node) -> Replacement:
    """Remove a statement, and its line if it has it for itself."""
    start, end = data.rfind(b"\n", 0, node.start_byte) + 1, node.end_byte
    if not data[start : node.start_byte].strip() and data[end : end + 1] == b"\n":
        return Replacement(start, end + 1, "")
    return Replacement(node.start_byte, end, "")
