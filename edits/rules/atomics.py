"""Fewer atomic additions: histograms per block in shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.edits import syntax as cu
from mctskernel.edits.device_code import filled
from mctskernel.edits.indexing import distinct_arguments, guarded
from mctskernel.edits.rewrite import Rewrite, apply, changed, with_launch
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.coarsening import MULTIPROCESSORS, CoveredIndex, covered_indices

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


@rule(Category.PARALLELISM, 2.0, "l2_bandwidth atomics launch_overhead")
def private_counts(context: Context) -> Iterable[Proposal]:
    for index in covered_indices(context):
        found = _counting(context, index)
        if found is None:
            continue
        for blocks in BLOCKS:
            yield Proposal(
                f"histogram per block in shared memory ({blocks} blocks){context.where(index.function.name)}",
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
    if not distinct_arguments(launch):
        return None
    array = _counted_array(body.statements)
    parameter = function.parameter(cu.text_of(array)) if array is not None else None
    if array is None or parameter is None or not parameter.pointer or parameter.type not in COUNTS:
        return None
    if cu.uses(function.body, parameter.name) != 1 or len(cu.calls(function.body)) != 1:
        return None
    position = function.parameters.index(parameter)
    bins = _elements(context, str(launch.args[position])) if position < len(launch.args) else None
    if bins is None or not 1 <= bins <= MOST_BINS:
        return None
    if set(map(cu.text_of, body.prologue)) != {cu.text_of(index.index.node)}:
        return None
    return Counting(index, body.statements, parameter.name, parameter.type, array, bins)


def _counted_array(statements: Sequence[Node]) -> Node | None:
    """The array's name in `atomicAdd(&array[bin], amount);`, if that is all that happens."""
    acting = [node for node in statements if node.type != "declaration"]
    if len(acting) != 1 or acting[0].type != "expression_statement":
        return None
    call = acting[0].named_children[0]
    arguments = call.child_by_field_name("arguments")
    if (
        call not in cu.calls(acting[0], "atomicAdd")
        or arguments is None
        or len(arguments.named_children) != 2
    ):
        return None
    target = arguments.named_children[0]
    element = target.child_by_field_name("argument")
    if target.type != "pointer_expression" or element is None or cu.text_of(target.children[0]) != "&":
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
    extents = [context.values(extent) for extent in shapes[0]]
    sizes = {int(prod(each)) for each in zip(*(values for values in extents if values), strict=True)}
    return sizes.pop() if len(sizes) == 1 and all(extents) else None


def _private(context: Context, found: Counting, blocks: int) -> str:
    source, function, index = context.source, found.index.function, found.index
    grid = cu.fresh_name(source, "GRID")
    taken = cu.names_in_scope(source, function)
    private, bin_ = cu.fresh_names(taken, f"private_{found.counts}", "bin")
    holes = {
        "type": found.type,
        "bins": str(found.bins),
        "block": index.block,
        "index_type": index.index.type,
        "index": index.index.name,
        "start": cu.text_of(index.value),
        "bound": cu.text_of(index.bound),
        "statements": [
            line for node in found.statements for line in _renamed(context, node, found.array, private)
        ],
        "counts": found.counts,
    }
    body = filled("private_counts", {"private_counts": private, "bin": bin_}, holes)
    extent = f"min({grid}, ceil_div({index.count}, {index.planned_block}))"
    rewrite = Rewrite(
        function,
        body=body,
        plan=with_launch(context.plan, index.launch, (extent,), index.launch.block),
        about="Each block counts in shared memory, and adds what it counted.",
        defines={grid: blocks},
    )
    return apply(context, rewrite)


def _renamed(context: Context, node: Node, array: Node, name: str) -> list[str]:
    inside = node.start_byte <= array.start_byte < node.end_byte
    return changed(context.source, node, [cu.swap(array, name)] if inside else [])
