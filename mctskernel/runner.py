"""Begin and resume runs: opens what a search works with, searches, and writes the answer down."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mctskernel.answer import NOTHING_HELD_OUT, Answer, choose, write_answer
from mctskernel.core.device import source_of
from mctskernel.core.executor import CounterSet, Executor, ExecutorOptions
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.executors import open_executor
from mctskernel.memory import keep_snapshot, remember_run, take_snapshot
from mctskernel.opening import open_search, reopen
from mctskernel.proposers import OUTSIDE, open_proposer
from mctskernel.replaying import difference
from mctskernel.report.markdown import trajectory_markdown
from mctskernel.report.view import View
from mctskernel.run import (
    Budget,
    Configuration,
    RunError,
    RunFolder,
    discard_run,
    open_run,
    prepare_run,
    read_manifest,
    write_manifest,
    write_text,
)
from mctskernel.search import Ending, Follower, Search, root_failure
from mctskernel.tree.journal import read_tree
from mctskernel.tree.node import Tree


@dataclass(frozen=True)
class Conclusion:
    """How a run stands when its search has stopped.

    `problem` says why nothing could be searched; `remarks` are what the user should know of the machine.
    """

    folder: RunFolder
    tree: Tree
    ending: Ending
    answer: Answer
    problem: str = ""
    remarks: tuple[str, ...] = ()


def begin(
    path: Path,
    task_folder: Path,
    configuration: Configuration,
    follow: Follower,
    stop_requested: Callable[[], bool],
    *,
    executor: Executor | None = None,
) -> Conclusion:
    """Make a new run and search, with an executor of its own unless one is lent that judges the same task as asked.

    Raises TaskError, SpaceError, RunError, JournalError, DeviceError and, before anything is paid for,
    MemoryUnusableError and ModelError.
    """
    with new_run(path, task_folder, configuration, executor) as (folder, used):
        return _conduct(folder, configuration, used, follow, stop_requested)


@contextmanager
def new_run(
    path: Path, task_folder: Path, configuration: Configuration, lent: Executor | None = None
) -> Iterator[tuple[RunFolder, Executor]]:
    """Make a new run, and what evaluates its kernels for as long as it is searched. Raises what `begin` raises."""
    task = load_task(task_folder, configuration.language)
    _try_reference(task)
    folder = prepare_run(path, task)
    opening = (
        nullcontext(lent)
        if lent
        else open_executor(folder.device_spec(configuration), configuration.workers, configuration.executor)
    )
    try:
        with opening as executor:
            fingerprint = executor.fingerprint()
            _recall(folder, configuration, fingerprint)
            if configuration.replayed is None:
                with open_proposer(task, configuration, fingerprint, configuration.budget.dollars):
                    pass  # What a model lacks is met before there is a run.
            write_manifest(folder, configuration, fingerprint, unanchored=task.unanchored)
            yield folder, executor
    finally:
        discard_run(folder)


def replay(
    path: Path, recorded: Path, follow: Follower, stop_requested: Callable[[], bool]
) -> tuple[Conclusion, str]:
    """Make a run that repeats another one, with the replies that its model gave, and say how the two differ.

    Raises what `begin` raises.
    """
    source = open_run(recorded)
    tree, then = read_tree(source.journal), read_manifest(source).configuration
    if then.proposer == OUTSIDE:
        raise RunError(f"{recorded} was told its edits by another program, which a replay can't ask again.")
    configuration = msgspec.structs.replace(
        then,
        budget=Budget(evaluations=tree.evaluations + then.spent.evaluations),
        memory=None,
        replayed=str(recorded.resolve()),
    )
    conclusion = begin(path, source.task, configuration, follow, stop_requested)
    return conclusion, difference(tree, conclusion.tree)


def resume(
    path: Path,
    budget: Budget | None,
    workers: int | None,
    follow: Follower,
    stop_requested: Callable[[], bool],
    *,
    executor: ExecutorOptions | None = None,
    server: str = "",
    counters: CounterSet | None = None,
) -> Conclusion:
    """Go on with a run, with another budget or engine if one is given, or on a server of the machine that judged.

    Raises what `begin` raises, and RunError on a machine whose times can't be compared with the run's.
    """
    with reopen(path, budget, workers, executor, server, counters=counters) as (
        folder,
        configuration,
        opened,
    ):
        return _conduct(folder, configuration, opened, follow, stop_requested)


def _try_reference(task: Task) -> None:
    """Meet a mistake of the user's in the user's own folder, before anything is written."""
    for shape in task.verify_shapes:
        task.expected(task.draw_inputs(shape, seed=0), shape)


def _conduct(
    folder: RunFolder,
    configuration: Configuration,
    executor: Executor,
    follow: Follower,
    stop_requested: Callable[[], bool],
) -> Conclusion:
    with open_search(folder, configuration, executor, follow, stop_requested) as (search, unfinished):
        ending = search.run(unfinished)
        conclusion = conclude(folder, search, ending)
    return remembered(conclusion, configuration)


def _recall(folder: RunFolder, configuration: Configuration, fingerprint: dict[str, str]) -> None:
    """Write down what earlier runs taught, which is what this one goes by however often it is resumed."""
    if configuration.replayed is not None:
        then = open_run(Path(configuration.replayed)).memory
        if then.exists():
            shutil.copyfile(then, folder.memory)
    elif configuration.memory is not None:
        source = source_of(fingerprint)
        architecture = fingerprint.get("architecture", "")
        found = take_snapshot(Path(configuration.memory), configuration.language, architecture, source)
        keep_snapshot(folder, found, source)


def remembered(conclusion: Conclusion, configuration: Configuration) -> Conclusion:
    """Add what the run taught to its memory; what prevents it is a remark."""
    if configuration.memory is None:
        return conclusion
    problem = remember_run(Path(configuration.memory), conclusion.folder)
    return replace(conclusion, remarks=(*conclusion.remarks, problem)) if problem else conclusion


def conclude(folder: RunFolder, search: Search, ending: Ending) -> Conclusion:
    """Choose the answer of a search that has stopped and write best/. Raises RunError and DeviceError."""
    tree_search = search.tree_search
    if ending is Ending.NO_BASELINE:
        problem = root_failure(tree_search.tree)
        return Conclusion(folder, tree_search.tree, ending, Answer(None, 0.0), problem)
    answer = replace(choose(tree_search, search.executor), unanchored=search.task.unanchored)
    if answer.checks and not search.task.held_out_shapes:
        answer = replace(answer, remarks=(*answer.remarks, NOTHING_HELD_OUT))
    write_answer(folder, tree_search, answer)
    write_text(folder.best / "trajectory.md", trajectory_markdown(View(folder, tree_search.tree, answer)))
    return Conclusion(folder, tree_search.tree, ending, answer, remarks=search.executor.remarks)
