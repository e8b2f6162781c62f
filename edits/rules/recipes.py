"""Edits that belong together, made at once: what a search would otherwise find one step at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from mctskernel.core.edit import Edit, decided
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.rule import Context, Limits
from mctskernel.edits.rules.row_fusion import fuse_rows
from mctskernel.edits.rules.row_parallel import parallel_rows
from mctskernel.edits.rules.row_registers import kept_rows
from mctskernel.edits.rules.vectorize import vectorized_loops
from mctskernel.edits.rules.warp_reduction import warp_shuffles
from mctskernel.edits.syntax import parse

Step = Callable[[Context], Iterable[Edit]]


def rows_on_chip(context: Context) -> Iterator[Edit]:
    """A block or a warp for each row, with shuffles, vectors, and the row in registers where it is read again."""
    for first in parallel_rows(context):
        for steps in chains(context, first, (warp_shuffles, vectorized_loops, kept_rows)):
            if len(steps) > 1:
                yield _together(steps)


def fused_rows_on_chip(context: Context) -> Iterator[Edit]:
    """Launches over the same rows as one kernel, and then the same: with one thread a row it would be slower."""
    for first in fuse_rows(context):
        for steps in chains(context, first, (parallel_rows, warp_shuffles, vectorized_loops, kept_rows)):
            if len(steps) > 1:
                yield _together(steps)


def chains(context: Context, first: Edit, rest: Sequence[Step]) -> Iterator[tuple[Edit, ...]]:
    """The first edit followed by what each step proposes of the result, every choice of the last step's one by one.

    A step that proposes nothing is left out; of any but the last, only its first edit counts.
    """
    done: tuple[Edit, ...] = (first,)
    now = _after(context, first)
    for position, step in enumerate(rest):
        if now is None:
            return
        proposed = list(step(now))
        if position == len(rest) - 1 and proposed:
            yield from ((*done, last) for last in proposed)
            return
        if proposed:
            done, now = (*done, proposed[0]), _after(now, proposed[0])
    yield done


def _together(steps: Sequence[Edit]) -> Edit:
    """The last edit's text with the reasons of them all; the title names the first and the last."""
    last = steps[-1]
    return dataclasses.replace(
        last,
        category=steps[0].category,
        title=f"{steps[0].title}; {last.title}",
        rationale=" ".join(step.rationale for step in steps),
        expected_effect=" ".join(step.expected_effect for step in steps),
        prior=steps[0].prior * last.prior,
        factors=tuple(
            factor for step in steps for factor in decided(step.category, step.title, step.factors)
        ),
    )


def _after(context: Context, edit: Edit) -> Context | None:
    """What rules see of a kernel once it has an edit; its evidence is still that of the kernel before."""
    try:
        kernel = apply(context.kernel, edit)
        plan = plan_of(kernel)
    except (PatchError, LaunchPlanError):
        return None
    if not Limits(context.task, context.shapes).allow(kernel):
        return None
    return dataclasses.replace(context, kernel=kernel, plan=plan, source=parse(kernel.source))
