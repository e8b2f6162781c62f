"""Counting with atomics in global memory: each block counts in shared memory first, and adds its counts once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import ExpressionError, evaluate_int
from mctskernel.edits.indexing import guarded
from mctskernel.edits.rewrite import Rewrite, apply, changed, fresh_names, indented
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.coarsening import MULTIPROCESSORS, CoveredIndex, covered_indices
from mctskernel.edits.syntax import (
    calls,
    fresh_name,
    names_in_scope,
    swap,
    text_of,
    walk,
)

BLOCKS = (8 * MULTIPROCESSORS, 2 * MULTIPROCESSORS)
MOST_BINS = 8192
"""As many 4-byte counts as fit 32 KiB, so that several blocks share a multiprocessor."""
COUNTS = ("int", "unsigned", "unsigned int")


@dataclass(frozen=True)
class Counting:
    """Statements whose only effect is `atomicAdd(&counts[bin], amount)`; `array` is the name in that call."""

    index: CoveredIndex
    statements: tuple[Node, ...]
    counts: str
    type: str
    array: Node
    bins: int


def _propose(context: Context) -> Iterable[Edit]:
    for index in covered_indices(context):
        found = _counting(context, index)
        if found is None:
            continue
        for blocks in BLOCKS:
            yield edit(
                Category.PARALLELISM,
                f"count in shared memory in {blocks} blocks of {index.function.name}",
                _private(context, found, blocks),
                rationale=(
                    f"All threads of the grid queue for {found.bins} addresses in the L2; a block's own counts in "
                    "shared memory have only its threads in the queue, and few blocks have few sums to add."
                ),
                expected_effect=f"At most {blocks * found.bins} atomics in global memory.",
                prior=1.0 if blocks == BLOCKS[0] else 0.7,
            )


def _counting(context: Context, index: CoveredIndex) -> Counting | None:
    function, launch = index.function, index.launch
    body = guarded(function)
    if body is None or index.axis != "x" or len(launch.grid) != 1 or len(launch.block) != 1:
        return None
    if len(set(map(str, launch.args))) != len(launch.args):
        return None
    array = _counted_array(body.statements)
    parameter = function.parameter(text_of(array)) if array is not None else None
    if array is None or parameter is None or not parameter.pointer or parameter.type not in COUNTS:
        return None
    uses = sum(text_of(node) == parameter.name for node in walk(function.body, "identifier"))
    if uses != 1 or len(calls(function.body)) != 1:
        return None
    position = function.parameters.index(parameter)
    bins = _elements(context, str(launch.args[position])) if position < len(launch.args) else None
    if bins is None or not 1 <= bins <= MOST_BINS:
        return None
    if set(map(text_of, body.prologue)) != {text_of(index.index.node)}:
        return None
    return Counting(index, body.statements, parameter.name, parameter.type, array, bins)


def _counted_array(statements: Sequence[Node]) -> Node | None:
    """The array's name in `atomicAdd(&array[bin], amount);`, if that is all that happens."""
    acting = [node for node in statements if node.type != "declaration"]
    if len(acting) != 1 or acting[0].type != "expression_statement":
        return None
    call = acting[0].named_children[0]
    arguments = call.child_by_field_name("arguments")
    if call not in calls(acting[0], "atomicAdd") or arguments is None or len(arguments.named_children) != 2:
        return None
    target = arguments.named_children[0]
    element = target.child_by_field_name("argument")
    if target.type != "pointer_expression" or element is None or text_of(target.children[0]) != "&":
        return None
    return element.child_by_field_name("argument") if element.type == "subscript_expression" else None


def _elements(context: Context, buffer: str) -> int | None:
    """How many elements a buffer has, if they are as many at every shape."""
    shapes = [
        tensor.shape for tensor in (*context.task.inputs, *context.task.outputs) if tensor.name == buffer
    ]
    shapes += [entry.shape for entry in context.plan.scratch if entry.name == buffer]
    if len(shapes) != 1:
        return None
    try:
        sizes = {
            prod(evaluate_int(extent, context.task.names(shape, context.kernel)) for extent in shapes[0])
            for shape in context.shapes
        }
    except ExpressionError:
        return None
    return sizes.pop() if len(sizes) == 1 else None


def _private(context: Context, found: Counting, blocks: int) -> str:
    source, function, index = context.source, found.index.function, found.index
    grid = fresh_name(source, "GRID")
    taken = names_in_scope(source, function)
    private, bin_, name = (*fresh_names(taken, f"private_{found.counts}", "bin"), index.index.name)
    bound, block = text_of(index.bound), index.block
    lines = [line for node in found.statements for line in _renamed(context, node, found.array, private)]
    each_bin = f"for (int {bin_} = threadIdx.x; {bin_} < {found.bins}; {bin_} += {block}) {{"
    body = [
        f"__shared__ {found.type} {private}[{found.bins}];",
        each_bin,
        f"    {private}[{bin_}] = 0;",
        "}",
        "__syncthreads();",
        f"for ({index.index.type} {name} = {text_of(index.value)}; {name} < {bound}; "
        f"{name} += gridDim.x * {block}) {{",
        *indented(lines),
        "}",
        "__syncthreads();",
        each_bin,
        f"    if ({private}[{bin_}] != 0) {{",
        f"        atomicAdd(&{found.counts}[{bin_}], {private}[{bin_}]);",
        "    }",
        "}",
    ]
    launch = dataclasses.replace(
        index.launch, grid=(f"min({grid}, ceil_div({index.count}, {index.planned_block}))",)
    )
    launches = tuple(launch if entry is index.launch else entry for entry in context.plan.launches)
    rewrite = Rewrite(
        function,
        body=body,
        plan=dataclasses.replace(context.plan, launches=launches),
        about="Each block counts in shared memory, and adds what it counted.",
        defines={grid: blocks},
    )
    return apply(context, rewrite)


def _renamed(context: Context, node: Node, array: Node, name: str) -> list[str]:
    inside = node.start_byte <= array.start_byte < node.end_byte
    return changed(context.source, node, [swap(array, name)] if inside else [])


RULES = (
    Rule(
        "private-counts",
        Category.PARALLELISM,
        frozenset({Bottleneck.ATOMICS, Bottleneck.L2_BANDWIDTH, Bottleneck.LAUNCH_OVERHEAD}),
        _propose,
        prior=2.0,
    ),
)
