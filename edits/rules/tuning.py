"""Other values for the macros that choose block sizes, tile sizes, items per thread and unroll factors.

A macro may be a fact of the problem (a stencil's radius) as well as a choice. It counts as a choice only where the code
shows that any value will do: the launch plan makes blocks of it, divides the grid by it or makes the grid of it, or it
is an unroll factor, or a loop steps by it over data that a block loads together, or an assertion gives it bounds.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping

from tree_sitter import Node

from mctskernel.core.edit import Category, Factor
from mctskernel.core.expression import Number, names_in
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import WARP_THREADS, Extent, LaunchPlanError
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.plan_text import is_or_caps, only_divides
from mctskernel.edits.rule import Context, Proposal, constant, rule

REGISTERS_PER_BLOCK = 1 << 16
LARGEST_TILE = 256
LARGEST_GRID = 1 << 16


@rule(Category.TUNING, 0.5, "barriers too_few_blocks tail")
def smaller_blocks(context: Context) -> Iterator[Proposal]:
    why = "Smaller blocks are more blocks to spread over the multiprocessors, and their barriers wait for fewer warps."
    effect = "More blocks, shorter tail, cheaper barriers."
    for macro in block_macros(context):
        for factor, prior in ((2, 1.0), (4, 0.7), (8, 0.4)):
            yield from _set(context, {macro: macro.value / factor}, why, effect, prior)


@rule(Category.TUNING, 0.5, "l2_bandwidth low_occupancy atomics")
def larger_blocks(context: Context) -> Iterator[Proposal]:
    why = "Larger blocks keep more warps resident and share more among them."
    effect = "More warps to hide latency, more reuse within a block."
    for macro in block_macros(context):
        for factor, prior in ((2, 1.0), (4, 0.7)):
            yield from _set(context, {macro: macro.value * factor}, why, effect, prior)


@rule(Category.TUNING, 0.5, "l1_throughput uncoalesced_access")
def reshaped_blocks(context: Context) -> Iterator[Proposal]:
    by_name = {macro.name: macro for macro in block_macros(context)}
    shapes = {tuple(map(str, launch.block[:2])) for launch in context.plan.launches if len(launch.block) > 1}
    for x_name, y_name in sorted(shapes):
        x, y = by_name.get(x_name), by_name.get(y_name)
        if x is None or y is None or x is y:
            continue
        for longer, shorter, factor in ((x, y, 2), (x, y, 4), (x, y, 8), (y, x, 2), (y, x, 4)):
            values = {longer: longer.value * factor, shorter: shorter.value / factor}
            yield from _set(
                context,
                values,
                f"A warp then covers {min(WARP_THREADS, values[x]):.0f} neighbours in x instead of "
                f"{min(WARP_THREADS, x.value)}, with as many threads in a block.",
                "Another number of sectors a request, the same parallelism.",
                1.0 / factor**0.5,
            )


@rule(
    Category.TUNING,
    0.6,
    "l2_bandwidth l1_throughput global_latency shared_throughput barriers "
    "instruction_issue fp32_pipe low_occupancy tail spills",
)
def items_and_tiles(context: Context) -> Iterator[Proposal]:
    macros = [macro for macro in context.source.integer_macros if _is_tile(context, macro.name)]
    for macro in macros:
        yield from _neighbours(
            context, macro, LARGEST_TILE, "Tiles trade reuse for parallelism and registers."
        )
    for first, second in itertools.combinations(macros, 2):
        yield from _together(context, first, second, 2.0)
        yield from _together(context, first, second, 0.5)


@rule(Category.TUNING, 0.4, "low_occupancy too_few_blocks tail")
def grid_size(context: Context) -> Iterator[Proposal]:
    """More or fewer blocks, where threads stride over what a fixed grid leaves."""
    for macro in context.source.integer_macros:
        if _in_grid(context, macro.name, is_or_caps) and not _in_blocks(context, macro.name):
            yield from _neighbours(
                context, macro, LARGEST_GRID, "A grid that fills the device once starts no block late."
            )


def _neighbours(context: Context, macro: cu.Constant, largest: int, why: str) -> Iterator[Proposal]:
    effect = "Another balance of parallelism, reuse and registers."
    for value, prior in _values_near(context, macro):
        if value <= largest:
            yield from _set(context, {macro: value}, why, effect, prior)


def _values_near(context: Context, macro: cu.Constant) -> list[tuple[float, float]]:
    """Other values with their priors: those that an assertion lists, nearest first, else by powers of two."""
    listed = sorted(_listed(context, macro.name) - {macro.value}, key=lambda each: abs(each - macro.value))
    if listed:
        return [(value, 1.0 if place < 2 else 0.5) for place, value in enumerate(listed)]
    return [
        (macro.value * factor, prior) for factor, prior in ((2.0, 1.0), (0.5, 1.0), (4.0, 0.5), (0.25, 0.5))
    ]


def _together(context: Context, first: cu.Constant, second: cu.Constant, factor: float) -> Iterator[Proposal]:
    """Two sizes scaled at once, where that leaves every block as it is."""
    values = {macro: macro.value * factor for macro in (first, second)}
    if any(value % 1 for value in values.values()) or max(values.values()) > LARGEST_TILE:
        return
    if _threads(context, values) == _threads(context, {}):
        why = "Each thread gets another share of a larger or smaller tile, with as many threads."
        yield from _set(context, values, why, "Another number of operations for each value loaded.", 0.8)


def _set(
    context: Context, wanted: Mapping[cu.Constant, float], why: str, effect: str, prior: float
) -> Iterator[Proposal]:
    """The edit, unless a value isn't whole, an assertion forbids it, or blocks grow too large or lose whole warps."""
    if any(value < 1 or value % 1 for value in wanted.values()):
        return
    values = {macro: int(value) for macro, value in wanted.items()}
    text = _with_values(context, values)
    if not asserts_hold(context.source, Kernel(text).macros):
        return
    before, after = _threads(context, {}), _threads(context, values)
    if after is None or before is None:
        return
    if any(new % WARP_THREADS and not old % WARP_THREADS for old, new in zip(before, after, strict=True)):
        return
    if any(
        new > old and new > most for old, new, most in zip(before, after, _most_threads(context), strict=True)
    ):
        return
    title = ", ".join(f"{macro.name} {macro.value} -> {value}" for macro, value in values.items())
    yield Proposal(
        title,
        text,
        rationale=why,
        expected_effect=effect,
        prior=prior,
        factors=tuple(Factor(macro.name, value) for macro, value in values.items()),
    )


def _most_threads(context: Context) -> tuple[int, ...]:
    """The largest block of each launch that has registers enough, if their number stays as it is."""
    registers = {found.kernel: found.registers for found in context.evaluation.resources}
    return tuple(
        REGISTERS_PER_BLOCK // max(1, registers.get(launch.kernel, 1)) for launch in context.plan.launches
    )


def _with_values(context: Context, values: Mapping[cu.Constant, float]) -> str:
    changes = [cu.Replacement(macro.start, macro.end, f"{value:.0f}") for macro, value in values.items()]
    return cu.replace(context.source, changes)


def _threads(context: Context, values: Mapping[cu.Constant, float]) -> tuple[int, ...] | None:
    """Threads in a block of each launch with other values for some macros; None if that can't be launched."""
    if not values:
        return tuple(launch.threads for launch in context.resolved[0].launches)
    kernel = Kernel(_with_values(context, values))
    try:
        resolved = context.task.resolved(kernel, context.shapes[0])
    except LaunchPlanError:
        return None
    return tuple(launch.threads for launch in resolved.launches)


def block_macros(context: Context) -> list[cu.Constant]:
    """Macros that are an axis of a block, and on whose value nothing depends silently."""
    axes = {str(extent) for launch in context.plan.launches for extent in launch.block}
    return [
        macro
        for macro in context.source.integer_macros
        if macro.name in axes
        and not _repeated_as_literal(context, macro)
        and all(
            _knows_block(function, macro.name)
            for launch, function in context.launched
            if macro.name in launch.block
        )
        and not any(
            _ties_axes(function, macro.name)
            for launch, function in context.launched
            if len(set(launch.block)) > 1 and macro.name in launch.block
        )
    ]


def _knows_block(function: cu.Function, name: str) -> bool:
    """Whether a kernel reads its block's size, so that the number of threads isn't that of its elements."""
    sizes = {"blockDim.x", "blockDim.y", "blockDim.z", name}
    return bool(sizes & cu.identifiers(function.node)) or bool(cu.calls(function.body))


def _ties_axes(function: cu.Function, name: str) -> bool:
    """Whether shared tiles may tie a block's axes to each other: not if the names only stride loops."""
    if not any(declaration.shared for declaration in function.declarations):
        return False
    named = cu.uses(function.node, name)
    strides = sum(loop.step == name for loop in function.loops)
    measured = any(
        cu.text_of(node).startswith("blockDim") for node in cu.walk(function.body, "field_expression")
    )
    return named != strides or measured


def _repeated_as_literal(context: Context, macro: cu.Constant) -> bool:
    """Whether a shared array is as large as the block, or as its number of warps, without naming the macro."""
    suspects = {macro.value, macro.value // WARP_THREADS} - {0, 1, WARP_THREADS}
    return any(
        cu.whole_number(cu.text_of(extent)) in suspects
        for function in context.source.functions
        for declaration in function.declarations
        for extent in declaration.extents
        if extent is not None and declaration.shared
    )


def _is_tile(context: Context, name: str) -> bool:
    """A size that blocks are computed from, that the grid is divided by, or that loops over tiles step by."""
    axes = {str(extent) for launch in context.plan.launches for extent in launch.block}
    if name in axes:
        return False
    if _in_blocks(context, name) or _in_grid(context, name, only_divides):
        return True
    if _is_bounded(context, name) or _listed(context, name):
        return True
    return any(_is_depth(function, name) for function in context.source.kernels if function.clean)


def _is_bounded(context: Context, name: str) -> bool:
    """Whether an assertion at the top of the file has bounds for the name alone, as for a choice."""
    return any(
        re.search(rf"static_assert\({name} >= \d+ && {name} <= \d+\b", cu.text_of(node))
        for node in context.source.assertions
    )


def _listed(context: Context, name: str) -> set[int]:
    """The values that an assertion at the top of the file lets a name have: `NAME == 64 || NAME == 128`."""
    return {
        int(value)
        for node in context.source.assertions
        for value in re.findall(rf"\b{name} == (\d+)\b", cu.text_of(node))
        if re.search(rf"\b{name} == \d+ \|\|", cu.text_of(node))
    }


def _in_blocks(context: Context, name: str) -> bool:
    return any(
        name in _names_behind(context, extent) for launch in context.plan.launches for extent in launch.block
    )


def _names_behind(context: Context, extent: Extent) -> frozenset[str]:
    """The names in an extent, those in the macros that it uses included."""
    names, behind = names_in(extent), set[str]()
    bodies = {
        cu.text_of(name): cu.text_of(value)
        for node in cu.walk(context.source.root, "preproc_def")
        if (name := node.child_by_field_name("name")) and (value := node.child_by_field_name("value"))
    }
    while names:
        behind |= names
        used = frozenset[str]().union(*(names_in(bodies[name].strip()) for name in names if name in bodies))
        names = used - behind
    return frozenset(behind)


def _in_grid(context: Context, name: str, role: Callable[[Extent, str], bool]) -> bool:
    return any(role(extent, name) for launch in context.plan.launches for extent in launch.grid)


def _is_depth(function: cu.Function, name: str) -> bool:
    """Whether a loop steps by the name and the block's threads load what lies between in a strided loop."""
    known = definitions(function)
    steps = any(loop.step == name for loop in function.loops)
    return steps and any(
        name in cu.identifiers(loop.bound) and "threadIdx.x" in polynomial(loop.start, known).names
        for loop in function.loops
    )


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def asserts_hold(source: cu.Source, macros: Mapping[str, Number]) -> bool:
    """Whether no `static_assert` certainly fails; one that isn't arithmetic over the macros may hold."""
    return all(_may_hold(node.named_children[0], macros) for node in source.assertions)


def _may_hold(condition: Node, macros: Mapping[str, Number]) -> bool:
    condition = cu.strip_parentheses(condition)
    left, sign, right = cu.operands(condition) or (condition, "", condition)
    if sign in {"&&", "||"}:
        return (all if sign == "&&" else any)(_may_hold(side, macros) for side in (left, right))
    compare = _COMPARISONS.get(sign)
    if compare is None:
        return True
    a, b = (constant(cu.text_of(side).replace("/", "//"), macros) for side in (left, right))
    return a is None or b is None or compare(a, b)
