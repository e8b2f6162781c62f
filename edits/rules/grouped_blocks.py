"""Blocks in another order: those that run at the same time share rows and columns, and so the L2 cache."""

from __future__ import annotations

from collections.abc import Iterable

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import (
    Function,
    Replacement,
    fresh_name,
    identifiers,
    names_in_scope,
    swap,
    text_of,
    walk,
)

GROUPS = (8, 4, 16)
FEWEST_BLOCKS = 2 * 132
"""Fewer run all at once, in whatever order."""


def _propose(context: Context) -> Iterable[Edit]:
    for position, (launch, function) in enumerate(context.launched):
        names = [each.kernel for each in context.plan.launches]
        if len(launch.grid) < 2 or names.count(launch.kernel) != 1 or not _shares(function):
            continue
        if _asked_elsewhere(context, function):
            continue
        grids = [plan.launches[names.index(launch.kernel)].grid for plan in context.resolved]
        timed = grids[: len(context.task.search_shapes)]
        if any(grid[0] * grid[1] < FEWEST_BLOCKS or min(grid[0], grid[1]) < 2 for grid in timed):
            continue
        for size in GROUPS:
            yield edit(
                Category.LAUNCH,
                f"blocks of {function.name} in groups of {size} rows",
                _grouped(context, function, size),
                rationale=(
                    "Blocks start row by row; in groups of a few rows those that run together need fewer different "
                    "rows and columns between them."
                ),
                expected_effect="Fewer misses in the L2 cache.",
                prior=(1.0 if size == GROUPS[0] else 0.6) * 0.5**position,
            )


def _shares(function: Function) -> bool:
    """Whether blocks stage what others read as well: the kernel knows both its places, and has tiles and a loop."""
    places = {text_of(node) for node in walk(function.body, "field_expression")}
    shared = any(declaration.shared for declaration in function.declarations)
    return (
        {"blockIdx.x", "blockIdx.y"} <= places
        and shared
        and any(True for _ in walk(function.body, "for_statement"))
    )


def _asked_elsewhere(context: Context, function: Function) -> bool:
    """Whether other code of the file asks for a block's place, or the kernel for it as a whole."""
    if {"blockIdx", "gridDim"} & context.source.macro_words:
        return True
    whole = [node for node in walk(context.source.root, "identifier") if text_of(node) == "blockIdx"]
    return not all(
        _is_place(node) and _within(node, function) for node in whole
    ) or "gridDim.y" in identifiers(function.body)


def _is_place(node: Node) -> bool:
    return node.parent is not None and node.parent.type == "field_expression"


def _within(node: Node, function: Function) -> bool:
    return function.node.start_byte <= node.start_byte < function.node.end_byte


def _grouped(context: Context, function: Function, size: int) -> str:
    """Blocks numbered row by row take places group by group, column by column within a group: each place once."""
    macro = fresh_name(context.source, "GROUP")
    number, first, rows, x, y = fresh_names(
        names_in_scope(context.source, function), "block", "first_row", "rows_of_group", "block_x", "block_y"
    )
    lines = [
        f"const unsigned {number} = blockIdx.y * gridDim.x + blockIdx.x;",
        f"const unsigned {first} = {number} / ({macro} * gridDim.x) * {macro};",
        f"const unsigned {rows} = min(gridDim.y - {first}, {macro});",
        f"const unsigned {x} = {number} % ({macro} * gridDim.x) / {rows};",
        f"const unsigned {y} = {first} + {number} % ({macro} * gridDim.x) % {rows};",
    ]
    start = function.body.start_byte + 1
    opening = "".join(f"\n    {line}" for line in lines)
    changes = [Replacement(start, start, opening)]
    changes += [
        swap(node, {"blockIdx.x": x, "blockIdx.y": y}[text_of(node)])
        for node in walk(function.body, "field_expression")
        if text_of(node) in {"blockIdx.x", "blockIdx.y"}
    ]
    return apply(context, Rewrite(function, defines={macro: f"{size}u"}, more=changes))


RULES = (
    Rule(
        "grouped-blocks",
        Category.LAUNCH,
        frozenset({Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH, Bottleneck.GLOBAL_LATENCY}),
        _propose,
        prior=0.5,
    ),
)
