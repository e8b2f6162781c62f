"""All trials of an ablation: made in several processes, kept as they finish, resumed where they were cut off.

A results folder holds `ablation.toml` (the effective configuration), `trials.jsonl` (a line a trial), `results.json`,
tables, and under `runs/` the run folder of every trial of a task.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec

from mctskernel.core.device import source_of
from mctskernel.core.disk import write_whole
from mctskernel.core.documents import indented_json, parse_toml, read_toml
from mctskernel.experiments.ablation.configuration import Ablation, AblationError
from mctskernel.experiments.ablation.subjects import subjects_of, with_task_folder
from mctskernel.experiments.ablation.trials import Plan, StopRequested, Trial, make, plans_of
from mctskernel.experiments.results import Provenance, append_line, provenance_here, read_lines

CONFIGURATION = "ablation.toml"
LOG = "trials.jsonl"
PROBLEMS = "problems"
RESULTS = "results.json"

SCHEMA = "mctskernel.ablation"
SCHEMA_VERSION = 3

SHARE = "share of the optimum"
LOG_SPEEDUP = "log of the speed-up"
POLL_SECONDS = 0.2  # how long to wait for a trial before checking whether to stop

Follower = Callable[[int, int, Trial | None], None]
"""Called with the number of finished trials, of planned ones, and the latest trial."""


class ArmSummary(msgspec.Struct, frozen=True):
    """An arm and the settings that it sets itself."""

    name: str
    settings: str = ""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """An ablation's trials, fewer than `planned` if it was interrupted; `source` is where times come from."""

    provenance: Provenance
    title: str
    question: str
    baseline: str
    score: str
    source: str
    planned: int
    checkpoints: tuple[int, ...]
    arms: tuple[ArmSummary, ...]
    subjects: tuple[str, ...]
    trials: tuple[Trial, ...]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION

    @property
    def finished(self) -> bool:
        return len(self.trials) == self.planned


def sweep(
    ablation: Ablation,
    out: Path,
    jobs: int = 1,
    follow: Follower = lambda _done, _planned, _trial: None,
    stop_requested: StopRequested = lambda: False,
) -> Results:
    """Make the trials that the folder doesn't have yet, and write results.json.

    Raises AblationError where the folder holds another ablation, RunError where its log is damaged, and what
    `mctskernel.run.search.begin` raises; finished trials are kept.
    """
    subjects = subjects_of(ablation.spaces, ablation.tasks)
    _open(out, ablation)
    plans = plans_of(ablation, [with_task_folder(each, out / PROBLEMS) for each in subjects])
    made = {trial.key: trial for trial in read_lines(out / LOG, msgspec.json.Decoder(Trial))}
    left = [plan for plan in plans if plan.key not in made]
    follow(len(made), len(plans), None)
    processes = min(jobs, len(left))
    for trial in _make_all(ablation, out, left, processes, stop_requested):
        append_line(out / LOG, trial)
        made[trial.key] = trial
        follow(len(made), len(plans), trial)
    results = Results(
        provenance=provenance_here(),
        title=ablation.title,
        question=ablation.question,
        baseline=ablation.baseline,
        score=LOG_SPEEDUP if ablation.tasks else SHARE,
        source=str(source_of({"device": ablation.device})),
        planned=len(plans),
        checkpoints=ablation.checkpoints,
        arms=tuple(ArmSummary(arm.name, arm.summary) for arm in ablation.arms),
        subjects=tuple(each.name for each in subjects),
        trials=tuple(made[plan.key] for plan in plans if plan.key in made),
    )
    write_whole(out / RESULTS, indented_json(results))
    return results


def _open(out: Path, ablation: Ablation) -> None:
    file = out / CONFIGURATION
    if file.exists():
        if read_toml(file) != parse_toml(ablation.text):
            raise AblationError(
                f"{out} holds trials of another configuration, its {CONFIGURATION}. Choose another --out, or ask for "
                "the same."
            )
        return
    if out.exists() and any(out.iterdir()):
        raise AblationError(f"{out} isn't empty and holds no ablation: choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, ablation.text.encode())


def _make_all(
    ablation: Ablation, out: Path, plans: Sequence[Plan], processes: int, stop_requested: StopRequested
) -> Iterator[Trial]:
    if processes > 1:
        yield from _make_in_processes(ablation, out, plans, processes, stop_requested)
        return
    for plan in plans:
        trial = None if stop_requested() else make(ablation, out, plan, stop_requested)
        if trial is None:
            return
        yield trial


def _make_in_processes(
    ablation: Ablation, out: Path, plans: Sequence[Plan], processes: int, stop_requested: StopRequested
) -> Iterator[Trial]:
    # One thread each: the matrices are small, and the cores are taken.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting, running = iter(plans), set[Future[Trial | None]]()
    with ProcessPoolExecutor(processes, context, _begin_process, (ablation, out, stop)) as pool:
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
                yield from (trial for future in done if (trial := future.result()) is not None)
        finally:
            stop.set()


_process: list[tuple[Ablation, Path, Event]] = []  # what a process of the pool works with


def _begin_process(ablation: Ablation, out: Path, stop: Event) -> None:
    # Ctrl-C reaches every process of a terminal; the parent says when these stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _process.append((ablation, out, stop))


def _make_here(plan: Plan) -> Trial | None:
    ablation, out, stop = _process[0]
    return None if stop.is_set() else make(ablation, out, plan, stop.is_set)
