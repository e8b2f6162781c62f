"""The launch: which thread axis runs along memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mctskernel.core.edit import Category
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import BUILT_INS
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rewrite import only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule

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
        field = cu.field(node, "field")
        if cu.text_of(cu.field(node, "argument")) in BUILT_INS and cu.text_of(field) in {"x", "y"}:
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
