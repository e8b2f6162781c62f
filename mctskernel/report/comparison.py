"""Runs side by side: which kernel is faster, and whether one way to search is better.

Times are only compared on one task and one device. Timing samples decide which of two *kernels* is faster. Which of two
*ways to search* is better takes several searches of each: they are paired by task and seed, and compared after the same
number of evaluations.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from mctskernel.core.evaluation import Evaluation, Source, Timing
from mctskernel.core.task import Array
from mctskernel.profiling.guardrails import NOISE, beside
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.reward import is_eligible, log_speedup
from mctskernel.report.notes import counted
from mctskernel.report.progress import Moment, best_after, moments
from mctskernel.report.resampling import estimate, holm, ratio_of_medians, sign_flip_p
from mctskernel.report.view import View, load_view
from mctskernel.run import RunError
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import edit_title, run_seconds

FEWEST = 5
"""With fewer pairs (or tasks) there is no interval and no test: no result would be unlikely enough."""

VERSIONS = frozenset(
    ("driver", "mctskernel", "numpy", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm")
)
"""Entries of a fingerprint that may differ between compared runs, with a note; the others are the device."""

SIGNIFICANT = 0.05
"""P-values below this are called significant."""

BOOTSTRAP = "95 % bootstrap interval of the timing samples"
ONE_SIGMA = "one standard deviation of the model's error"
EXACT = "as recorded"


@dataclass(frozen=True)
class Ground:
    """What runs must share for their times to be compared: a digest of the task's files, and the device."""

    task: str
    device: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ComparedRun:
    """A run of one side of a comparison. Reading it raises JournalError."""

    side: str
    view: View

    @property
    def name(self) -> str:
        """Its folder, as it was given."""
        return str(self.view.folder.path)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.view.manifest.configuration.task

    @property
    def device(self) -> str:
        """Its device, with the start of the GPU's UUID."""
        uuid = self.view.manifest.fingerprint.get("uuid", "")[:8]
        return f"{self.view.device}{f' ({uuid})' if uuid else ''}"

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Its progress after each evaluation."""
        spent = self.view.manifest.configuration.spent
        return tuple(moments(read_events(self.view.folder.journal), spent))

    @cached_property
    def ground(self) -> Ground:
        """What another run must share: every file of the task but its starting kernels, and the device."""
        digest = hashlib.sha256()
        for file in sorted(self.view.folder.task.glob("*")):
            if file.is_file() and file.stem != "kernel":
                digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        fingerprint = self.view.manifest.fingerprint.items()
        return Ground(digest.hexdigest()[:16], tuple(sorted(e for e in fingerprint if e[0] not in VERSIONS)))

    @cached_property
    def best(self) -> Node | None:
        """The node of its answer, or the fastest so far; None where no kernel is valid."""
        best = self.view.best if self.view.tree.nodes else None
        return best if best is not None and _timed(best.evaluation) else None

    @cached_property
    def start(self) -> Evaluation | None:
        """The starting kernel's evaluation, None where it has no time."""
        return _timed(self.view.tree.nodes[0].evaluation) if self.view.tree.nodes else None

    @property
    def starting_kernel(self) -> str:
        """The identity of the starting kernel; empty for an empty run."""
        nodes = self.view.tree.nodes
        return nodes[0].kernel.identity if nodes else ""

    def seconds_after(self, evaluations: int) -> float | None:
        """Seconds of the fastest kernel after so many evaluations; None before any success."""
        speedup = best_after(self.moments, evaluations)
        start = run_seconds(self.start) if self.start else None
        return start / speedup if start and speedup else None


def find_runs(path: Path) -> tuple[ComparedRun, ...]:
    """The runs of one side: a run, or those in a folder of runs. Raises RunError and JournalError."""
    single = (path / "run.json").exists()
    found = [path] if single else sorted(each.parent for each in path.glob("*/run.json"))
    if not found:
        raise RunError(f"{path} is neither a run (it has no run.json) nor a folder of runs.")
    return tuple(ComparedRun(str(path), load_view(each)) for each in found)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """The result of a run. Times are seconds of one run of a kernel, None where there is none.

    `low` and `high` belong to `speedup`, the starting kernel's time over the best one's; `interval` says how they were
    made. `speedup_at` is the best after `at` evaluations, `held_out_speedup` the one at the shapes of the final
    validation. `failures` are evaluations without a trusted time.
    """

    side: str
    path: str
    task: str
    device: str
    strategy: str
    seed: int
    finished: bool
    evaluations: int
    failures: int
    seconds: float
    dollars: float
    best: int | None
    edit: str
    best_seconds: float | None
    speedup: float | None
    low: float | None
    high: float | None
    interval: str
    at: int
    speedup_at: float | None
    held_out_speedup: float | None


@dataclass(frozen=True)
class Ratio:
    """A ratio of times, its interval, and how that was made."""

    ratio: float
    low: float
    high: float
    interval: str


@dataclass(frozen=True)
class KernelRatio(Ratio):
    """The time of the first run's best kernel over the second's; `differs` if the difference exceeds the noise."""

    first: str
    second: str
    differs: bool

    @property
    def sentence(self) -> str:
        """Which of two kernels is faster, by how much, and how that is known."""
        how = {
            BOOTSTRAP: f" ({self.low:.3f} to {self.high:.3f}, {BOOTSTRAP})",
            ONE_SIGMA: f" (modelled; {self.low:.2f} to {self.high:.2f} within {ONE_SIGMA})",
            EXACT: " (as recorded, without an interval)",
        }[self.interval]
        figure = f"Kernels: best time of {self.first} / best time of {self.second} = {self.ratio:.3f}{how}"
        if not self.differs:
            return f"{figure}: no significant difference."
        return f"{figure}: {self.second if self.ratio > 1 else self.first} has the faster kernel."


@dataclass(frozen=True)
class SideRow:
    """The runs of a side on one task and device: the geometric mean of their best speed-ups after `at` evaluations.

    `low` and `high` are its bootstrap interval over runs, None for fewer than `FEWEST`. `runs` counts those with a
    success.
    """

    side: str
    task: str
    device: str
    runs: int
    at: int
    speedup: float
    low: float | None
    high: float | None

    @property
    def sentence(self) -> str:
        """The mean result of the runs of a side."""
        bounds = f" ({self.low:.2f} to {self.high:.2f})" if self.low is not None else ""
        return (
            f"{self.side}: {self.speedup:.2f}x{bounds} on {self.task} after {counted(self.at, 'evaluation')}, the "
            f"geometric mean of {counted(self.runs, 'run')}."
        )


@dataclass(frozen=True)
class SearchTest:
    """The first side's times over the second's, the geometric mean over pairs, after the same number of evaluations.

    `unit` is what is resampled and whose sign is flipped: pairs, or tasks where there are at least `FEWEST`. With fewer
    units there is neither interval nor p-value. `adjusted_p` is Holm's, over all sides that were compared with the
    first one. The second side was ahead in `better` of the pairs, and behind in `worse`.
    """

    first: str
    second: str
    pairs: int
    tasks: int
    unit: str
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None
    better: int
    worse: int

    @property
    def sentence(self) -> str:
        """Which of two ways to search found faster kernels, and how sure that is."""
        over = f"{counted(self.pairs, 'pair')} of the same task and seed" + (
            f", {self.tasks} tasks" if self.tasks > 1 else ""
        )
        bounds = f" ({self.low:.3f} to {self.high:.3f})" if self.low is not None else ""
        figure = (
            f"Searches: over {over}, times of {self.first} / times of {self.second} = {self.ratio:.3f}{bounds} after "
            f"the same number of evaluations; {self.second} is ahead in {self.better}, behind in {self.worse}."
        )
        p = self.adjusted_p
        if p is None:
            return figure
        verdict = "significant" if p < SIGNIFICANT else "not significant"
        before = f" ({self.p:.3g} before Holm's correction)" if p != self.p else ""
        return f"{figure} Sign-flip test over {self.unit}: p = {p:.3g}{before}, {verdict}."


@dataclass(frozen=True)
class RunComparison:
    """Runs side by side and, in `notes`, what can't be compared, and why."""

    runs: tuple[RunRow, ...]
    sides: tuple[SideRow, ...]
    kernels: tuple[KernelRatio, ...]
    searches: tuple[SearchTest, ...]
    notes: tuple[str, ...]
    schema: str = "mctskernel.comparison"
    schema_version: int = 1

    def __str__(self) -> str:
        """The comparisons in sentences."""
        compared: Iterable[SideRow | KernelRatio | SearchTest] = (*self.sides, *self.kernels, *self.searches)
        return "\n".join((*(each.sentence for each in compared), *self.notes))


def compare_runs(runs: Sequence[ComparedRun], at: int | None = None) -> RunComparison:
    """Compare runs. `at` is the number of evaluations after which the best so far is compared.

    Without it that is as many as every run has made of the same task on the same device. Raises JournalError.
    """
    grounds: dict[Ground, list[ComparedRun]] = defaultdict(list)
    sides: dict[str, list[ComparedRun]] = defaultdict(list)
    for run in runs:
        grounds[run.ground].append(run)
        sides[run.side].append(run)
    common = {ground: at or min(run.view.evaluations for run in each) for ground, each in grounds.items()}
    first, *others = sides.values()
    tests = [test for other in others if (test := _test(first, other, at)) is not None]
    adjusted = iter(holm([test.p for test in tests if test.p is not None]))
    return RunComparison(
        runs=tuple(_run_row(run, common[run.ground]) for run in runs),
        sides=tuple(_side_rows(grounds.values(), common)),
        kernels=tuple(_kernels(grounds.values())),
        searches=tuple(
            test if test.p is None else replace(test, adjusted_p=next(adjusted)) for test in tests
        ),
        notes=tuple(dict.fromkeys(_notes(sides, tests))),
    )


def _run_row(run: ComparedRun, at: int) -> RunRow:
    view, tree, configuration = run.view, run.view.tree, run.view.manifest.configuration
    evaluated = [node.evaluation for node in tree.nodes if node.evaluation is not None]
    best = run.best.evaluation if run.best else None
    gain = _speedup(best, run.start) if best and run.start else None
    timings = view.answer.timings if view.answer else ()
    held_out = [each.baseline_seconds / each.seconds for each in timings if each.baseline_seconds]
    return RunRow(
        side=run.side,
        path=run.name,
        task=run.task,
        device=run.device,
        strategy=configuration.policy.strategy,
        seed=configuration.seed,
        finished=view.answer is not None,
        evaluations=view.evaluations,
        failures=sum(_timed(each) is None for each in evaluated) + configuration.spent.evaluations,
        seconds=run.moments[-1].seconds if run.moments else 0.0,
        dollars=tree.dollars,
        best=run.best.id if run.best else None,
        edit=edit_title(tree, run.best) if run.best else "",
        best_seconds=run_seconds(best) if best else None,
        speedup=gain.ratio if gain else None,
        low=gain.low if gain else None,
        high=gain.high if gain else None,
        interval=gain.interval if gain else "",
        at=at,
        speedup_at=best_after(run.moments, at) or None,
        held_out_speedup=statistics.geometric_mean(held_out) if held_out else None,
    )


def _side_rows(grounds: Iterable[list[ComparedRun]], common: Mapping[Ground, int]) -> Iterator[SideRow]:
    for runs in grounds:
        at = common[runs[0].ground]
        for side in dict.fromkeys(run.side for run in runs):
            of_side = [run for run in runs if run.side == side]
            logs = [math.log(best) for run in of_side if (best := best_after(run.moments, at))]
            if not logs or len(of_side) < 2:
                continue
            found, enough = estimate([np.array(logs)]), len(logs) >= FEWEST
            low, high = (math.exp(each) if enough else None for each in (found.low, found.high))
            task, device = of_side[0].task, of_side[0].device
            yield SideRow(side, task, device, len(logs), at, math.exp(found.mean), low, high)


def _kernels(grounds: Iterable[list[ComparedRun]]) -> Iterator[KernelRatio]:
    """The best kernel of the first run of each ground against those of the others, where each run is its own side."""
    for first, *others in grounds:
        if len({run.side for run in (first, *others)}) <= len(others):
            continue
        for other in others:
            if (found := _best_ratio(first, other)) is None:
                continue
            differs = found.ratio != 1 if found.interval == EXACT else found.low > 1 or found.high < 1
            if found.interval == BOOTSTRAP:
                # Runs at different hours have medians that differ by more than their samples show.
                differs &= abs(math.log(found.ratio)) > math.log1p(NOISE)
            yield KernelRatio(
                found.ratio, found.low, found.high, found.interval, first.name, other.name, differs
            )


def _test(first: Sequence[ComparedRun], second: Sequence[ComparedRun], at: int | None) -> SearchTest | None:
    by_ground: dict[Ground, list[float]] = defaultdict(list)
    ours, theirs = _by_seed(first), _by_seed(second)
    for key in ours.keys() & theirs.keys():
        one, other = ours[key], theirs[key]
        count = at or min(one.view.evaluations, other.view.evaluations)
        before, after = one.seconds_after(count), other.seconds_after(count)
        if before is not None and after is not None:
            by_ground[one.ground].append(math.log(before / after))
    logs = [each for found in by_ground.values() for each in found]
    if len(logs) < 2:
        return None
    groups: list[Array] = [np.array(each) for each in by_ground.values()]
    unit = "pairs"
    if len(groups) >= FEWEST:
        unit, groups = "tasks", [np.array([float(each.mean()) for each in groups])]
    units = np.concatenate(groups)
    enough = len(units) >= FEWEST
    found = estimate(groups) if enough and min(map(len, groups)) > 1 else None
    return SearchTest(
        first=first[0].side,
        second=second[0].side,
        pairs=len(logs),
        tasks=len(by_ground),
        unit=unit,
        ratio=math.exp(np.mean([each.mean() for each in groups])),
        low=math.exp(found.low) if found else None,
        high=math.exp(found.high) if found else None,
        p=sign_flip_p(units) if enough else None,
        adjusted_p=None,
        better=sum(each > 0 for each in logs),
        worse=sum(each < 0 for each in logs),
    )


def _by_seed(runs: Sequence[ComparedRun]) -> Mapping[tuple[Ground, int], ComparedRun]:
    """The runs by ground and seed, without seeds that occur twice."""
    found: dict[tuple[Ground, int], list[ComparedRun]] = defaultdict(list)
    for run in runs:
        found[run.ground, run.view.manifest.configuration.seed].append(run)
    return {key: each[0] for key, each in found.items() if len(each) == 1}


def _speedup(best: Evaluation, start: Evaluation) -> Ratio | None:
    """The starting kernel's time over another's, which was timed beside it; None where a shape has no baseline.

    The spread of a measured baseline is that of the starting kernel's own samples.
    """
    gain = log_speedup(best, start)
    if gain is None:
        return None
    starts = {timing.shape: timing for timing in start.timings}
    samples = [(_samples(starts[each.shape], each.baseline_seconds), _samples(each)) for each in best.timings]
    return _ratio(math.exp(gain), start, best, samples)


def _best_ratio(first: ComparedRun, second: ComparedRun) -> Ratio | None:
    """The time of the first run's best kernel over that of the second's; None unless both exist.

    Where both runs began at the same kernel, times are taken relative to it, as it was timed beside each: whatever
    slowed one whole run down then cancels.
    """
    one, other = (run.best.evaluation if run.best else None for run in (first, second))
    if one is None or other is None:
        return None
    theirs = {timing.shape: timing for timing in other.timings}
    pairs = [(each, theirs[each.shape]) for each in one.timings if each.shape in theirs]
    if not pairs:
        return None
    same_start = first.starting_kernel == second.starting_kernel
    samples = [(_samples(a), _samples(beside(b, a) if same_start else b)) for a, b in pairs]
    ratio = statistics.geometric_mean(float(np.median(a) / np.median(b)) for a, b in samples)
    return _ratio(ratio, one, other, samples)


def _ratio(
    ratio: float, first: Evaluation, second: Evaluation, samples: Sequence[tuple[Array, Array]]
) -> Ratio:
    """A ratio with its interval: from the samples of measured times, or from the model's error."""
    if first.source is Source.MODELLED and second.source is Source.MODELLED:
        reach = math.exp(log_ratio_sigma(first.terms, second.terms))
        return Ratio(ratio, ratio / reach, ratio * reach, ONE_SIGMA)
    if all(len(each) > 1 for pair in samples for each in pair):
        found = ratio_of_medians(samples)
        return Ratio(ratio, found.low, found.high, BOOTSTRAP)
    return Ratio(ratio, ratio, ratio, EXACT)


def _timed(evaluation: Evaluation | None) -> Evaluation | None:
    return evaluation if evaluation is not None and is_eligible(evaluation) else None


def _samples(timing: Timing, median: float | None = None) -> Array:
    """The samples of a timing, or its one time; scaled to a median if one is given."""
    found = np.array(timing.samples or (timing.seconds,))
    return found if median is None else found * (median / float(np.median(found)))


def _notes(sides: Mapping[str, list[ComparedRun]], tests: Sequence[SearchTest]) -> Iterator[str]:
    runs = [run for each in sides.values() for run in each]
    if idle := [run.name for run in runs if run.best is None]:
        yield f"{_listed(idle)}: no valid kernel yet."
    if unfinished := [run.name for run in runs if run.best is not None and run.view.answer is None]:
        yield f"{_listed(unfinished)}: the search is not finished, so figures are those so far."
    first, *others = sides.values()
    for other in others:
        yield from _differences(first, other)
        if other[0].side not in {test.second for test in tests} and max(len(first), len(other)) > 1:
            yield (
                f"{first[0].side} and {other[0].side} have fewer than two searches of the same task, device and seed: "
                "there is no paired test."
            )
    starts = {run.ground: run for run in reversed(runs)}
    for run in runs:
        reference = starts[run.ground]
        if run.best and reference.best and run.starting_kernel != reference.starting_kernel:
            yield (
                f"{run.name} and {reference.name} began at different starting kernels, so their speed-ups have "
                "different baselines. Compare the times."
            )
    for test in tests:
        if test.p is None:
            yield (
                f"{counted(test.pairs, 'pair')} of {test.first} and {test.second}: too few for a test, whose p-value "
                f"could not be below {2.0 ** (1 - test.pairs):.2g}. It takes at least {FEWEST}."
            )


def _differences(firsts: Sequence[ComparedRun], seconds: Sequence[ComparedRun]) -> Iterator[str]:
    """Why two sides are not compared, or what differs between them."""
    first, second = firsts[0], seconds[0]
    if {run.ground for run in firsts} & {run.ground for run in seconds}:
        before, after = (
            {name: run.view.manifest.fingerprint.get(name, "unknown") for name in VERSIONS}
            for run in (first, second)
        )
        for name in sorted(name for name in VERSIONS if before[name] != after[name]):
            yield f"{first.side} used {name} {before[name]}, {second.side} {after[name]}: this may matter."
    elif first.ground.task == second.ground.task:
        yield (
            f"{first.side} was timed on {first.device} and {second.side} on {second.device}: times of different "
            "devices are not compared. `mctskernel resume RUN --device gpu` times its kernels on this machine's GPU."
        )
    else:
        same = first.task == second.task
        which = f"other versions of {first.task}" if same else f"{first.task} and {second.task}"
        yield f"{first.side} and {second.side} searched {which}: times of different tasks are not compared."


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
