"""Begin and resume runs: opens what a search works with, searches, and writes the answer down."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mctskernel.answer import NOTHING_HELD_OUT, Answer, choose, write_answer
from mctskernel.async_proposer import AsyncProposer, ExternalQueue, NoProposer, ThreadedProposer
from mctskernel.core.device import UUID, UUID_SEPARATOR, source_of
from mctskernel.core.edit import Experience
from mctskernel.core.executor import CounterSet, Executor, ExecutorOptions
from mctskernel.core.proposer import Proposer
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.recording import Recorded, Recording
from mctskernel.edits.proposer import ExperiencedProposer
from mctskernel.executors import open_executor, open_surrogate
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.forecast import Forecaster
from mctskernel.memory import keep_snapshot, kept_snapshot, remember_run, take_snapshot
from mctskernel.proposers import OUTSIDE, open_proposer
from mctskernel.registry import find_function
from mctskernel.replaying import Schedule, ScheduledExecutor, ScheduledProposer, difference
from mctskernel.report.terminal import trajectory_markdown
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
from mctskernel.search import Follower, Search, StopReason, root_failure, spent_seconds
from mctskernel.tasks.starts import starting_points
from mctskernel.tree.blobs import get_exchange
from mctskernel.tree.events import Proposed, Submitted
from mctskernel.tree.journal import Journal, read_events, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.search import TreeSearch


@dataclass(frozen=True)
class SearchResult:
    """How a run stands when its search has stopped.

    `problem` says why nothing could be searched; `notes` are what the user should know of the machine.
    """

    folder: RunFolder
    tree: Tree
    stop_reason: StopReason
    answer: Answer
    problem: str = ""
    notes: tuple[str, ...] = ()


def begin(
    path: Path,
    task_folder: Path,
    configuration: Configuration,
    follow: Follower,
    stop_requested: Callable[[], bool],
    *,
    executor: Executor | None = None,
) -> SearchResult:
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
            write_manifest(folder, configuration, fingerprint, unverified_reference=task.unverified_reference)
            yield folder, executor
    finally:
        discard_run(folder)


def replay(
    path: Path, recorded: Path, follow: Follower, stop_requested: Callable[[], bool]
) -> tuple[SearchResult, str]:
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
    search_result = begin(path, source.task, configuration, follow, stop_requested)
    return search_result, difference(tree, search_result.tree)


def resume(
    path: Path,
    budget: Budget | None,
    workers: int | None,
    follow: Follower,
    stop_requested: Callable[[], bool],
    *,
    executor: ExecutorOptions | None = None,
    counters: CounterSet | None = None,
) -> SearchResult:
    """Go on with a run, with another budget, engine or counters if they are given.

    Raises what `begin` raises, and RunError on a machine whose times can't be compared with the run's.
    """
    with reopen(path, budget, workers, executor, counters=counters) as (
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
) -> SearchResult:
    with open_search(folder, configuration, executor, follow, stop_requested) as (search, unfinished):
        stop_reason = search.run(unfinished)
        search_result = finish(folder, search, stop_reason)
    return remembered(search_result, configuration)


def _recall(folder: RunFolder, configuration: Configuration, fingerprint: dict[str, str]) -> None:
    """Save what earlier runs taught: this run uses that however often it is resumed."""
    if configuration.replayed is not None:
        then = open_run(Path(configuration.replayed)).memory
        if then.exists():
            shutil.copyfile(then, folder.memory)
    elif configuration.memory is not None:
        source = source_of(fingerprint)
        architecture = fingerprint.get("architecture", "")
        found = take_snapshot(Path(configuration.memory), configuration.language, architecture, source)
        keep_snapshot(folder, found, source)


def remembered(search_result: SearchResult, configuration: Configuration) -> SearchResult:
    """Add what the run taught to its memory; what prevents it is a note."""
    if configuration.memory is None:
        return search_result
    problem = remember_run(Path(configuration.memory), search_result.folder)
    return replace(search_result, notes=(*search_result.notes, problem)) if problem else search_result


def finish(folder: RunFolder, search: Search, stop_reason: StopReason) -> SearchResult:
    """Choose the answer of a search that has stopped and write best/. Raises RunError and DeviceError."""
    tree_search = search.tree_search
    if stop_reason is StopReason.NO_BASELINE:
        problem = root_failure(tree_search.tree)
        return SearchResult(folder, tree_search.tree, stop_reason, Answer(None, 0.0), problem)
    answer = replace(
        choose(tree_search, search.executor), unverified_reference=search.task.unverified_reference
    )
    if answer.checks and not search.task.held_out_shapes:
        answer = replace(answer, notes=(*answer.notes, NOTHING_HELD_OUT))
    write_answer(folder, tree_search, answer)
    write_text(folder.best / "trajectory.md", trajectory_markdown(View(folder, tree_search.tree, answer)))
    return SearchResult(folder, tree_search.tree, stop_reason, answer, notes=search.executor.notes)


@contextmanager
def open_search(
    folder: RunFolder,
    configuration: Configuration,
    executor: Executor,
    follow: Follower,
    stop_requested: Callable[[], bool],
    *,
    async_proposer: AsyncProposer | None = None,
) -> Iterator[tuple[Search, tuple[int, ...]]]:
    """A search of a run, begun or resumed, and the nodes that are to be evaluated first.

    An `async_proposer` is asked for edits in place of the run's own. Raises RunError, JournalError,
    SpaceError and ModelError.
    """
    task = folder.load_task()
    recorded = executor.clock if isinstance(executor, RecordedExecutor) else None
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(folder.journal))
        tree_search = TreeSearch(
            read_tree(folder.journal), journal, folder.blobs, clock=recorded or steady_clock()
        )
        spent = spent_seconds(read_events(folder.journal))
        if tree_search.tree.nodes:
            unfinished = tree_search.resume()
        else:
            unfinished = (tree_search.start(task.starting_kernel, configuration.policy, configuration.seed),)
        schedule, recording = None, None
        if configuration.replayed is not None:
            source = open_run(Path(configuration.replayed))
            schedule = Schedule(read_events(source.journal), tree_search.tree, stop_requested)
            recording = Recording(exchanges_of(source), exchanges_of(folder))
        proposer: Proposer = NoProposer()
        if async_proposer is None:
            left = _dollars_left(configuration.budget, tree_search.tree)
            opening = open_proposer(task, configuration, executor.fingerprint(), left, recording)
            proposer = _experienced(stack.enter_context(opening), kept_snapshot(folder))
            async_proposer = _async_proposer(proposer, configuration)
        if schedule is not None:
            executor = ScheduledExecutor(executor, schedule)
            async_proposer = async_proposer and ScheduledProposer(async_proposer, schedule)
        search = Search(
            tree_search=tree_search,
            task=task,
            proposer=proposer,
            executor=executor,
            budget=configuration.budget,
            follow=follow,
            stop_requested=stop_requested,
            reward=find_function("reward", configuration.reward),
            spent_evaluations=configuration.spent.evaluations,
            spent_seconds=spent + configuration.spent.seconds,
            clock=recorded or time.monotonic,
            async_proposer=async_proposer,
            starts=starting_points(folder.task, configuration.language),
        )
        if (forecasts := configuration.forecasts) is not None:
            predicting = open_surrogate(
                folder.device_spec(configuration), executor.fingerprint(), forecasts.workers
            )
            search.forecaster = Forecaster(tree_search, stack.enter_context(predicting), forecasts.wait)
        yield search, unfinished


@contextmanager
def reopen(
    path: Path,
    budget: Budget | None,
    workers: int | None,
    executor: ExecutorOptions | None = None,
    *,
    counters: CounterSet | None = None,
) -> Iterator[tuple[RunFolder, Configuration, Executor]]:
    """What it takes to go on with a run, with another budget, workers, engine and counters if they are given.

    Raises RunError and DeviceError, RunError too on a machine whose times can't be compared with the run's.
    """
    folder = open_run(path)
    manifest = read_manifest(folder)
    before = manifest.configuration.executor
    driver = executor or before
    configuration = msgspec.structs.replace(
        manifest.configuration,
        budget=budget or manifest.configuration.budget,
        workers=workers or manifest.configuration.workers,
        executor=msgspec.structs.replace(driver, counters=counters or driver.counters or before.counters),
    )
    with open_executor(
        folder.device_spec(configuration), configuration.workers, configuration.executor
    ) as opened:
        _refuse_other_device(folder, manifest.fingerprint, opened.fingerprint())
        yield folder, configuration, opened


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, by which a search spends no days when the machine's clock is set while it runs."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


def exchanges_of(folder: RunFolder) -> Iterator[Recorded]:
    """What a run's models were asked and said, each with the kernel that it was about. Raises JournalError."""
    identities: dict[int, str] = {}
    for event in read_events(folder.journal):
        if isinstance(event, Submitted):
            identities[event.node] = event.kernel.identity
        elif isinstance(event, Proposed):
            for record in event.exchanges:
                yield Recorded(identities[event.node], get_exchange(folder.blobs, record))


def _refuse_other_device(folder: RunFolder, then: dict[str, str], now: dict[str, str]) -> None:
    names = sorted(then.keys() | now.keys())
    changed = [name for name in names if not _agree(name, then.get(name), now.get(name))]
    if changed:
        name = changed[0]
        raise RunError(
            f"{folder.path} was searched with {name} = {then.get(name, 'nothing')}; here it is "
            f"{now.get(name, 'nothing')}. Times of the two can't be compared: begin a new run."
        )


def _agree(name: str, then: str | None, now: str | None) -> bool:
    """Of several GPUs one in common is enough: they are of one kind, and each is measured against the starting kernel,
    whose time on the common one is in the journal."""
    if name != UUID or then is None or now is None:
        return then == now
    return not set(then.split(UUID_SEPARATOR)).isdisjoint(now.split(UUID_SEPARATOR))


def _async_proposer(proposer: Proposer, configuration: Configuration) -> AsyncProposer | None:
    """Models are asked while evaluations go on; a proposer outside this program can't be asked at all."""
    if configuration.proposer == OUTSIDE:
        return ExternalQueue(0)
    if configuration.llm is None:
        return None
    return ThreadedProposer(proposer, (configuration.mixture or MixtureOptions()).in_flight)


def _dollars_left(budget: Budget, tree: Tree) -> float | None:
    return None if budget.dollars is None else max(0.0, budget.dollars - tree.dollars)


def _experienced(proposer: Proposer, experiences: tuple[Experience, ...]) -> Proposer:
    return ExperiencedProposer(proposer, experiences) if experiences else proposer
