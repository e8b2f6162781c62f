"""A run as comparisons need it: what it came to, and what others must share for its times to mean anything to them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mctskernel.core.evaluation import Evaluation, Source, Timing
from mctskernel.core.task import Array
from mctskernel.profiling.comparable import beside
from mctskernel.profiling.model.uncertainty import log_ratio_sigma
from mctskernel.profiling.reward import is_eligible, log_speedup
from mctskernel.report.progress import Moment, best_after, moments
from mctskernel.report.resampling import Estimate, ratio_of_medians
from mctskernel.report.view import View, load_view
from mctskernel.run import RunError
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import edit_title, run_seconds

VERSIONS = frozenset(
    (
        "driver",
        "mctskernel",
        "numpy",
        "triton",
        "cuda-bindings",
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-nvdisasm",
    )
)
"""What a fingerprint tells beside the device: of others there is a remark, on another device nothing is compared."""

BOOTSTRAP = "95 % bootstrap interval of the timing samples"
ONE_SIGMA = "one standard deviation of the model's error"
EXACT = "as recorded"


@dataclass(frozen=True)
class Ratio:
    """A time over another one, with what is known of it: an interval, and how that was made."""

    ratio: float
    low: float
    high: float
    interval: str


@dataclass(frozen=True)
class Ground:
    """What runs have in common whose times may be compared: a digest of the task's files, and the device."""

    task: str
    device: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ComparedRun:
    """A run of one side of a comparison. What it reads raises JournalError and EvidenceError."""

    side: str
    view: View

    @property
    def name(self) -> str:
        """Its folder, as it was given."""
        return str(self.view.folder.path)

    @property
    def device(self) -> str:
        """Where its kernels were timed, in words, with what tells two GPUs of one name apart."""
        uuid = self.view.manifest.fingerprint.get("uuid", "")[:8]
        return f"{self.view.device}{f' ({uuid})' if uuid else ''}"

    @property
    def seed(self) -> int:
        """That of its search."""
        return self.view.manifest.configuration.seed

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """What it stood at after each evaluation."""
        spent = self.view.manifest.configuration.spent
        return tuple(moments(read_events(self.view.folder.journal), spent))

    @cached_property
    def ground(self) -> Ground:
        """What another run must share."""
        fingerprint = self.view.manifest.fingerprint
        device = tuple(sorted(each for each in fingerprint.items() if each[0] not in VERSIONS))
        return Ground(_task_digest(self.view.folder.task), device)

    @cached_property
    def best(self) -> Node | None:
        """The node of its answer, or the fastest so far; None where no time is believed."""
        best = self.view.best if self.view.tree.nodes else None
        return best if best and _is_timed(best.evaluation) else None

    @property
    def best_evaluation(self) -> Evaluation | None:
        """That of the best node."""
        return self.best.evaluation if self.best else None

    @cached_property
    def start(self) -> Evaluation | None:
        """The starting kernel's evaluation, None where it has no time."""
        root = self.view.tree.nodes[0].evaluation if self.view.tree.nodes else None
        return root if _is_timed(root) else None

    @property
    def starting_kernel(self) -> str:
        """The identity of the kernel that its speed-ups are over; empty of an empty run."""
        nodes = self.view.tree.nodes
        return nodes[0].kernel.identity if nodes else ""

    def seconds_after(self, evaluations: int) -> float | None:
        """Seconds of the fastest kernel after so many evaluations; None before any success."""
        speedup = best_after(self.moments, evaluations)
        start = run_seconds(self.start) if self.start else None
        return start / speedup if start and speedup else None


def find_runs(path: Path) -> tuple[ComparedRun, ...]:
    """The runs of one side: a run, or those in a folder of runs. Raises RunError and JournalError."""
    found = (
        [path] if (path / "run.json").exists() else sorted(each.parent for each in path.glob("*/run.json"))
    )
    if not found:
        raise RunError(f"{path} is not a run (it has no run.json), nor a folder of runs.")
    return tuple(ComparedRun(str(path), load_view(each)) for each in found)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """What a run came to. Times are seconds of one run of a kernel, None where there is none.

    `low` and `high` are of `speedup`, the starting kernel's time over the best one's, as `interval` says. `speedup_at`
    is the best after `at` evaluations, `held_out_speedup` that at the shapes of the last gate, which no search sees.
    `failures` are evaluations without a time that is believed.
    """

    side: str
    path: str
    task: str
    device: str
    source: str
    language: str
    strategy: str
    seed: int
    finished: bool
    evaluations: int
    failures: int
    seconds: float
    dollars: float
    start_seconds: float | None
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


def run_row(run: ComparedRun, at: int) -> RunRow:
    """The row of a run, its best so far told after `at` evaluations."""
    view, tree, configuration = run.view, run.view.tree, run.view.manifest.configuration
    last = run.moments[-1] if run.moments else None
    evaluated = [node.evidence for node in tree.nodes if node.evidence is not None]
    best, start = run.best_evaluation, run.start
    gain = speedup(best, start) if best and start else None
    return RunRow(
        side=run.side,
        path=run.name,
        task=configuration.task,
        device=run.device,
        source=str(best.source) if best else "",
        language=str(configuration.language),
        strategy=configuration.policy.strategy,
        seed=configuration.seed,
        finished=view.answer is not None,
        evaluations=view.evaluations,
        failures=sum(not each.ok or bool(each.quarantine) for each in evaluated)
        + configuration.spent.evaluations,
        seconds=last.seconds if last else 0.0,
        dollars=tree.dollars,
        start_seconds=run_seconds(start) if start else None,
        best=run.best.id if run.best else None,
        edit=edit_title(tree, run.best) if run.best else "",
        best_seconds=run_seconds(best) if best else None,
        speedup=gain.ratio if gain else None,
        low=gain.low if gain else None,
        high=gain.high if gain else None,
        interval=gain.interval if gain else "",
        at=at,
        speedup_at=best_after(run.moments, at) or None,
        held_out_speedup=_held_out(view),
    )


def speedup(best: Evaluation, start: Evaluation) -> Ratio | None:
    """The starting kernel's time over another's, which was timed beside it; None where a shape has no baseline.

    How far a measured baseline may be off is taken from the samples of the starting kernel's own evaluation.
    """
    gain = log_speedup(best, start)
    if gain is None:
        return None
    starts = {timing.shape: timing for timing in start.timings}
    found = [(_samples(starts[each.shape], each.baseline_seconds), _samples(each)) for each in best.timings]
    return known_ratio(math.exp(gain), start, best, found)


def best_ratio(first: ComparedRun, second: ComparedRun) -> Ratio | None:
    """The time of the first run's best kernel over that of the second's; None unless both are there.

    Where both started at the same kernel, which was timed beside each, times are taken as shares of its time: what
    made all of one run slower then cancels out.
    """
    one, other = first.best_evaluation, second.best_evaluation
    if one is None or other is None:
        return None
    theirs = {timing.shape: timing for timing in other.timings}
    pairs = [(each, theirs[each.shape]) for each in one.timings if each.shape in theirs]
    if not pairs:
        return None
    anchored = first.starting_kernel == second.starting_kernel
    found = [(_samples(a), _samples(beside(b, a) if anchored else b)) for a, b in pairs]
    logs = [math.log(float(np.median(a) / np.median(b))) for a, b in found]
    return known_ratio(math.exp(math.fsum(logs) / len(logs)), one, other, found)


def known_ratio(
    ratio: float, first: Evaluation, second: Evaluation, samples: list[tuple[Array, Array]]
) -> Ratio:
    """A ratio of times with its interval: by the samples of what was measured, or by the model's error."""
    if first.source is Source.MODELLED and second.source is Source.MODELLED:
        reach = math.exp(log_ratio_sigma(first.terms, second.terms))
        return Ratio(ratio, ratio / reach, ratio * reach, ONE_SIGMA)
    if all(len(each) > 1 for pair in samples for each in pair):
        found: Estimate = ratio_of_medians(samples)
        return Ratio(ratio, found.low, found.high, BOOTSTRAP)
    return Ratio(ratio, ratio, ratio, EXACT)


def _is_timed(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and is_eligible(evaluation)


def _samples(timing: Timing, median: float | None = None) -> Array:
    """The samples of a timing, or its one time; moved so that they have this median if one is given."""
    found = np.array(timing.samples or (timing.seconds,))
    return found if median is None else found * (median / float(np.median(found)))


def _held_out(view: View) -> float | None:
    timings = view.answer.timings if view.answer else ()
    logs = [math.log(each.baseline_seconds / each.seconds) for each in timings if each.baseline_seconds]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _task_digest(folder: Path) -> str:
    """Of all that says what is computed and how it is judged: every file but the starting kernels."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*")):
        if file.is_file() and file.stem != "kernel":
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
