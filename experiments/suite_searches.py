"""Searches in processes of their own, as a user would start them, and what they cost."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.budget import Budget
from mctskernel.core.kernel import Language
from mctskernel.report.view import View
from mctskernel.run import spent_seconds
from mctskernel.tree.journal import read_events

GPU_STAGES = ("verify", "time", "counters")
"""The stages in which the GPU is held for one candidate; a build needs no GPU."""


@dataclass(frozen=True)
class Plan:
    """How to search: the device, the budget of each search, and where the runs go.

    `workers` is None for the default of the device.
    """

    device: str
    architecture: str
    workers: int | None
    budget: Budget
    seed: int
    runs: Path

    def folder(self, task: str, language: Language) -> Path:
        """Where the run of one search is."""
        return self.runs / f"{Path(task).name}-{language}-{self.device}-{self.seed}"


def run_search(task: str, language: Language, plan: Plan) -> str:
    """Search a task, going on with a run that was cut off. Returns what went wrong in a sentence, or nothing."""
    folder = plan.folder(task, language)
    limits = ["--budget", str(plan.budget.evaluations)]
    limits += ["--seconds", str(plan.budget.seconds)] if plan.budget.seconds else []
    limits += ["--workers", str(plan.workers)] if plan.workers else []
    if (folder / "journal.jsonl").exists():
        words = ["resume", str(folder)]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["search", task, "--device", plan.device, "--architecture", plan.architecture]
        words += ["--language", language, "--seed", str(plan.seed), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "mctskernel", *words, *limits], check=False, stderr=subprocess.PIPE, text=True
    )
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if re.search(r"\w", line)]
    return said[-1].strip() if said else f"The search ended with status {done.returncode}."


class SearchCost(msgspec.Struct, frozen=True):
    """Seconds. `stages` and `candidate_seconds` are medians over the evaluations that had the stage, and over all.

    `wall_seconds` is the time of the search without pauses, `gpu_busy_share` the sum of the stages that hold the GPU
    over it.
    """

    evaluations: int
    stages: dict[str, float]
    candidate_seconds: float
    wall_seconds: float
    gpu_busy_share: float


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
