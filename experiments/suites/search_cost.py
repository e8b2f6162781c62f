"""What a finished search cost: seconds per candidate by stage, and how much of its time the GPU was busy."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from mctskernel.report.view import View
from mctskernel.search import spent_seconds
from mctskernel.tree.journal import read_events

GPU_STAGES = ("verify", "time", "counters")
"""The stages in which the GPU is held for one candidate, its verdict included; a build needs no GPU."""


class SearchCost(msgspec.Struct, frozen=True):
    """Seconds. `stages` and `candidate_seconds` are medians over the evaluations that had the stage, and over all.

    `wall_seconds` runs from the first event of the journal to the last, pauses left out. `gpu_busy_share` is the
    sum of the stages that hold the GPU over it.
    """

    evaluations: int
    stages: dict[str, float]
    candidate_seconds: float
    wall_seconds: float
    gpu_busy_share: float

    @property
    def wall_seconds_per_candidate(self) -> float:
        """What a budget in minutes buys."""
        return self.wall_seconds / self.evaluations


def search_cost(run: View) -> SearchCost:
    """The cost of a run that holds at least one evaluation."""
    evaluations = [node.evaluation for node in run.tree.nodes if node.evaluation is not None]
    spent = [evaluation.stage_seconds for evaluation in evaluations]
    wall = spent_seconds(read_events(run.folder.journal))
    busy = sum(stages.get(stage, 0.0) for stages in spent for stage in GPU_STAGES)
    return SearchCost(
        evaluations=len(evaluations),
        stages=stage_medians(spent),
        candidate_seconds=statistics.median(evaluation.cost_seconds for evaluation in evaluations),
        wall_seconds=wall,
        gpu_busy_share=busy / wall if wall > 0 else 0.0,
    )


def stage_medians(spent: Iterable[dict[str, float]]) -> dict[str, float]:
    """The median of each stage over those that had it, in the order of their first appearance."""
    rows = list(spent)
    names = dict.fromkeys(name for stages in rows for name in stages)
    return {name: statistics.median(stages[name] for stages in rows if name in stages) for name in names}
