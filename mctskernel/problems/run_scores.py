"""What runs of problems came to, scored as benchmarks do: against PyTorch where its times are known, and the start."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.task import TaskError
from mctskernel.problems.kernelbench.pytorch_times import read_times
from mctskernel.problems.registry import benchmark_of
from mctskernel.problems.scores import THRESHOLDS, Scored, fast_p, fast_p_interval, geomean
from mctskernel.report.view import View

EAGER, COMPILED, START = "PyTorch eager", "torch.compile", "the starting kernel"


class RunScore(msgspec.Struct, frozen=True):
    """A run of a problem. `correct` says that its answer passed the last gate; times are seconds, the geometric mean
    over its workloads. Speed-ups are by what they are over, and none where the other time isn't known on this device.
    """

    run: str
    benchmark: str
    problem: str
    device: str
    correct: bool
    seconds: float | None
    speedups: dict[str, float]
    remark: str = ""

    def scored(self, baseline: str) -> Scored:
        """As scores take it."""
        return Scored(self.correct, self.speedups.get(baseline))


class FastP(msgspec.Struct, frozen=True):
    """fast_p at a threshold, with its 95 % interval over problems."""

    threshold: float
    share: float
    low: float
    high: float


class BaselineScores(msgspec.Struct, frozen=True):
    """Scores over all runs against one baseline; `known` of the correct runs have its time."""

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
    """Score runs, each of one problem. Raises TaskError for one whose task was made of no problem."""
    runs = tuple(score_run(view) for view in views)
    baselines = [name for name in (EAGER, COMPILED, START) if any(name in run.speedups for run in runs)]
    return Scores(
        runs,
        sum(run.correct for run in runs),
        tuple(score_results(name, [run.scored(name) for run in runs]) for name in baselines),
    )


def score_run(view: View) -> RunScore:
    """What one run came to. Raises TaskError for one whose task was made of no problem."""
    path = view.folder.path
    task = view.folder.load_task()
    benchmark = benchmark_of(task)
    if benchmark is None:
        raise TaskError(f"{path} is no run of a benchmark's problem; `mctskernel compare` compares any runs.")
    node = view.tree.nodes[view.answer.node] if view.answer and view.answer.node is not None else None
    evaluation = node.evaluation if node is not None else None
    speedups, remark = _speedups(view, evaluation)
    return RunScore(
        str(path),
        benchmark.name,
        task.name,
        view.device,
        node is not None,
        _seconds(evaluation),
        speedups,
        remark if view.answer is not None else "The search has not stopped yet.",
    )


def score_results(baseline: str, results: Sequence[Scored]) -> BaselineScores:
    """Scores of results whose speed-ups are all over one baseline."""
    shares = []
    for threshold in THRESHOLDS:
        low, high = fast_p_interval(results, threshold)
        shares.append(FastP(threshold, fast_p(results, threshold), low, high))
    known = sum(each.correct and each.speedup is not None for each in results)
    return BaselineScores(baseline, known, tuple(shares), geomean(results))


def _speedups(view: View, evaluation: Evaluation | None) -> tuple[dict[str, float], str]:
    seconds = _seconds(evaluation)
    if evaluation is None or seconds is None or view.answer is None:
        return {}, "No kernel passed the last gate."
    found = {START: view.answer.speedup}
    times = read_times(view.folder.path)
    if evaluation.source is not Source.MEASURED:
        return found, "Its times are modelled: PyTorch's can't be put beside them."
    if times is None:
        return (
            found,
            "PyTorch's time isn't known: `mctskernel scores --time-pytorch` takes it on the run's GPU.",
        )
    if times.gpu != view.manifest.fingerprint.get("gpu"):
        return found, f"PyTorch was timed on another GPU, {times.gpu}."
    found[EAGER] = times.eager_seconds / seconds
    if times.compiled_seconds is not None:
        found[COMPILED] = times.compiled_seconds / seconds
    return found, times.problem


def _seconds(evaluation: Evaluation | None) -> float | None:
    if evaluation is None or not evaluation.timings:
        return None
    return statistics.geometric_mean(timing.seconds for timing in evaluation.timings)
