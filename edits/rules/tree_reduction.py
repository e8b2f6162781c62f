"""Tree reductions in shared memory: shuffles within warps instead, and many elements a thread before the tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Extent, Launch, LaunchPlan
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import filled
from mctskernel.edits.indexing import (
    ThreadIndex,
    code,
    distinct_arguments,
    is_block_extent,
    thread_indices,
    upper_bounds,
)
from mctskernel.edits.reductions import COMBINED, EXTREMA, NEUTRAL, is_zero, reduced_value, reductions_of
from mctskernel.edits.rewrite import Rewrite, apply, indented, only_launches, without_dead_macros
from mctskernel.edits.rule import Context, Proposal, rule


@dataclass(frozen=True)
class Tree:
    """`shared[thread] = value; barrier; tree over `threads` elements`, after which only shared[0] is read."""

    function: cu.Function
    array: cu.Declaration
    thread: str
    value: Node
    operation: str
    threads: str
    first: Node
    last: Node
    asserts: tuple[Node, ...]


@rule(Category.WARP_PRIMITIVES, 1.5, "shared_throughput bank_conflicts barriers instruction_issue divergence")
def warp_shuffle_reduction(context: Context) -> Iterable[Proposal]:
    trees = [t for f in context.source.functions if f.clean for t in trees_in(f) if _fits(context, t)]
    if not trees:
        return
    changes = [change for tree in trees for change in _with_shuffles(context, tree)]
    yield Proposal(
        "reduce with warp shuffles",
        without_dead_macros(context.source, cu.replace(context.source, changes)),
        rationale=(
            "A tree in shared memory takes a barrier and two shared accesses a level; lanes of a warp can "
            "exchange registers instead, so that one barrier remains between the warps and the block."
        ),
        expected_effect="2 barriers a reduction instead of one a level.",
    )


def trees_in(function: cu.Function) -> list[Tree]:
    """The tree reductions of a function."""
    shared = {d.name: d for d in function.declarations if d.shared and len(d.extents) == 1}
    known = definitions(function)
    found = []
    for loop in cu.walk(function.body, "for_statement"):
        siblings = code(loop.parent) if loop.parent is not None else []
        siblings = [node for node in siblings if node.type != "preproc_call"]
        if loop not in siblings or siblings.index(loop) < 2:
            continue
        store, barrier = siblings[siblings.index(loop) - 2 : siblings.index(loop)]
        if cu.text_of(barrier).replace(" ", "") != "__syncthreads();":
            continue
        tree = _tree(function, shared, known, store, loop)
        if tree is not None:
            found.append(tree)
    return found


def _tree(
    function: cu.Function,
    shared: Mapping[str, cu.Declaration],
    known: Mapping[str, Node],
    store: Node,
    loop: Node,
) -> Tree | None:
    parts = cu.assignment(store)
    if parts is None:
        return None
    left, _, value = parts
    targets = cu.accesses(left)
    if len(targets) != 1 or targets[0].array not in shared or targets[0].reads:
        return None
    array, index = shared[targets[0].array], targets[0].indices
    if len(index) != 1 or str(polynomial(index[0], known)) != "threadIdx.x" or array.type != "float":
        return None
    if any(access.array == array.name for access in cu.accesses(value)):
        return None
    step = _levels(loop, cu.text_of(index[0]), array.name)
    if step is None or not _only_first_is_read(function, array.name, store, loop):
        return None
    threads, operation = step
    asserts = [
        node
        for node in cu.walk(function.body, "static_assert_declaration")
        if cu.text_of(node).replace(" ", "").startswith(f"static_assert(({threads}&({threads}-1))==0")
    ]
    return Tree(function, array, cu.text_of(index[0]), value, operation, threads, store, loop, tuple(asserts))


def _levels(loop: Node, thread: str, array: str) -> tuple[str, str] | None:
    """The number of elements and the operation of a tree's loop, whichever way its strides go."""
    header = [loop.child_by_field_name(name) for name in ("initializer", "condition", "update")]
    body = loop.child_by_field_name("body")
    if body is None or any(part is None for part in header):
        return None
    statements = code(body)
    if len(statements) != 2 or cu.text_of(statements[1]).replace(" ", "") != "__syncthreads();":
        return None
    step = statements[0]
    then, clause = step.child_by_field_name("consequence"), step.child_by_field_name("condition")
    if step.type != "if_statement" or then is None or clause is None or len(code(then)) != 1:
        return None
    initializer, condition, update = (cu.squeezed(part) for part in header if part is not None)
    declarator = header[0].child_by_field_name("declarator") if header[0] is not None else None
    variable = cu.text_of(next(cu.walk(declarator, "identifier"))) if declarator is not None else ""
    guard = cu.squeezed(clause)
    thread_text = "".join(thread.split())
    down = condition in {f"{variable}>0", f"{variable}>=1"} and update in {
        f"{variable}/=2",
        f"{variable}>>=1",
        f"{variable}={variable}/2",
        f"{variable}={variable}>>1",
    }
    up = update in {f"{variable}*=2", f"{variable}<<=1", f"{variable}={variable}*2"}
    start = initializer.rstrip(";").partition("=")[2]
    if down and guard == f"({thread_text}<{variable})" and start.endswith(("/2", ">>1")):
        threads = start.removesuffix("/2").removesuffix(">>1")
    elif (
        up
        and start == "1"
        and condition.startswith(f"{variable}<")
        and guard in {f"({thread_text}%(2*{variable})==0)", f"({thread_text}%({variable}*2)==0)"}
    ):
        threads = condition.removeprefix(f"{variable}<")
    else:
        return None
    operation = _combination(code(then)[0], array, thread_text, variable)
    return (threads.strip("()"), operation) if operation is not None else None


def _combination(statement: Node, array: str, thread: str, stride: str) -> str | None:
    """The operation of `array[thread] = op(array[thread], array[thread + stride])`."""
    text = cu.squeezed(statement).rstrip(";")
    own = f"{array}[{thread}]"
    for other in (f"{array}[{thread}+{stride}]", f"{array}[{stride}+{thread}]"):
        if text == f"{own}+={other}":
            return "sum"
        for a, b in ((own, other), (other, own)):
            if text == f"{own}={a}+{b}":
                return "sum"
            for operation, functions in EXTREMA.items():
                if text in {f"{own}={function}({a},{b})" for function in functions}:
                    return operation
    return None


def _only_first_is_read(function: cu.Function, array: str, store: Node, loop: Node) -> bool:
    def matters(access: cu.Access) -> bool:
        inside = cu.within(access.node, store) or cu.within(access.node, loop)
        return access.array == array and not inside

    rest = [access for access in function.accesses if matters(access)]
    counted = sum(access.array == array for access in function.accesses)
    return cu.uses(function.body, array) == counted + 1 and all(
        not access.writes and cu.text_of(access.indices[0]) == "0" for access in rest
    )


def _fits(context: Context, tree: Tree) -> bool:
    """Whether every launch that reaches the tree has exactly its threads, and a whole number of warps."""
    launched = [
        launch
        for launch, function in context.launched
        if function.node == tree.function.node or cu.calls(function.body, tree.function.name)
    ]
    if not launched or any(len(launch.block) != 1 for launch in launched):
        return False
    blocks = {context.constant(launch.block[0]) for launch in launched}
    block = blocks.pop()
    if blocks or block is None or block % 32:
        return False
    return tree.threads == "blockDim.x" or context.constant(tree.threads) == block


def _with_shuffles(context: Context, tree: Tree) -> list[cu.Replacement]:
    source, array, thread = context.source, tree.array.name, tree.thread
    taken = cu.names_in_scope(source, tree.function)
    lane, offset = cu.fresh_names(taken, f"lane_{tree.operation}", "offset")
    shuffled = f"__shfl_down_sync(0xffffffff, {lane}, {offset})"
    warps = f"{tree.threads} / 32"
    holes = {
        "value": cu.text_of(tree.value),
        "combined": COMBINED[tree.operation].format(lane, shuffled),
        "thread": thread,
        "array": array,
        "warps": warps,
        "neutral": NEUTRAL[tree.operation],
    }
    # Shuffles order no memory, and every lane may have read the first element: hence the last __syncwarp.
    lines = filled("warp_shuffles", {"lane": lane, "offset": offset}, holes)
    margin = cu.indentation(source, tree.first)
    text = f"\n{margin}".join(lines)
    changes = [cu.Replacement(tree.first.start_byte, tree.last.end_byte, text)]
    extent = tree.array.extents[0]
    if extent is not None and not tree.array.extern and cu.text_of(extent) == tree.threads:
        changes.append(cu.swap(extent, warps))
    whole = f'static_assert({tree.threads} % 32 == 0, "{tree.threads} must be a multiple of 32");'
    changes += [cu.swap(node, whole) for node in tree.asserts]
    if not tree.asserts and tree.threads in source.macro_names:
        changes.append(cu.Replacement(tree.first.start_byte, tree.first.start_byte, f"{whole}\n{margin}"))
    return changes


BLOCKS = (1056, 4224)
"""8 and 32 blocks for each of an H100's 132 multiprocessors."""


@dataclass(frozen=True)
class Element:
    """What one thread puts into the reduction: `value` at `index` where that is below its bound."""

    index: ThreadIndex
    value: Node


@dataclass(frozen=True)
class PartialSums:
    """A launch whose blocks leave one partial result each in `buffer`, and the launch that reduces those.

    `count` is the place of the number of partial results in the second launch's arguments.
    """

    launch: Launch
    function: cu.Function
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


def _partial_sums(context: Context, launch: Launch, function: cu.Function) -> PartialSums | None:
    trees = trees_in(function)
    if len(trees) != 1 or len(launch.grid) != 1 or len(launch.block) != 1:
        return None
    (tree,) = trees
    element = _element(context, launch, function, tree)
    stored = _stored_partial(function, tree)
    if element is None or stored is None or not distinct_arguments(launch):
        return None
    if cu.uses(function.body, "blockIdx.x") != 2 or any(
        name.startswith("gridDim") for name in cu.identifiers(function.body)
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


def _element(context: Context, launch: Launch, function: cu.Function, tree: Tree) -> Element | None:
    """The element behind `index < bound ? value : neutral`, if the grid has a thread for each and no more blocks."""
    value = cu.strip_parentheses(tree.value)
    if value.type != "conditional_expression":
        return None
    condition, then = value.child_by_field_name("condition"), value.child_by_field_name("consequence")
    otherwise = value.child_by_field_name("alternative")
    if condition is None or then is None or otherwise is None or cu.calls(condition):
        return None
    neutral = (
        is_zero(otherwise) if tree.operation == "sum" else cu.text_of(otherwise) == NEUTRAL[tree.operation]
    )
    bounds = upper_bounds(condition)
    if not neutral or len(bounds) != 1:
        return None
    (index, *_) = thread_indices(context, launch, function, bounds) or (None,)
    if index is None or index.axis != "x":
        return None
    if not context.equal(launch.grid[0], f"ceil_div({index.extent}, {launch.block[0]})"):
        return None
    name = index.name
    outside = [
        n for n in cu.walk(function.body, "identifier") if cu.text_of(n) == name and not cu.within(n, value)
    ]
    if len(outside) != 1 or not index.declaration.alone or not _is_pure(function, then):
        return None
    return Element(index, then)


def _is_pure(function: cu.Function, value: Node) -> bool:
    """Whether a value only reads buffers that the kernel doesn't write."""
    written = {access.array for access in function.accesses if access.writes}
    changes = cu.has(value, "assignment_expression", "update_expression", "pointer_expression")
    read = {access.array for access in cu.accesses(value)}
    return (
        not changes and not read & written and not any("sync" in cu.text_of(call) for call in cu.calls(value))
    )


def _stored_partial(function: cu.Function, tree: Tree) -> str | None:
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
    is_first = cu.squeezed(value) == f"{tree.array.name}[0]"
    named = cu.uses(function.body, stores[0].array)
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
    loops = [loop for loop in function.loops if any(cu.within(read.node, loop.node) for read in reads)]
    if len(reads) != 1 or reads[0].writes or len(loops) != 1 or cu.uses(function.body, name) != 1:
        return None
    (loop,) = loops
    if not _gathers_each((launch, function), loop, reads[0], operation, context.kernel.macros):
        return None
    counts = [i for i, p in enumerate(function.parameters) if p.name == cu.text_of(loop.bound)]
    if len(counts) != 1 or cu.uses(function.body, cu.text_of(loop.bound)) != 1:
        return None
    return counts[0] if context.equal(launch.args[counts[0]], blocks) else None


def _gathers_each(
    consumer: tuple[Launch, cu.Function],
    loop: cu.Loop,
    read: cu.Access,
    operation: str,
    macros: Mapping[str, int],
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
    limit = cu.fresh_name(source, "BLOCKS")
    (total,) = cu.fresh_names(cu.names_in_scope(source, function), "total")
    index, operation = element.index.name, found.tree.operation
    value = cu.text_of(element.value)
    added = (
        f"{total} += {value};"
        if operation == "sum"
        else f"{total} = {COMBINED[operation].format(total, value)};"
    )
    stride = f"gridDim.x * {found.launch.block[0]}"
    lines = [
        f"float {total} = {NEUTRAL[operation]};",
        f"for ({element.index.type} {index} = {cu.text_of(element.index.value)}; {index} < {element.index.bound}; "
        f"{index} += {stride}) {{",
        *indented([added]),
        "}",
    ]
    margin = cu.indentation(source, found.tree.first)
    gathered = "".join(f"{line}\n{margin}" for line in lines)
    first = found.tree.first
    changes = [
        _without_line(source.text.encode(), element.index.declaration.node),
        cu.Replacement(first.start_byte, first.start_byte, gathered),
        cu.swap(found.tree.value, total),
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
    return dataclasses.replace(plan, launches=tuple(changed(each) for each in plan.launches), scratch=scratch)


def _without_line(data: bytes, node: Node) -> cu.Replacement:
    """Remove a statement, and its line if it has it for itself."""
    start, end = data.rfind(b"\n", 0, node.start_byte) + 1, node.end_byte
    if not data[start : node.start_byte].strip() and data[end : end + 1] == b"\n":
        return cu.Replacement(start, end + 1, "")
    return cu.Replacement(node.start_byte, end, "")
