"""Names for block sizes that are written as numbers, so that they change everywhere at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import MAX_THREADS, Extent, LaunchPlan
from mctskernel.edits.extents import mentions, with_named_divisor
from mctskernel.edits.indexing import AXES
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import define, fresh_name, replace, swap, text_of, walk, whole_number

WARP = 32


def name_block_size(context: Context) -> Iterator[Edit]:
    """Another size instead of a literal one along an axis of the block, as a macro of plan and kernels."""
    for axis, size in _literal_axes(context.plan):
        literals = _literals_of_block(context, axis, size)
        if literals is None:
            continue
        several = any(len(launch.block) > 1 for launch in context.plan.launches)
        name = fresh_name(context.source, f"BLOCK_{axis.upper()}" if several else "BLOCK")
        plan = _with_name(context.plan, axis, size, name)
        if plan is None:
            continue
        for factor, prior in ((0.5, 1.0), (2.0, 1.0), (0.25, 0.5), (4.0, 0.5)):
            value = int(size * factor)
            if not 1 <= value <= MAX_THREADS or (not several and value % WARP):
                continue
            changes = [*(swap(node, name) for node in literals), define(context.source, name, value)]
            yield edit(
                Category.LAUNCH,
                f"{name} = {value} instead of {size} threads along {axis}",
                with_plan(Kernel(replace(context.source, changes)), plan).source,
                rationale=f"The block's size along {axis}, {size} until now, gets a name and another value.",
                expected_effect="Another number of blocks, and of warps that hide each other's latency.",
                prior=prior,
            )


def _literal_axes(plan: LaunchPlan) -> list[tuple[str, int]]:
    """Axes whose extent is one and the same number above 1 in every launch that has it as a number."""
    axes = []
    for position, axis in enumerate(AXES):
        extents = {launch.block[position] for launch in plan.launches if position < len(launch.block)}
        literal = {extent for extent in extents if isinstance(extent, int)}
        if len(extents) == 1 and literal and (size := literal.pop()) > 1:
            axes.append((axis, size))
    return axes


def _literals_of_block(context: Context, axis: str, size: int) -> list[Node] | None:
    """The literals in the code that mean the block's size; None if that can't be told for sure.

    They are factors of `blockIdx` and steps of loops. Kernels with shared arrays, whose sizes may be tied to
    the block's in other ways, are left alone, and so are those in which a number near the size occurs.
    """
    found: list[Node] = []
    if size in context.kernel.macros.values():
        return None
    for function in context.source.functions:
        if not function.clean or any(declaration.shared for declaration in function.declarations):
            return None
        steps = [loop.node.child_by_field_name("update") for loop in function.loops]
        for node in walk(function.body, "number_literal"):
            value = whole_number(text_of(node))
            if value == size and (_is_block_factor(node, axis) or node.parent in steps):
                found.append(node)
            elif value in {size, size - 1, size // 2, size // WARP} - {0, 1} and not _is_other_factor(node):
                return None
    return found


def _is_block_factor(node: Node, axis: str) -> bool:
    parent = node.parent
    if parent is None or parent.type != "binary_expression":
        return False
    operator = parent.child_by_field_name("operator")
    texts = {text_of(child) for child in parent.named_children}
    return operator is not None and text_of(operator) == "*" and f"blockIdx.{axis}" in texts


def _is_other_factor(node: Node) -> bool:
    return any(_is_block_factor(node, axis) for axis in AXES)


def _with_name(plan: LaunchPlan, axis: str, size: int, name: str) -> LaunchPlan | None:
    """The plan with a name for the size, in blocks and where the grid is divided by it; None if in doubt.

    Arguments and scratch buffers that are counts of blocks follow; any other mention of the number is doubt.
    """
    position = AXES.index(axis)

    def named(extents: tuple[Extent, ...]) -> tuple[Extent, ...]:
        return tuple(with_named_divisor(extent, size, name) for extent in extents)

    launches, rest = [], list[Extent | float]()
    for launch in plan.launches:
        block, grid = list(launch.block), list(launch.grid)
        block[position], grid[position : position + 1] = name, named(launch.grid[position : position + 1])
        args = tuple(
            with_named_divisor(value, size, name) if isinstance(value, str) else value
            for value in launch.args
        )
        launches.append(dataclasses.replace(launch, block=tuple(block), grid=tuple(grid), args=args))
        rest += [*grid[position : position + 1], *args, launch.shared]
    scratch = tuple(dataclasses.replace(entry, shape=named(entry.shape)) for entry in plan.scratch)
    rest += [extent for entry in scratch for extent in entry.shape]
    if any(mentions(extent, size) for extent in rest):
        return None
    return LaunchPlan(tuple(launches), scratch)


RULES = (
    Rule(
        "name-block-size",
        Category.LAUNCH,
        frozenset({Bottleneck.LOW_OCCUPANCY, Bottleneck.TOO_FEW_BLOCKS, Bottleneck.TAIL}),
        name_block_size,
        prior=0.5,
    ),
)
