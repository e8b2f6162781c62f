"""Opening: everything that a search of a run works with, for as long as it searches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from mctskernel.core.device import UUID, UUID_SEPARATOR
from mctskernel.core.executor import CounterSet, Executor, ExecutorOptions
from mctskernel.core.experience import Experience
from mctskernel.core.proposer import Proposer
from mctskernel.correspondence import Absent, Correspondence, Correspondents, Mailbox
from mctskernel.edits.experienced import ExperiencedProposer
from mctskernel.edits.llm.mixture import MixtureOptions
from mctskernel.edits.llm.recording import Recorded, Recording
from mctskernel.executors import open_executor, open_surrogate
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.forecast import Forecaster
from mctskernel.memory import kept_snapshot
from mctskernel.predictions import Predictions
from mctskernel.profiling.reward import REWARDS, Reward
from mctskernel.proposers import OUTSIDE, open_proposer
from mctskernel.replaying import Schedule, ScheduledCorrespondence, ScheduledExecutor
from mctskernel.rollouts import Rollouts
from mctskernel.run import Budget, Configuration, RunError, RunFolder, open_run, read_manifest
from mctskernel.search import Follower, Search, spent_seconds
from mctskernel.starts import starting_points
from mctskernel.tree.blobs import get_exchange
from mctskernel.tree.events import Proposed, Submitted
from mctskernel.tree.journal import Journal, read_events, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.rollouts import rolls_out
from mctskernel.tree.search import TreeSearch


@contextmanager
def open_search(
    folder: RunFolder,
    configuration: Configuration,
    executor: Executor,
    follow: Follower,
    stop_requested: Callable[[], bool],
    *,
    correspondence: Correspondence | None = None,
) -> Iterator[tuple[Search, tuple[int, ...]]]:
    """A search of a run, begun or resumed, and the nodes that are to be evaluated first.

    With a `correspondence` that is asked for edits, and not the run's proposer. Raises RunError, JournalError,
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
        proposer: Proposer = Absent()
        if correspondence is None:
            left = _dollars_left(configuration.budget, tree_search.tree)
            opening = open_proposer(task, configuration, executor.fingerprint(), left, recording)
            proposer = _experienced(stack.enter_context(opening), kept_snapshot(folder))
            correspondence = _correspondence(proposer, configuration)
        if schedule is not None:
            executor = ScheduledExecutor(executor, schedule)
            correspondence = correspondence and ScheduledCorrespondence(correspondence, schedule)
        search = Search(
            tree_search=tree_search,
            task=task,
            proposer=proposer,
            executor=executor,
            budget=configuration.budget,
            follow=follow,
            stop_requested=stop_requested,
            reward=_reward(configuration),
            spent_evaluations=configuration.spent.evaluations,
            spent_seconds=spent + configuration.spent.seconds,
            clock=recorded or time.monotonic,
            correspondence=correspondence,
            starts=starting_points(folder.task, configuration.language),
        )
        if (forecasts := configuration.forecasts) is not None:
            predicting = open_surrogate(
                folder.device_spec(configuration), executor.fingerprint(), forecasts.workers
            )
            predictions = Predictions(stack.enter_context(predicting))
            search.forecaster = Forecaster(tree_search, predictions, forecasts.wait)
            if rolls_out(tree_search.tree.policy):
                search.rollouts = Rollouts(tree_search, task, predictions, forecasts.wait)
        yield search, unfinished


@contextmanager
def reopen(
    path: Path,
    budget: Budget | None,
    workers: int | None,
    executor: ExecutorOptions | None = None,
    server: str = "",
    *,
    counters: CounterSet | None = None,
) -> Iterator[tuple[RunFolder, Configuration, Executor]]:
    """What it takes to go on with a run, with another budget, workers, engine, server and counters if they are given.

    Raises RunError and DeviceError, RunError too on a machine whose times can't be compared with the run's.
    """
    folder = open_run(path)
    manifest = read_manifest(folder)
    before = manifest.configuration.executor
    driver = executor or before
    configuration = msgspec.structs.replace(
        manifest.configuration,
        device=server or manifest.configuration.device,
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
            identities[event.node] = event.identity
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


def _correspondence(proposer: Proposer, configuration: Configuration) -> Correspondence | None:
    """Who takes long is asked beside the evaluations; who isn't part of this program can't be asked at all."""
    if configuration.proposer == OUTSIDE:
        return Mailbox(0)
    if configuration.llm is None:
        return None
    return Correspondents(proposer, (configuration.mixture or MixtureOptions()).in_flight)


def _reward(configuration: Configuration) -> Reward:
    found = REWARDS.get(configuration.reward)
    if found is None:
        raise RunError(
            f"There is no reward '{configuration.reward}' here: there are {', '.join(REWARDS)}. One of your own is "
            "entered in mctskernel.profiling.reward.REWARDS before its runs are opened."
        )
    return found


def _dollars_left(budget: Budget, tree: Tree) -> float | None:
    return None if budget.dollars is None else max(0.0, budget.dollars - tree.dollars)


def _experienced(proposer: Proposer, experiences: tuple[Experience, ...]) -> Proposer:
    return ExperiencedProposer(proposer, experiences) if experiences else proposer
