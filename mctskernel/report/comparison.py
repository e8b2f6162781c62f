"""Runs side by side: which kernel is faster.

Times are only compared on one task and one device. Which of two *ways to search* is better takes several searches of
each: `mctskernel ablate`.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Evaluation, Source, Timing
from mctskernel.core.quantities import speedup_text, time_text
from mctskernel.core.resampling import ratio_of_medians
from mctskernel.core.task import Array
from mctskernel.core.user_errors import RunError
from mctskernel.profiling.guardrails import NOISE, beside
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.reward import is_eligible, log_speedup
from mctskernel.report.progress import Moment, moments
from mctskernel.report.view import View, load_view
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import edit_title, run_seconds

VERSIONS = frozenset(
    ("driver", "mctskernel", "numpy", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm")
)
"""Entries of a fingerprint that may differ between compared runs; the others are the device."""

BOOTSTRAP = "95 % bootstrap interval of the timing samples"
ONE_SIGMA = "one standard deviation of the model's error"
EXACT = "as recorded"


TaskAndDevice = tuple[str, tuple[tuple[str, str], ...]]
"""What runs must share for their times to be compared: a digest of the task's files, and the device's fingerprint."""


@dataclass(frozen=True)
class ComparedRun:
    """A run of one side of a comparison. Reading it raises RunError."""

    side: str
    view: View

    @property
    def name(self) -> str:
        return str(self.view.folder.path)

    @property
    def task(self) -> str:
        return self.view.manifest.configuration.task

    @property
    def device(self) -> str:
        uuid = self.view.manifest.fingerprint.get("uuid", "")[:8]
        return f"{self.view.device}{f' ({uuid})' if uuid else ''}"

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(moments(read_events(self.view.folder.journal), self.view.refused))

    @cached_property
    def task_and_device(self) -> TaskAndDevice:
        """What another run must share: every file of the task but its starting kernels, and the device."""
        digest = hashlib.sha256()
        for file in sorted(self.view.folder.task.glob("*")):
            if file.is_file() and file.stem != "kernel":
                digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        fingerprint = self.view.manifest.fingerprint.items()
        return digest.hexdigest(), tuple(sorted(each for each in fingerprint if each[0] not in VERSIONS))

    @cached_property
    def best(self) -> Node | None:
        """The node of its answer, or the fastest so far; None where no kernel is valid."""
        best = self.view.fastest
        return best if best is not None and _timed(best.evaluation) else None

    @cached_property
    def start(self) -> Evaluation | None:
        return _timed(self.view.tree.nodes[0].evaluation) if self.view.tree.nodes else None

    @property
    def starting_kernel(self) -> str:
        """The identity of the starting kernel; empty for an empty run."""
        nodes = self.view.tree.nodes
        return nodes[0].kernel.identity if nodes else ""


def find_runs(path: Path) -> tuple[ComparedRun, ...]:
    """Return the runs of one side: a run, or those in a folder of runs. Raises RunError."""
    single = (path / "run.json").exists()
    found = [path] if single else sorted(each.parent for each in path.glob("*/run.json"))
    if not found:
        raise RunError(f"{path} is neither a run (it has no run.json) nor a folder of runs.")
    return tuple(ComparedRun(str(path), load_view(each)) for each in found)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """The result of a run. Times are seconds of one run of a kernel, None where there is none.

    `low` and `high` belong to `speedup`, the fastest start's time over the best one's; `interval` says how they were
    made. `held_out_speedup` is the one at the shapes of the final validation. `failures` are evaluations without a
    trusted time.
    """

    path: str
    task: str
    device: str
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
    held_out_speedup: float | None


@dataclass(frozen=True)
class Ratio:
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
class RunComparison:
    """Runs side by side and, in `notes`, what can't be compared, and why."""

    runs: tuple[RunRow, ...]
    kernels: tuple[KernelRatio, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((*(each.sentence for each in self.kernels), *self.notes))


def compare_runs(runs: Sequence[ComparedRun]) -> RunComparison:
    """Compare the best kernel of the first of each task and device with those of the others. Raises RunError."""
    comparable: dict[TaskAndDevice, list[ComparedRun]] = defaultdict(list)
    for run in runs:
        comparable[run.task_and_device].append(run)
    return RunComparison(
        tuple(map(_run_row, runs)),
        tuple(
            ratio
            for first, *others in comparable.values()
            for other in others
            if (ratio := _best_ratio(first, other)) is not None
        ),
        tuple(dict.fromkeys(_notes(runs))),
    )


def _run_row(run: ComparedRun) -> RunRow:
    view, tree = run.view, run.view.tree
    evaluated = [node.evaluation for node in tree.nodes if node.evaluation is not None]
    best = run.best.evaluation if run.best else None
    gain = _speedup(best, run.start) if best and run.start else None
    timings = view.answer.timings if view.answer else ()
    held_out = [each.baseline_seconds / each.seconds for each in timings if each.baseline_seconds]
    return RunRow(
        path=run.name,
        task=run.task,
        device=run.device,
        evaluations=tree.evaluations,
        failures=sum(_timed(each) is None for each in evaluated),
        seconds=run.moments[-1].seconds if run.moments else 0.0,
        dollars=tree.dollars,
        best=run.best.id if run.best else None,
        edit=edit_title(tree, run.best) if run.best else "",
        best_seconds=run_seconds(best) if best else None,
        speedup=gain.ratio / view.start_speedup if gain else None,
        low=gain.low / view.start_speedup if gain else None,
        high=gain.high / view.start_speedup if gain else None,
        interval=gain.interval if gain else "",
        held_out_speedup=statistics.geometric_mean(held_out) if held_out else None,
    )


def _speedup(best: Evaluation, start: Evaluation) -> Ratio | None:
    """The starting kernel's time over another's beside it; None where a shape has no baseline."""
    gain = log_speedup(best, start)
    if gain is None:
        return None
    starts = {timing.shape: timing for timing in start.timings}
    samples = [(_samples(starts[each.shape], each.baseline_seconds), _samples(each)) for each in best.timings]
    return _ratio(math.exp(gain), start, best, samples)


def _best_ratio(first: ComparedRun, second: ComparedRun) -> KernelRatio | None:
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
    found = _ratio(ratio, one, other, samples)
    differs = ratio != 1 if found.interval == EXACT else found.low > 1 or found.high < 1
    if found.interval == BOOTSTRAP:
        # Runs at different hours have medians that differ by more than their samples show.
        differs &= abs(math.log(ratio)) > math.log1p(NOISE)
    return KernelRatio(ratio, found.low, found.high, found.interval, first.name, second.name, differs)


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


def _notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    if idle := [run.name for run in runs if run.best is None]:
        yield f"{_listed(idle)}: no valid kernel yet."
    if unfinished := [run.name for run in runs if run.best is not None and run.view.answer is None]:
        yield f"{_listed(unfinished)}: the search is not finished, so figures are those so far."
    first, *others = runs
    for other in others:
        yield from _differences(first, other)


def _differences(first: ComparedRun, second: ComparedRun) -> Iterator[str]:
    if first.task_and_device == second.task_and_device:
        return
    if first.task_and_device[0] == second.task_and_device[0]:
        yield (
            f"{first.name} was timed on {first.device} and {second.name} on {second.device}: times of different "
            "devices are not compared. `mctskernel resume RUN --device gpu` times its kernels on this machine's GPU."
        )
    else:
        same = first.task == second.task
        which = f"other versions of {first.task}" if same else f"{first.task} and {second.task}"
        yield f"{first.name} and {second.name} searched {which}: times of different tasks are not compared."


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def print_run_comparison(console: Console, comparison: RunComparison) -> None:
    """Print a table for each task and device, then the comparisons of kernels, and notes."""
    names = short_names([row.path for row in comparison.runs])
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in comparison.runs:
        groups.setdefault((row.task, row.device), []).append(row)
    for (task, device), rows in groups.items():
        console.print(Text.assemble((task, "bold"), f" on {device}"), soft_wrap=True)
        console.print(_table(rows, names))
        for row in rows:
            if row.best is not None:
                console.print(Text(f"Best of {names[row.path]}: node {row.best}, {row.edit}"), soft_wrap=True)
    for interval in dict.fromkeys(row.interval for row in comparison.runs if row.interval not in ("", EXACT)):
        console.print(Text(f"Brackets: {interval}.", "dim"), soft_wrap=True)
    for ratio in comparison.kernels:
        console.print(Text(ratio.sentence), soft_wrap=True)
    for note in comparison.notes:
        console.print(Text(note, "yellow"), soft_wrap=True)


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return paths without the folder that all of them are in."""
    parts = [Path(path).parts for path in paths]
    shared = 0
    while all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    return {path: str(Path(*each[shared:])) for path, each in zip(paths, parts, strict=True)}


def _table(rows: Sequence[RunRow], names: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    paid = any(row.dollars for row in rows)
    held_out = any(row.held_out_speedup for row in rows)
    table.add_column("run", overflow="fold", min_width=8)
    headings = ("time", "speed-up", *(("held out",) if held_out else ()))
    for heading in (*headings, "evals", "failed", "s", *(("$",) if paid else ())):
        table.add_column(heading, justify="right", no_wrap=heading != "speed-up", min_width=len(heading))
    for row in rows:
        table.add_row(
            Text(names[row.path]),
            time_text(row.best_seconds) if row.best_seconds is not None else "",
            _speedup_text(row),
            *((_times(row, row.held_out_speedup),) if held_out else ()),
            str(row.evaluations),
            str(row.failures),
            f"{row.seconds:.0f}",
            *((f"{row.dollars:.4f}",) if paid else ()),
        )
    return table


def _speedup_text(row: RunRow) -> str:
    if row.speedup is None or row.low is None or row.high is None or row.interval == EXACT:
        return _times(row, row.speedup)
    return f"{_times(row, row.speedup)} [{_times(row, row.low)}, {_times(row, row.high)}]"


def _times(row: RunRow, speedup: float | None) -> str:
    source = Source.MODELLED if row.interval == ONE_SIGMA else Source.MEASURED
    return "" if speedup is None else speedup_text(speedup, source)
