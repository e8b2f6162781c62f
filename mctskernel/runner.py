"""Begin and resume runs: opens what a search works with, searches, and writes the answer down."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mctskernel.answer import Answer, choose, write_answer
from mctskernel.core.executor import Executor
from mctskernel.core.experience import Experience
from mctskernel.core.proposer import Proposer
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.correspondence import Correspondents
from mctskernel.edits.experienced import ExperiencedProposer
from mctskernel.edits.llm.mixture import MixtureOptions
from mctskernel.executors import open_executor, open_surrogate
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.forecast import Forecaster
from mctskernel.memory import keep_snapshot, kept_snapshot, remember_run, take_snapshot
from mctskernel.predictions import Predictions
from mctskernel.proposers import open_proposer
from mctskernel.report.markdown import trajectory_markdown
from mctskernel.report.view import View
from mctskernel.rollouts import Rollouts
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
from mctskernel.search import Ending, Follower, Search, root_failure, spent_seconds
from mctskernel.tree.journal import Journal, read_events, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.rollouts import rolls_out
from mctskernel.tree.search import TreeSearch


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
) -> Conclusion:
    """Make a new run and search.

    Raises TaskError, SpaceError, RunError, JournalError, DeviceError and, before anything is paid for,
    MemoryUnusableError and ModelError.
    """
    task = load_task(task_folder, configuration.language)
    _try_reference(task)
    folder = prepare_run(path, task)
    try:
        with open_executor(folder.device_spec(configuration), configuration.workers) as executor:
            fingerprint = executor.fingerprint()
            _recall(folder, configuration, fingerprint)
            with open_proposer(task, configuration, fingerprint, configuration.budget.dollars):
                pass  # What a model lacks is met before there is a run.
            write_manifest(folder, configuration, fingerprint)
            return _conduct(folder, configuration, executor, follow, stop_requested)
    finally:
        discard_run(folder)


def resume(
    path: Path,
    budget: Budget | None,
    workers: int | None,
    follow: Follower,
    stop_requested: Callable[[], bool],
) -> Conclusion:
    """Go on with a run, with another budget if one is given. Raises what `begin` raises, and RunError on a
    machine whose times can't be compared with the run's."""
    folder = open_run(path)
    manifest = read_manifest(folder)
    configuration = msgspec.structs.replace(
        manifest.configuration,
        budget=budget or manifest.configuration.budget,
        workers=workers or manifest.configuration.workers,
    )
    with open_executor(folder.device_spec(configuration), configuration.workers) as executor:
        _refuse_other_device(folder, manifest.fingerprint, executor.fingerprint())
        return _conduct(folder, configuration, executor, follow, stop_requested)


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
    task = folder.load_task()
    recorded = executor.clock if isinstance(executor, RecordedExecutor) else None
    with Journal(folder.journal) as journal:
        tree_search = TreeSearch(
            read_tree(folder.journal), journal, folder.blobs, clock=recorded or time.time
        )
        spent = spent_seconds(read_events(folder.journal))
        if tree_search.tree.nodes:
            unfinished = tree_search.resume()
        else:
            unfinished = (tree_search.start(task.starting_kernel, configuration.policy, configuration.seed),)
        with ExitStack() as stack:
            dollars_left = _dollars_left(configuration.budget, tree_search.tree)
            opened = open_proposer(task, configuration, executor.fingerprint(), dollars_left)
            proposer = _experienced(stack.enter_context(opened), kept_snapshot(folder))
            search = Search(
                tree_search=tree_search,
                task=task,
                proposer=proposer,
                executor=executor,
                budget=configuration.budget,
                follow=follow,
                stop_requested=stop_requested,
                spent_evaluations=configuration.spent.evaluations,
                spent_seconds=spent + configuration.spent.seconds,
                clock=recorded or time.monotonic,
            )
            if configuration.llm is not None:
                in_flight = (configuration.mixture or MixtureOptions()).in_flight
                search.correspondence = Correspondents(proposer, in_flight)
            if (forecasts := configuration.forecasts) is not None:
                opening = open_surrogate(
                    folder.device_spec(configuration), executor.fingerprint(), forecasts.workers
                )
                surrogate = stack.enter_context(opening)
                predictions = Predictions(surrogate)
                search.forecaster = Forecaster(tree_search, predictions, forecasts.wait)
                if rolls_out(tree_search.tree.policy):
                    search.rollouts = Rollouts(tree_search, task, predictions, forecasts.wait)
            ending = search.run(unfinished)
        return _remembered(conclude(folder, search, ending), configuration)


def _recall(folder: RunFolder, configuration: Configuration, fingerprint: dict[str, str]) -> None:
    """Write down what earlier runs taught, which is what this one goes by however often it is resumed."""
    if configuration.memory is not None:
        source = folder.device_spec(configuration).source
        architecture = fingerprint.get("architecture", "")
        found = take_snapshot(Path(configuration.memory), configuration.language, architecture, source)
        keep_snapshot(folder, found, source)


def _remembered(conclusion: Conclusion, configuration: Configuration) -> Conclusion:
    """Add what the run taught to its memory; what prevents it is a remark."""
    if configuration.memory is None:
        return conclusion
    problem = remember_run(Path(configuration.memory), conclusion.folder)
    return replace(conclusion, remarks=(*conclusion.remarks, problem)) if problem else conclusion


def _dollars_left(budget: Budget, tree: Tree) -> float | None:
    return None if budget.dollars is None else max(0.0, budget.dollars - tree.dollars)


def _experienced(proposer: Proposer, experiences: tuple[Experience, ...]) -> Proposer:
    return ExperiencedProposer(proposer, experiences) if experiences else proposer


def conclude(folder: RunFolder, search: Search, ending: Ending) -> Conclusion:
    """Choose the answer of a search that has stopped and write best/. Raises RunError and DeviceError."""
    tree_search = search.tree_search
    if ending is Ending.NO_BASELINE:
        problem = root_failure(tree_search.tree)
        return Conclusion(folder, tree_search.tree, ending, Answer(None, 0.0), problem)
    answer = choose(tree_search, search.executor)
    write_answer(folder, tree_search, answer)
    write_text(folder.best / "trajectory.md", trajectory_markdown(View(folder, tree_search.tree, answer)))
    return Conclusion(folder, tree_search.tree, ending, answer, remarks=search.executor.remarks)


def _refuse_other_device(folder: RunFolder, then: dict[str, str], now: dict[str, str]) -> None:
    changed = [name for name in sorted(then.keys() | now.keys()) if then.get(name) != now.get(name)]
    if changed:
        name = changed[0]
        raise RunError(
            f"{folder.path} was searched with {name} = {then.get(name, 'nothing')}; here it is "
            f"{now.get(name, 'nothing')}. Times of the two can't be compared: begin a new run."
        )
