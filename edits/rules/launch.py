"""The launch: the order of blocks, and which thread axis runs along memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mctskernel.core.edit import Category
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import filled
from mctskernel.edits.indexing import BUILT_INS
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rewrite import Rewrite, apply, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule

WARP = 32


GROUPS = (8, 4, 16)
FEWEST_BLOCKS = 2 * 132
"""Fewer run all at once, in whatever order."""


@rule(Category.LAUNCH, 0.5, "dram_bandwidth l2_bandwidth global_latency")
def grouped_blocks(context: Context) -> Iterable[Proposal]:
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
            yield Proposal(
                f"order blocks in groups of {size} rows for L2 reuse{context.where(function.name)}",
                _grouped(context, function, size),
                rationale=(
                    "Blocks start row by row; in groups of a few rows those that run together need fewer different "
                    "rows and columns between them."
                ),
                expected_effect="Fewer misses in the L2 cache.",
                prior=(1.0 if size == GROUPS[0] else 0.6) * 0.5**position,
            )


def _shares(function: cu.Function) -> bool:
    """Whether blocks stage what others read as well: the kernel knows both its places, and has tiles and a loop."""
    places = {cu.text_of(node) for node in cu.walk(function.body, "field_expression")}
    shared = any(declaration.shared for declaration in function.declarations)
    return {"blockIdx.x", "blockIdx.y"} <= places and shared and cu.has(function.body, "for_statement")


def _asked_elsewhere(context: Context, function: cu.Function) -> bool:
    """Whether other code of the file asks for a block's place, or the kernel for it as a whole."""
    if {"blockIdx", "gridDim"} & context.source.macro_words:
        return True
    whole = [node for node in cu.walk(context.source.root, "identifier") if cu.text_of(node) == "blockIdx"]
    return not all(
        node.parent is not None and node.parent.type == "field_expression" and cu.within(node, function.node)
        for node in whole
    ) or "gridDim.y" in cu.identifiers(function.body)


def _grouped(context: Context, function: cu.Function, size: int) -> str:
    """Blocks numbered row by row take places group by group, column by column within a group: each place once."""
    macro = cu.fresh_name(context.source, "GROUP")
    wanted = "block", "first_row", "rows_of_group", "block_x", "block_y"
    fresh = cu.fresh_names(cu.names_in_scope(context.source, function), *wanted)
    names = {**dict(zip(wanted, fresh, strict=True)), "GROUP": macro}
    x, y, lines = names["block_x"], names["block_y"], filled("grouped_blocks", names, {})
    start = function.body.start_byte + 1
    opening = "".join(f"\n    {line}" for line in lines)
    changes = [cu.Replacement(start, start, opening)]
    changes += [
        cu.swap(node, {"blockIdx.x": x, "blockIdx.y": y}[cu.text_of(node)])
        for node in cu.walk(function.body, "field_expression")
        if cu.text_of(node) in {"blockIdx.x", "blockIdx.y"}
    ]
    return apply(context, Rewrite(function, defines={macro: f"{size}u"}, more=changes))


LOOP_WEIGHT = 8
"""How many times an access inside a loop counts; loops nest no deeper than one for this purpose."""


@rule(Category.COALESCING, 2.0, "dram_bandwidth l1_throughput uncoalesced_access")
def swap_thread_axes(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        if len(launch.grid) != 2 or len(launch.block) != 2 or _depends_on_warps(function):
            continue
        now, swapped = scattered(function, "x"), scattered(function, "y")
        if swapped >= now:
            continue
        yield Proposal(
            f"swap threadIdx.x and threadIdx.y{context.where(function.name)}",
            with_swapped_axes(context, launch, function),
            rationale=(
                "Neighbouring threads (consecutive threadIdx.x) touch elements that lie a row apart, so that a "
                "warp's access needs a memory sector per thread; with x and y swapped they touch neighbours."
            ),
            expected_effect="Up to 8 times fewer sectors per request.",
        )


def scattered(function: cu.Function, axis: str) -> int:
    """How many accesses of global memory are neither contiguous nor equal along a thread axis, loops weighted."""
    known = definitions(function)
    count = 0
    for access in function.accesses:
        parameter = function.parameter(access.array)
        if parameter is None or not parameter.pointer or len(access.indices) != 1:
            continue
        step = polynomial(access.indices[0], known).coefficient(f"threadIdx.{axis}")
        if step is None or step.constant not in {0, 1}:
            count += LOOP_WEIGHT if cu.enclosing(access.node, "for_statement", "while_statement") else 1
    return count


def with_swapped_axes(context: Context, launch: Launch, function: cu.Function) -> str:
    """The text with x and y exchanged in one kernel and its launch; macros named after an axis follow it."""
    changes = []
    for node in cu.walk(function.body, "field_expression"):
        argument, field = node.child_by_field_name("argument"), node.child_by_field_name("field")
        if argument is None or field is None or cu.text_of(argument) not in BUILT_INS:
            continue
        if cu.text_of(field) in {"x", "y"}:
            changes.append(cu.swap(field, "y" if cu.text_of(field) == "x" else "x"))
    plan = with_launch(context.plan, launch, launch.grid[::-1], launch.block[::-1])
    text = with_plan(Kernel(cu.replace(context.source, changes)), plan).source
    x, y = launch.block
    if len(context.plan.launches) == 1 and isinstance(x, str) and isinstance(y, str) and _twins(x, y):
        return re.sub(rf"\b(?:{x}|{y})\b", lambda match: y if match[0] == x else x, text)
    return text


def _twins(x: str, y: str) -> bool:
    """Whether two macros differ in an X and a Y only, so that their names should follow the axes."""
    return (
        x.isidentifier() and y.isidentifier() and x != y and re.sub("X$|x$", "Y", x) == re.sub("y$", "Y", y)
    )


def _depends_on_warps(function: cu.Function) -> bool:
    return any(
        "_sync" in cu.text_of(call) or "warpSize" in cu.text_of(call) for call in cu.calls(function.body)
    ) and not all(cu.text_of(call).startswith("__syncthreads") for call in cu.calls(function.body))
