"""The stages of a problem, each called in a process of its own: read it, search it; `pytorch_timing` has the third."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from mctskernel.config import SearchConfig, for_task
from mctskernel.core.documents import excerpt
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Language
from mctskernel.core.task import Precision
from mctskernel.core.task_file import load_task, start_files
from mctskernel.core.user_errors import BadMachineError, RunError, UserError
from mctskernel.experiments.bench.rows import TASK_FILE, Read, Searched, Start
from mctskernel.loop import Follower, Snapshot
from mctskernel.problems import pytorch_timing
from mctskernel.problems.registry import read_problem, write_problem
from mctskernel.profiling.gpu.arenas import timed_bytes
from mctskernel.profiling.gpu.lock import held_seconds
from mctskernel.profiling.processes.forked import Caller
from mctskernel.run import RunFolder, read_manifest
from mctskernel.run.search import OtherDeviceError, SearchResult, begin, resume
from mctskernel.tasks.starts import PLAIN, origin, set_plain_aside, start_name, start_nodes
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import run_seconds

FIRST = (
    *pytorch_timing.FIRST,
    "mctskernel.problems.kernelbench.task",
    "mctskernel.problems.inductor.start",
    "mctskernel.experiments.bench.stages",
    "mctskernel.executors.gpu",
    "mctskernel.edits.proposer",
)
"""What the processes have imported before they begin."""

TASK, RUN = "task", "run"


class Progress(msgspec.Struct, frozen=True):
    """How far a search is."""

    evaluations: int
    speedup: float


def read_stage(
    _: Caller,
    problem: Path,
    folder: Path,
    language: Language | None,
    every_start: bool,  # noqa: FBT001 - calls pass their arguments by position
) -> Read:
    """Read a problem into the task folder of its own folder, its plain kernel aside unless `every_start` is wanted."""
    os.nice(pytorch_timing.NICENESS)
    began = time.monotonic()
    shutil.rmtree(folder / TASK, ignore_errors=True)
    try:
        if (problem / TASK_FILE).is_file():
            shutil.copytree(problem, folder / TASK)
            task = load_task(folder / TASK, language)
            further = sorted(each.name for each in start_files(problem, task.starting_kernel.language))
            return Read(time.monotonic() - began, ("kernel", *further), timed_bytes(task))
        found = read_problem(problem, language)
        if found.has_kernel:
            write_problem(found, folder / TASK)
            if not every_start:
                set_plain_aside(folder / TASK)
            task = load_task(folder / TASK, language)
    except UserError as error:
        return Read(time.monotonic() - began, reason=excerpt(error))
    spent = time.monotonic() - began
    if not found.has_kernel:
        return Read(spent, reason=found.notes[-1], notes=found.notes)
    starts = sorted(name for name in found.files if name.startswith(("kernel.", "start_")))
    relaxed = Precision.RELAXED if task.precision is Precision.RELAXED else ""
    precision = relaxed or ("TF32" if task.numerics.tf32 else "")
    return Read(spent, tuple(starts), timed_bytes(task), notes=found.notes, precision=precision)


def search_stage(caller: Caller, folder: Path, config: SearchConfig) -> Searched:
    """Search the task of a problem's folder, or go on with the run that is there, until its budget is spent.

    Sends its progress. Where no start is right, the plain kernel is searched from. A run of another model of GPU is
    begun anew. Raises what `begin` raises for a machine or a folder that can't be used.
    """
    began = time.monotonic()
    gc.freeze()  # what was imported stays: to look through it takes as long as an evaluation
    if config.device == "gpu":
        import torch  # noqa: PLC0415 - an extra

        # In a fork the first thread has to do this, before the driver is used otherwise.
        torch.cuda.init()  # type: ignore[no-untyped-call] # PyTorch declares no types of it
    validating: list[float] = []
    elapsed = opening = 0.0

    def ready() -> None:
        nonlocal opening
        opening = time.monotonic() - began

    def follow(snapshot: Snapshot) -> None:
        nonlocal elapsed
        if snapshot.validating is not None and not validating:
            validating.append(time.monotonic())
        if not validating:
            elapsed = snapshot.elapsed_seconds
        caller.say(Progress(snapshot.evaluations, snapshot.best_speedup))

    try:
        found = _found(folder, config, follow, ready)
    except (BadMachineError, RunError):
        raise  # the same command may succeed later
    except UserError as error:
        return Searched(time.monotonic() - began, gpu_seconds=held_seconds(), reason=excerpt(error))
    ended = time.monotonic()
    return _searched(
        found,
        wall_seconds=ended - began,
        opening_seconds=opening,
        search_seconds=elapsed,
        validation_seconds=ended - validating[0] if validating else 0.0,
    )


def _found(folder: Path, config: SearchConfig, follow: Follower, ready: Callable[[], None]) -> SearchResult:
    path, chosen = folder / RUN, for_task(config, load_task(folder / TASK, config.language))
    found: SearchResult | None = None
    if RunFolder(path).manifest.exists():
        with suppress(OtherDeviceError):
            found = resume(path, config.budget, config.workers, follow, lambda: False, ready=ready)
    if found is None:
        shutil.rmtree(path, ignore_errors=True)
        found = begin(path, folder / TASK, chosen, follow, lambda: False, ready=ready)
    return found


def _searched(found: SearchResult, **seconds: float) -> Searched:
    tree, answer = found.tree, found.answer
    first = _first_start(found.folder.task)
    refused = answer.refused[-1][1] if answer.refused else "Nothing was validated."
    is_valid = answer.node is not None and answer.validated
    best = tree.nodes[answer.node].evaluation if answer.node is not None else None
    reason = "" if is_valid else found.problem or refused
    return Searched(
        evaluations=tree.evaluations,
        gpu_seconds=held_seconds(),
        starts=tuple(_start(tree, node, first) for node in start_nodes(tree)),
        best_seconds=(run_seconds(best) or 0.0) if best is not None else 0.0,
        speedup=answer.speedup,
        origin=(origin(tree, answer.node) or first) if answer.node is not None else "",
        evidence=best.diagnosis.summary if best is not None and best.diagnosis is not None else "",
        gpu=read_manifest(found.folder).fingerprint.get("gpu", ""),
        stop_reason=str(found.stop_reason),
        reason=reason,
        notes=found.notes,
        stage_seconds=_stage_seconds(node.evaluation for node in tree.nodes),
        **seconds,
    )


def _first_start(task: Path) -> str:
    """What the starting kernel of a run's task is."""
    if not list(task.glob("kernel.*")):
        return "torch_compile"  # the search began at another start
    return "templates" if (task / PLAIN).exists() else "plain"


def _stage_seconds(evaluations: Iterable[Evaluation | None]) -> dict[str, float]:
    total: dict[str, float] = {}
    for evaluation in evaluations:
        for stage, seconds in (evaluation.stage_seconds if evaluation is not None else {}).items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def _start(tree: Tree, node: int, first: str) -> Start:
    made, name = tree.nodes[node], start_name(tree, node) or first
    language, evaluation = made.kernel.language, made.evaluation
    if evaluation is None:
        return Start(name, language, "not evaluated")
    if not evaluation.ok:
        return Start(name, language, f"{evaluation.outcome}: {evaluation.message}")
    return Start(name, language, "ok", run_seconds(evaluation) or 0.0)
