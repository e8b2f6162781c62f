"""Runs of problems, scored as benchmarks do: fast_p and the geometric mean over baselines.

Baselines are the starting kernel, and the problem's own module on this machine's GPU, eager and compiled. Those times
are stored in the run's folder, since they are only valid on its device. Source: KernelBench's `fast_p` and geometric
mean (Ouyang et al., "KernelBench: Can LLMs write efficient GPU kernels?", 2025, section 3.4, and src/score.py of its
repository).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.task import TaskError
from mctskernel.problems.registry import benchmark_of
from mctskernel.report.baselines import COMPILED, EAGER, read_baselines
from mctskernel.report.resampling import share_interval
from mctskernel.report.view import View
from mctskernel.tree.trajectory import run_seconds

START = "the starting kernel"

THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""The speed-ups at which `fast_p` is usually given."""


def fast_p(speedups: Sequence[float | None], threshold: float) -> float:
    """The share of results that are correct and more than `threshold` times as fast as the baseline.

    A wrong result is None. A correct one with an unknown speed-up is 0, and only counts at a threshold of 0. The share
    of nothing is 0.
    """
    return _successes(speedups, threshold) / len(speedups) if speedups else 0.0


class RunScore(msgspec.Struct, frozen=True):
    """A run of a problem. `correct` says that its answer passed the final validation.

    `seconds` is the geometric mean over its workloads. `speedups` are by baseline, for those timed on this device.
    """

    run: str
    benchmark: str
    problem: str
    device: str
    correct: bool
    seconds: float | None
    speedups: dict[str, float]
    note: str = ""


class FastP(msgspec.Struct, frozen=True):
    """fast_p at a threshold, with its 95 % interval over problems."""

    threshold: float
    share: float
    low: float
    high: float


class BaselineScores(msgspec.Struct, frozen=True):
    """Scores over all runs against one baseline; `known` counts correct runs whose speed-up is known."""

    baseline: str
    known: int
    fast: tuple[FastP, ...]
    geomean: float | None


class Scores(msgspec.Struct, frozen=True):
    """Runs with their scores."""

    runs: tuple[RunScore, ...]
    correct: int
    against: tuple[BaselineScores, ...]


def score_runs(views: Sequence[View]) -> Scores:
    """Score runs, each of one problem. Raises TaskError for a run whose task wasn't made from a problem."""
    runs = tuple(score_run(view) for view in views)
    baselines = [name for name in (EAGER, COMPILED, START) if any(name in run.speedups for run in runs)]
    return Scores(
        runs,
        sum(run.correct for run in runs),
        tuple(
            score_results(name, [run.speedups.get(name, 0.0) if run.correct else None for run in runs])
            for name in baselines
        ),
    )


def score_run(view: View) -> RunScore:
    """Score one run. Raises TaskError where its task wasn't made from a problem."""
    path = view.folder.path
    task = view.folder.load_task()
    benchmark = benchmark_of(task)
    if benchmark is None:
        raise TaskError(f"{path} is no run of a benchmark's problem; `mctskernel compare` compares any runs.")
    node = view.tree.nodes[view.answer.node] if view.answer and view.answer.node is not None else None
    evaluation = node.evaluation if node is not None else None
    speedups, note = _speedups(view, evaluation)
    return RunScore(
        str(path),
        benchmark.name,
        task.name,
        view.device,
        node is not None and view.answer is not None and view.answer.validated,
        run_seconds(evaluation) if evaluation else None,
        speedups,
        note if view.answer is not None else "The search has not stopped yet.",
    )


def score_results(baseline: str, speedups: Sequence[float | None]) -> BaselineScores:
    """Score results against one baseline, as `fast_p` takes them; the geometric mean is of known speed-ups."""
    fast = tuple(
        FastP(
            threshold,
            fast_p(speedups, threshold),
            *share_interval(_successes(speedups, threshold), len(speedups)),
        )
        for threshold in THRESHOLDS
    )
    known = [each for each in speedups if each]
    return BaselineScores(baseline, len(known), fast, statistics.geometric_mean(known) if known else None)


def _speedups(view: View, evaluation: Evaluation | None) -> tuple[dict[str, float], str]:
    """Speed-ups by baseline, and why one is missing."""
    if evaluation is None or run_seconds(evaluation) is None or view.answer is None:
        return {}, "No kernel passed the final validation."
    found = {START: view.answer.speedup}
    baselines = read_baselines(view.folder.path)
    if evaluation.source is not Source.MEASURED:
        return found, "Its times are modelled, so they are not compared with PyTorch's."
    if baselines is None:
        return (
            found,
            "PyTorch's time is unknown: `mctskernel scores --time-pytorch` measures it on the run's GPU.",
        )
    if baselines.gpu != view.manifest.fingerprint.get("gpu"):
        return found, f"PyTorch was timed on another GPU, {baselines.gpu}."
    return found | baselines.speedups, baselines.problem


def _successes(speedups: Sequence[float | None], threshold: float) -> int:
    return sum(each is not None and (each > threshold or threshold <= 0) for each in speedups)
