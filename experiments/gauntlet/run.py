"""Running the gauntlet: every entry goes the way of a search's kernel, the final validation included."""

from __future__ import annotations

import enum
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task_file import load_task
from mctskernel.executors import open_executor
from mctskernel.experiments.gauntlet.corpus import NO_GAIN, PYTORCH, Entry
from mctskernel.experiments.results import page, table
from mctskernel.profiling.guardrails import disbelief, refusal
from mctskernel.profiling.pytorch.client import ForkServer
from mctskernel.profiling.pytorch.evaluator import ModuleVerdict, Settings, open_evaluator
from mctskernel.profiling.reward import is_eligible, log_speedup

ENTRY_SECONDS = 240.0
"""Longer than every limit that a kernel can reach: an executor that is silent for so long is broken."""

MOST_IN_A_GROUP = 12
"""Entries that share one opened device. Small enough that no core waits long for another at the end."""

LOAD_SECONDS, CALL_SECONDS = 120.0, 5.0
MODULE_RUNS = 5  # limits of modules, and their timed rounds

Opener = Callable[[DeviceSpec, int], AbstractContextManager[Executor]]


class Verdict(enum.StrEnum):
    CAUGHT = "caught"
    ACCEPTED = "accepted"
    LET_THROUGH = "let through"
    WRONGLY_REFUSED = "wrongly refused"
    NOT_EVALUATED = "not evaluated"


@dataclass(frozen=True)
class Result:
    """What an entry came to on a device.

    `guard` is the guard that was recorded, not the expected one; `stage` is `evaluation` or `final validation`,
    empty where the entry passed. `unexpected` says that the entry names other guards. `log_gain` is the logarithm
    of the speed-up over the task's starting kernel that it would have claimed.
    """

    label: str
    language: str
    honest: bool
    text: str
    task: str
    device: str
    verdict: Verdict = Verdict.NOT_EVALUATED
    outcome: str = ""
    guard: Guard | None = None
    stage: str = ""
    message: str = ""
    seconds: float = 0.0
    unexpected: bool = False
    log_gain: float | None = None

    @property
    def fine(self) -> bool:
        return self.verdict in (Verdict.CAUGHT, Verdict.ACCEPTED)


def result_of(entry: Entry, device: str, **found: Any) -> Result:
    """The result of an entry, of which this was found."""
    return Result(entry.label, entry.kind, entry.honest, entry.text, entry.task.stem, device, **found)


@dataclass(frozen=True)
class Report:
    """All results, in the order of the corpus, with the devices' fingerprints and the seconds that it took."""

    results: tuple[Result, ...]
    fingerprints: Mapping[str, Mapping[str, str]]
    seconds: float
    skipped: tuple[str, ...] = ()

    @property
    def fine(self) -> bool:
        return all(result.fine for result in self.results)


@dataclass(frozen=True)
class Venue:
    """Where the gauntlet is run: a device, the GPU that a model stands for, and what opens it."""

    device: str
    architecture: str = "H100"
    seed: int = 0
    workers: int = 1
    opener: Opener = open_executor


def run_gauntlet(entries: Sequence[Entry], venue: Venue, follow: Callable[[Result], None]) -> Report:
    """Evaluate every entry that can be shown at the venue; `follow` gets each result at once, in any thread.

    On a GPU one after another, on the model in `workers` processes; modules come last, and on the CPU in its place.
    Raises DeviceError for a device that can't be opened at all, and TaskError.
    """
    began = time.monotonic()
    shown = [entry for entry in entries if entry.shows_on(venue.device)]
    kernels = [entry for entry in shown if entry.kind != PYTORCH]
    results: dict[str, Result] = {}
    fingerprint: dict[str, str] = {}
    with ThreadPoolExecutor(1 if venue.device == "gpu" else venue.workers, "gauntlet") as pool:
        groups = [pool.submit(_Group(tuple(group), venue).run, follow) for group in _groups(kernels)]
        try:
            for done in as_completed(groups):
                found, opened = done.result()
                fingerprint |= opened
                results |= {result.label: result for result in found}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    modules = [entry for entry in shown if entry.kind == PYTORCH]
    results |= {result.label: result for result in run_modules(modules, venue.device, follow)}
    return Report(
        tuple(results[entry.label] for entry in shown),
        {venue.device: fingerprint} if kernels else {},
        time.monotonic() - began,
        tuple(entry.label for entry in entries if not entry.shows_on(venue.device)),
    )


def _groups(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Entries of one task and language, since a device is opened for a task; the large groups first."""

    def key(entry: Entry) -> tuple[str, str]:
        return str(entry.task), entry.kind

    parts: list[Sequence[Entry]] = []
    for _, alike in groupby(sorted(entries, key=key), key):
        group = list(alike)
        parts += [group[at : at + MOST_IN_A_GROUP] for at in range(0, len(group), MOST_IN_A_GROUP)]
    yield from sorted(parts, key=len, reverse=True)


class _Group:
    """Evaluates entries of one task, one after another, and opens the device again where an entry broke it."""

    def __init__(self, entries: Sequence[Entry], venue: Venue) -> None:
        self._entries = entries
        self._venue = venue
        self._spec = DeviceSpec(
            venue.device,
            entries[0].task,
            venue.architecture,
            venue.seed,
            _starting_language(entries[0].task, Language(entries[0].kind)),
        )
        self._start: Evaluation | None = None

    def run(self, follow: Callable[[Result], None]) -> tuple[list[Result], Mapping[str, str]]:
        results: list[Result] = []
        fingerprint: Mapping[str, str] = {}
        left = list(self._entries)
        while left:
            with self._venue.opener(self._spec, self._venue.workers) as executor:
                fingerprint = executor.fingerprint()
                while left:
                    entry, began = left.pop(0), time.monotonic()
                    try:
                        found = self._evaluated(entry, executor)
                    except DeviceError as error:
                        found = result_of(entry, self._venue.device, message=str(error))
                    results.append(replace(found, seconds=time.monotonic() - began))
                    follow(results[-1])
                    if found.verdict is Verdict.NOT_EVALUATED:
                        break
        return results, fingerprint

    def _evaluated(self, entry: Entry, executor: Executor) -> Result:
        evaluation = _evaluate(executor, entry.kernel)
        if not is_eligible(evaluation):
            outcome = "quarantined" if evaluation.ok else str(evaluation.outcome)
            reason = evaluation.message or evaluation.quarantine
            return self._refused(entry, evaluation.guard, "evaluation", outcome, reason)
        root = self._baseline(executor)
        final = executor.final_validation(entry.kernel, self._starting_kernel)
        reason = refusal(final, root)
        # That an honest kernel is slower than the one that its task starts with is nothing against it.
        if reason and (disbelief(final) or not entry.honest):
            guard = final.guard or Guard.FINAL_VALIDATION
            return self._refused(entry, guard, "final validation", "ok", reason)
        return result_of(
            entry,
            self._venue.device,
            verdict=Verdict.ACCEPTED if entry.honest else Verdict.LET_THROUGH,
            outcome=str(evaluation.outcome),
            message=reason,
            log_gain=log_speedup(evaluation, root),
        )

    def _refused(self, entry: Entry, guard: Guard | None, stage: str, outcome: str, message: str) -> Result:
        verdict = Verdict.WRONGLY_REFUSED if entry.honest else Verdict.CAUGHT
        unexpected = not entry.honest and guard not in entry.guards
        return result_of(
            entry,
            self._venue.device,
            verdict=verdict,
            outcome=outcome,
            guard=guard,
            stage=stage,
            message=message,
            unexpected=unexpected,
        )

    def _baseline(self, executor: Executor) -> Evaluation:
        if self._start is None:
            self._start = _evaluate(executor, self._starting_kernel)
        return self._start

    @cached_property
    def _starting_kernel(self) -> Kernel:
        return load_task(self._spec.task_folder, self._spec.language).starting_kernel


def _evaluate(executor: Executor, kernel: Kernel) -> Evaluation:
    executor.submit(0, kernel)
    finished = executor.wait(ENTRY_SECONDS)
    if not finished:
        raise DeviceError(f"The executor gave no answer in {ENTRY_SECONDS:g} s.")
    return finished[0][1]


def _starting_language(task: Path, language: Language) -> Language:
    """The entry's, where the task starts in it too."""
    if (task / f"kernel{language.suffix}").is_file():
        return language
    return Language.TRITON if language is Language.CUDA else Language.CUDA


def run_modules(
    entries: Sequence[Entry], device: str, follow: Callable[[Result], None], server: ForkServer | None = None
) -> list[Result]:
    """Evaluate modules on a `gpu`, or on the CPU for `model`; `follow` gets each result. Raises DeviceError."""
    if server is None and entries:
        with closing(ForkServer()) as opened:
            return run_modules(entries, device, follow, opened)
    results = []
    for (_, own_kernels), group in groupby(sorted(entries, key=_reference), _reference):
        alike = list(group)
        settings = Settings(
            "cuda" if device == "gpu" else "cpu",
            runs=MODULE_RUNS,
            own_kernels=own_kernels,
            load_seconds=LOAD_SECONDS,
            call_seconds=CALL_SECONDS,
        )
        with open_evaluator(alike[0].task.read_text(), settings, server) as evaluator:
            for entry in alike:
                started = time.monotonic()
                verdict = evaluator.evaluate(entry.file.read_text())
                results.append(_module_result(entry, device, verdict, time.monotonic() - started))
                follow(results[-1])
    return results


def _reference(entry: Entry) -> tuple[str, bool]:
    return str(entry.task), entry.own_kernels


def _module_result(entry: Entry, device: str, verdict: ModuleVerdict, seconds: float) -> Result:
    evaluation, speedup = verdict.evaluation, verdict.speedup
    may_pass = NO_GAIN in entry.guards and (speedup is None or speedup.low <= 1.0)
    if entry.honest:
        came_to = Verdict.ACCEPTED if evaluation.ok else Verdict.WRONGLY_REFUSED
    else:
        came_to = Verdict.LET_THROUGH if evaluation.ok and not may_pass else Verdict.CAUGHT
    caught_by = str(evaluation.guard or evaluation.outcome)
    return result_of(
        entry,
        "gpu" if device == "gpu" else "cpu",
        verdict=came_to,
        outcome=str(evaluation.outcome),
        guard=evaluation.guard,
        stage="" if evaluation.ok else "evaluation",
        message=evaluation.message or evaluation.quarantine,
        seconds=seconds,
        unexpected=came_to is Verdict.CAUGHT and not {caught_by, NO_GAIN} & {*entry.guards},
        log_gain=math.log(speedup.ratio) if speedup is not None and speedup.ratio > 0 else None,
    )


HEADINGS = ("entry", "on", "trick", "refused by", "at", "outcome", "")


def print_report(console: Console, report: Report) -> None:
    shown = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        shown.add_column(heading, overflow="fold")
    for result in report.results:
        shown.add_row(*map(Text, _cells(result)), style="" if result.fine else "bold red")
    console.print(shown)
    for result in report.results:
        if not result.fine:
            console.print(f"{result.label}: {result.verdict}. {result.message}", style="red", markup=False)
    for sentence in totals(report):
        console.print(sentence, markup=False)


def markdown(report: Report) -> str:
    devices = (
        f"The {device}: {', '.join(f'{name} {value}' for name, value in fingerprint.items())}."
        for device, fingerprint in report.fingerprints.items()
    )
    found = table(HEADINGS, map(_cells, report.results))
    return page("The gauntlet", "\n".join(totals(report)), found, *devices) + "\n"


def totals(report: Report) -> Iterator[str]:
    cheats = Counter(result.verdict for result in report.results if not result.honest)
    honest = Counter(result.verdict for result in report.results if result.honest)
    yield (
        f"{cheats[Verdict.CAUGHT]} of {cheats.total()} cheats caught, {honest[Verdict.WRONGLY_REFUSED]} of "
        f"{honest.total()} honest kernels refused, in {report.seconds:.0f} s."
    )
    guards = Counter(result.guard for result in report.results if result.verdict is Verdict.CAUGHT)
    if guards:
        counts = ", ".join(
            f"{count} by {guard or 'failing or gaining nothing'}" for guard, count in guards.most_common()
        )
        yield f"Caught: {counts}."
    unexpected = [result.label for result in report.results if result.unexpected]
    if unexpected:
        yield f"Caught by another guard than was expected: {', '.join(unexpected)}."
    broken = (cheats + honest)[Verdict.NOT_EVALUATED]
    if broken:
        yield f"{broken} could not be evaluated."
    if report.skipped:
        yield f"{len(report.skipped)} can't be shown here."


def _cells(result: Result) -> tuple[str, ...]:
    verdict = str(result.verdict)
    if result.verdict is Verdict.LET_THROUGH and result.log_gain is not None:
        verdict += f" ({math.exp(result.log_gain):.2f}x)"
    refused_by = f"{result.guard or ''}{' (unexpected)' if result.unexpected else ''}"
    return (result.label, result.device, result.text, refused_by, result.stage, result.outcome, verdict)
