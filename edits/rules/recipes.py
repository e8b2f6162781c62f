"""Rules that belong together, applied at once: what a search would otherwise find one step at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mctskernel.core.edit import Category, decided
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.edits.rule import Context, Limits, Proposal, Rule, rule
from mctskernel.edits.rules.row_parallel import parallel_rows
from mctskernel.edits.rules.row_registers import keep_row
from mctskernel.edits.rules.tree_reduction import warp_shuffle_reduction
from mctskernel.edits.rules.vectorize import float4_loops
from mctskernel.edits.syntax import parse


@dataclass(frozen=True)
class Step:
    rule: Rule[Context]
    made: Proposal


@rule(
    Category.PARALLELISM, 2.5, "dram_bandwidth uncoalesced_access global_latency low_occupancy too_few_blocks"
)
def rows_on_chip(context: Context) -> Iterator[Proposal]:
    """A block or a warp for each row, with shuffles, vectors, and the row in registers where it is read again."""
    rest = (warp_shuffle_reduction, float4_loops, keep_row)
    for made in parallel_rows.propose(context):
        chains = _chains(context, Step(parallel_rows, made), rest)
        yield from (_together(steps) for steps in chains if len(steps) > 1)


def _chains(context: Context, first: Step, rest: Sequence[Rule[Context]]) -> Iterator[tuple[Step, ...]]:
    """The first step, then each rule's first proposal in turn, and every one of the last rule's."""
    done: tuple[Step, ...] = (first,)
    now = _after(context, first.made)
    for position, each in enumerate(rest):
        if now is None:
            return
        steps = [Step(each, made) for made in each.propose(now)]
        if position == len(rest) - 1 and steps:
            yield from ((*done, last) for last in steps)
            return
        if steps:
            done, now = (*done, steps[0]), _after(now, steps[0].made)
    yield done


def _together(steps: Sequence[Step]) -> Proposal:
    """The last step's text with the reasons of them all; the title names the first and the last."""
    made = [step.made for step in steps]
    return Proposal(
        f"{made[0].title}; {made[-1].title}",
        made[-1].source,
        rationale=" ".join(each.rationale for each in made),
        expected_effect=" ".join(each.expected_effect for each in made),
        prior=made[0].prior * made[-1].prior,
        factors=tuple(
            factor
            for step in steps
            for factor in decided(step.rule.category, step.made.title, step.made.factors)
        ),
    )


def _after(context: Context, made: Proposal) -> Context | None:
    """What rules see of a kernel once it is rewritten; its evidence is still that of the kernel before."""
    kernel = dataclasses.replace(context.kernel, source=made.source)
    try:
        plan = plan_of(kernel)
    except LaunchPlanError:
        return None
    if not Limits(context.task, context.shapes).allow(kernel):
        return None
    return dataclasses.replace(context, kernel=kernel, plan=plan, source=parse(kernel.source))
