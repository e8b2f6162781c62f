"""A sweep: every trial of a configuration, beside each other where they can be, each kept as soon as it is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing.synchronize import Event
from multiprocessing.util import Finalize
from pathlib import Path

import msgspec

from mctskernel.core.disk import write_whole
from mctskernel.core.evaluation import Source
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.experiments.ablation.configuration import Ablation
from mctskernel.experiments.ablation.evaluators import Evaluators
from mctskernel.experiments.ablation.manifest import open_manifest, write_manifest
from mctskernel.experiments.ablation.plans import Known, Plan, plans_of
from mctskernel.experiments.ablation.recorded_trials import recorded_trial
from mctskernel.experiments.ablation.results import (
    LOG_SPEEDUP,
    SHARE,
    ArmAccount,
    Results,
    SubjectAccount,
    Trial,
    encode_results,
)
from mctskernel.experiments.ablation.run_trials import run_trial
from mctskernel.experiments.ablation.subjects import (
    KernelsSubject,
    Subject,
    TaskSubject,
    described,
    subjects_of,
)
from mctskernel.experiments.records.json_lines import LineLog, read_lines
from mctskernel.experiments.records.provenance import Provenance
from mctskernel.experiments.strategies.simulated_search import StopRequested
from mctskernel.experiments.surrogate.predictions import by_space, predict

LOG = "trials.jsonl"
PREDICTIONS = "predictions.jsonl"

Follower = Callable[[int, int, Trial | None], None]
"""Told how many trials are done, how many there are to be, and which came last."""


@dataclass(frozen=True)
class Swept:
    """A sweep that was made, or stopped on the way."""

    results: Results
    finished: bool


def unwatched(_done: int, _planned: int, _trial: Trial | None) -> None:
    """A follower that nobody looks at."""


def sweep(
    ablation: Ablation,
    out: Path,
    jobs: int = 1,
    follow: Follower = unwatched,
    stop_requested: StopRequested = lambda: False,
) -> Swept:
    """Make the trials that the folder doesn't have yet, then write results.json.

    Raises AblationError where the folder holds another sweep, LineError where its log is damaged, and what
    `mctskernel.runner.begin` raises for a trial that can't be made; trials that were made are kept.
    """
    subjects = subjects_of(ablation.spaces, ablation.tasks)
    accounts = tuple(SubjectAccount(each.name, *described(each)) for each in subjects)
    plans = plans_of(ablation, subjects)
    began = time.monotonic()
    manifest = open_manifest(out, ablation, accounts, len(plans))
    made = {trial.key: trial for trial in read_lines(out / LOG, msgspec.json.Decoder(Trial))}
    log = LineLog[Trial](out / LOG)
    left = [plan for plan in plans if plan.key not in made]
    follow(len(made), len(plans), None)
    try:
        known = _predictions(ablation, subjects, out) if left else {}
        for trial in _made(_Work(ablation, out, known), left, _processes(ablation, jobs), stop_requested):
            log.append(trial)
            made[trial.key] = trial
            follow(len(made), len(plans), trial)
    finally:
        seconds = manifest.seconds + time.monotonic() - began
        manifest = msgspec.structs.replace(manifest, trials=len(made), seconds=round(seconds, 1))
        write_manifest(out, manifest)
    trials = tuple(made[plan.key] for plan in plans if plan.key in made)
    results = _results(ablation, accounts, trials, manifest.provenance, len(plans))
    write_whole(out / "results.json", encode_results(results))
    return Swept(results, len(trials) == len(plans))


def is_deterministic(ablation: Ablation) -> bool:
    """Whether the same sweep finds the same again: nothing is measured, no model is asked, nothing overtakes."""
    if ablation.device == "recorded":
        return True
    alone = all(arm.settings.workers == 1 and not arm.settings.asks_a_model for arm in ablation.arms)
    return ablation.device == "model" and alone and ablation.budget.seconds is None


@dataclass(frozen=True)
class _Work:
    """What every trial needs."""

    ablation: Ablation
    out: Path
    known: Known


def _made(
    work: _Work, plans: Sequence[Plan], processes: int, stop_requested: StopRequested
) -> Iterator[Trial]:
    """Trials as they are done, until all are or a stop is requested."""
    if processes > 1:
        yield from _beside_each_other(work, plans, processes, stop_requested)
        return
    with Evaluators() as evaluators:
        for plan in plans:
            if stop_requested():
                return
            trial = _make(work, plan, evaluators, stop_requested)
            if trial is not None:
                yield trial


def _beside_each_other(
    work: _Work, plans: Sequence[Plan], processes: int, stop_requested: StopRequested
) -> Iterator[Trial]:
    # One thread each: the matrices are small, and the cores are taken.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting, running = iter(plans), set[Future[Trial | None]]()
    with ProcessPoolExecutor(processes, context, _begin_process, (work, stop)) as pool:
        try:
            while True:
                if stop_requested():
                    stop.set()
                else:
                    running |= {
                        pool.submit(_make_here, plan)
                        for plan in islice(waiting, 2 * processes - len(running))
                    }
                if not running:
                    return
                done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    if (trial := future.result()) is not None:
                        yield trial
        finally:
            stop.set()


POLL_SECONDS = 0.2
"""How long to wait for a trial before looking whether to stop."""

_process: list[tuple[_Work, Evaluators, Event]] = []
"""What a process of a pool works with."""


def _begin_process(work: _Work, stop: Event) -> None:
    # Ctrl-C reaches every process of a terminal; when these stop, the one that began them says.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    evaluators = Evaluators()
    Finalize(None, evaluators.close, exitpriority=1)
    _process.append((work, evaluators, stop))


def _make_here(plan: Plan) -> Trial | None:
    work, evaluators, stop = _process[0]
    return None if stop.is_set() else _make(work, plan, evaluators, stop.is_set)


def _make(work: _Work, plan: Plan, evaluators: Evaluators, stop_requested: StopRequested) -> Trial | None:
    """A trial; None where it was told to stop, and is to be made again or gone on with."""
    if isinstance(plan.subject, TaskSubject):
        return run_trial(
            plan,
            plan.subject,
            work.ablation,
            work.out,
            evaluators=evaluators,
            stop_requested=stop_requested,
        )
    return recorded_trial(plan, plan.subject, work.ablation, work.known, stop_requested)


def _processes(ablation: Ablation, jobs: int) -> int:
    """A GPU is held by one search at a time."""
    return 1 if ablation.device == "gpu" else jobs


def _predictions(ablation: Ablation, subjects: Iterable[Subject], out: Path) -> Known:
    """What the model says of the recorded kernels, where an arm wants to know; each is priced once."""
    settings = (arm.settings for arm in ablation.arms)
    wanted = any(each.surrogate is not SurrogateUse.OFF and each.oracle == "model" for each in settings)
    kernels = [each.load() for each in subjects if isinstance(each, KernelsSubject)]
    if not wanted or not kernels:
        return {}
    return by_space(predict(kernels, ablation.architecture, out / PREDICTIONS))


def _results(
    ablation: Ablation,
    subjects: tuple[SubjectAccount, ...],
    trials: tuple[Trial, ...],
    provenance: Provenance,
    planned: int,
) -> Results:
    tables = {table["name"]: table for table in ablation.document["arms"]}
    return Results(
        provenance=provenance,
        title=ablation.title,
        question=ablation.question,
        against=ablation.against,
        figure=LOG_SPEEDUP if ablation.tasks else SHARE,
        source=str(_SOURCES[ablation.device]),
        deterministic=is_deterministic(ablation),
        planned=planned,
        checkpoints=ablation.checkpoints,
        arms=tuple(ArmAccount(arm.name, _told(tables[arm.name])) for arm in ablation.arms),
        subjects=subjects,
        trials=trials,
    )


def _told(table: dict[str, object]) -> str:
    """What an arm sets, in a line."""
    return ", ".join(f"{name}={value}" for name, value in table.items() if name != "name")


_SOURCES = {"recorded": Source.RECORDED, "model": Source.MODELLED, "gpu": Source.MEASURED}
"""Where the times of a device come from."""
