"""Tree reductions in shared memory: shuffles within warps instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import filled
from mctskernel.edits.indexing import code
from mctskernel.edits.reductions import COMBINED, EXTREMA, NEUTRAL
from mctskernel.edits.rewrite import without_dead_macros
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
    shared = {d.name: d for d in function.declarations if d.shared and len(d.extents) == 1}
    known = definitions(function)
    found = []
    for loop in cu.walk(function.body, "for_statement"):
        siblings = code(loop.parent) if loop.parent is not None else []
        siblings = [node for node in siblings if node.type != "preproc_call"]
        if loop not in siblings or siblings.index(loop) < 2:
            continue
        store, barrier = siblings[siblings.index(loop) - 2 : siblings.index(loop)]
        tree = _tree(function, shared, known, store, loop)
        if tree is not None and cu.squeezed(barrier) == "__syncthreads();":
            found.append(tree)
    return found


def _tree(
    function: cu.Function,
    shared: Mapping[str, cu.Declaration],
    known: Mapping[str, Node],
    store: Node,
    loop: Node,
) -> Tree | None:
    left, _, value = cu.assignment(store) or (store, "", store)
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
        if cu.squeezed(node).startswith(f"static_assert(({threads}&({threads}-1))==0")
    ]
    return Tree(function, array, cu.text_of(index[0]), value, operation, threads, store, loop, tuple(asserts))


def _levels(loop: Node, thread: str, array: str) -> tuple[str, str] | None:
    """The number of elements and the operation of a tree's loop, whichever way its strides go."""
    header = [cu.field(loop, name) for name in ("initializer", "condition", "update")]
    statements = code(cu.field(loop, "body"))
    if len(statements) != 2 or cu.squeezed(statements[1]) != "__syncthreads();":
        return None
    step, then = statements[0], code(cu.field(statements[0], "consequence"))
    if step.type != "if_statement" or len(then) != 1:
        return None
    initializer, condition, update = map(cu.squeezed, header)
    variable = cu.text_of(next(cu.walk(cu.field(header[0], "declarator"), "identifier"), loop))
    guard = cu.squeezed(cu.field(step, "condition"))
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
    operation = _combination(then[0], array, thread_text, variable)
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
    # Shuffles order no memory, and every lane may have read the first element: hence the last __syncwarp.
    text = filled(
        "warp_shuffles",
        lane=lane,
        offset=offset,
        value=cu.text_of(tree.value),
        combined=COMBINED[tree.operation].format(lane, shuffled),
        thread=thread,
        array=array,
        warps=warps,
        neutral=NEUTRAL[tree.operation],
    )
    margin = cu.indentation(source, tree.first)
    text = f"\n{margin}".join(text.splitlines())
    changes = [cu.Replacement(tree.first.start_byte, tree.last.end_byte, text)]
    extent = tree.array.extents[0]
    if extent is not None and not tree.array.extern and cu.text_of(extent) == tree.threads:
        changes.append(cu.swap(extent, warps))
    whole = f'static_assert({tree.threads} % 32 == 0, "{tree.threads} must be a multiple of 32");'
    changes += [cu.swap(node, whole) for node in tree.asserts]
    if not tree.asserts and tree.threads in source.macro_names:
        changes.append(cu.Replacement(tree.first.start_byte, tree.first.start_byte, f"{whole}\n{margin}"))
    return changes
