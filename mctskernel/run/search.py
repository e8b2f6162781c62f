"""How a run is begun, resumed and finished."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from mctskernel.answer import Answer, choose
from mctskernel.config import OUTSIDE, RULES, SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.device import UUID, UUID_SEPARATOR
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.executor import CounterSet, Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposer
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.edits.async_proposer import AsyncProposer, ExternalQueue, NoProposer, ThreadedProposer
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.patch import apply
from mctskernel.executors import open_executor
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.executors.rules import RuleProcess
from mctskernel.loop import Follower, Search, StopReason, root_failure
from mctskernel.profiling.reward import fastest_first
from mctskernel.registry import find_function
from mctskernel.run import (
    RunFolder,
    discard_run,
    open_run,
    prepare_run,
    read_manifest,
    rewrite_manifest,
    spent_seconds,
    write_answer,
    write_manifest,
)
from mctskernel.run.proposer import open_proposer
from mctskernel.tasks.starts import best_start, copy_other_starts, starting_points
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.journal import Journal, MemoryJournal, read_events, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.recorded_decisions import RecordedDecisions
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Action, Step

OTHER_START = "The search began at another start."

NOTHING_HELD_OUT = (
    "The task has no held-out shapes, so the final validation was at shapes that the search uses: a kernel that is "
    "right only there passes."
)
"""The warning on an answer whose task has no `held_out` shapes."""


@dataclass(frozen=True)
class SearchResult:
    """How a run stands when its search has stopped.

    `problem` says why nothing could be searched, `advice` what could be done where nothing more was found; `notes` are
    what the user should know of the machine.
    """

    folder: RunFolder
    tree: Tree
    stop_reason: StopReason
    answer: Answer
    problem: str = ""
    advice: str = ""
    notes: tuple[str, ...] = ()


def begin(
    path: Path,
    task_folder: Path,
    configuration: SearchConfig,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
    *,
    ready: Callable[[], None] = lambda: None,
) -> SearchResult:
    """Make a new run and search. `ready` is called when the device is open, before the time begins to count.

    Where the starting kernel has no valid time, or no kernel passes the final validation, the search begins again with
    the next start of the task; a run whose kernels were refused is kept beside it. Raises TaskError, SpaceError,
    RunError, DeviceError and, before anything is paid for, ModelError.
    """
    with new_run(path, task_folder, configuration) as (folder, executor):
        ready()
        with open_search(folder, configuration, executor, follow, stop_requested) as (search, unfinished):
            found = finish(folder, search, search.run(unfinished), may_wait=True)
    refused = "; ".join(reason for _, reason in found.answer.refused)
    failed = found.problem if found.stop_reason is StopReason.NO_BASELINE else refused
    if found.answer.node is not None or not failed or found.stop_reason is StopReason.INTERRUPTED:
        return found
    with TemporaryDirectory(prefix="mctskernel-") as temporary:
        rest = Path(temporary) / task_folder.resolve().name
        if not copy_other_starts(search.task, configuration.language, rest):
            return found
        if found.stop_reason is StopReason.NO_BASELINE:
            shutil.rmtree(path)
        else:
            failed += f" The search so far is kept in {_set_aside(path).name}."
        again = begin(path, rest, configuration, follow, stop_requested)
    return replace(again, notes=(f"{failed} {OTHER_START}", *again.notes))


def _set_aside(path: Path) -> Path:
    """Move a run whose kernels were all refused, so that another can take its place."""
    names = (f"{path.name}-refused-{number}" for number in itertools.count(1))
    return path.rename(next(each for each in map(path.with_name, names) if not each.exists()))


def resume(
    path: Path,
    budget: Budget | None = None,
    workers: int | None = None,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
    *,
    executor: ExecutorOptions | None = None,
    counters: CounterSet | None = None,
    ready: Callable[[], None] = lambda: None,
) -> SearchResult:
    """Continue a run, with another budget, executor or counters if they are given.

    Raises what `begin` raises, and RunError on a machine whose times can't be compared with the run's.
    """
    with reopen(path, budget, workers, executor, counters=counters) as (folder, configuration, used):
        ready()
        with open_search(folder, configuration, used, follow, stop_requested) as (search, unfinished):
            return finish(folder, search, search.run(unfinished), may_wait=True)


@contextmanager
def new_run(
    path: Path, task_folder: Path, configuration: SearchConfig
) -> Iterator[tuple[RunFolder, Executor]]:
    """Make a new run, and what evaluates its kernels for as long as it is searched. Raises what `begin` raises."""
    task = load_task(task_folder, configuration.language)
    for shape in task.verify_shapes if configuration.replayed is None else ():
        # A mistake in the user's reference is met before anything is written.
        task.expected(task.draw_inputs(shape, seed=0), shape)
    folder = prepare_run(path, task)
    device = folder.device_spec(configuration)
    likely = (
        partial(_likely, task, configuration) if configuration.proposer == RULES and not task.space else None
    )
    try:
        with open_executor(device, configuration.workers, configuration.executor, likely) as executor:
            fingerprint = executor.fingerprint()
            if configuration.replayed is None and likely is None:
                with open_proposer(task, configuration, fingerprint, configuration.budget.dollars):
                    pass  # What a model lacks is met before there is a run.
            write_manifest(folder, configuration, fingerprint, caveats=task.caveats)
            yield folder, executor
    finally:
        discard_run(folder)


def _likely(task: Task, configuration: SearchConfig, count: int) -> Iterator[Kernel]:
    """The kernels that rules make of the starting kernel and the policy takes first, as far as is known before."""
    evaluation = Evaluation(Outcome.OK, Source.MEASURED)
    search = TreeSearch(Tree(), MemoryJournal(), MemoryBlobs())
    search.start(task.starting_kernel, configuration.policy, configuration.seed)
    search.evaluate(0, evaluation, Score(1.0, 1.0))
    with closing(RuleProcess(task, configuration.language)) as rules:
        search.propose(0, rules.propose(ProposalRequest(task, task.starting_kernel, evaluation)))
    while count and isinstance(step := search.next_action(), Step):
        kernel = apply(task.starting_kernel, search.edit(step.node, step.edit))
        if search.submit(step, kernel) is not None:
            count -= 1
            yield kernel


@contextmanager
def reopen(
    path: Path,
    budget: Budget | None,
    workers: int | None,
    executor: ExecutorOptions | None = None,
    *,
    counters: CounterSet | None = None,
) -> Iterator[tuple[RunFolder, SearchConfig, Executor]]:
    """Open what continues a run, with another budget, workers, executor and counters if they are given.

    Raises RunError, also on a machine with another model of GPU or other compilers.
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
        _refuse_other_model(folder, manifest.fingerprint, opened.fingerprint())
        yield folder, configuration, opened


@contextmanager
def open_search(
    folder: RunFolder,
    configuration: SearchConfig,
    executor: Executor,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
    *,
    async_proposer: AsyncProposer | None = None,
) -> Iterator[tuple[Search, tuple[int, ...]]]:
    """Open the search of a run, begun or resumed; yields it and the nodes that are to be evaluated first.

    An `async_proposer` is asked for edits in place of the run's own. Raises RunError, SpaceError and ModelError.
    """
    task = folder.load_task()
    recorded = executor.clock if isinstance(executor, RecordedExecutor) else None
    fingerprint = executor.fingerprint()
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(folder.journal))
        tree_search = TreeSearch(
            read_tree(folder.journal), journal, folder.blobs, clock=recorded or steady_clock()
        )
        spent = spent_seconds(read_events(folder.journal))
        if tree_search.tree.nodes:
            unfinished = tree_search.resume()
            if _moved(folder, fingerprint):
                unfinished = (*unfinished, *_to_retime(tree_search.tree))
        else:
            unfinished = (tree_search.start(task.starting_kernel, configuration.policy, configuration.seed),)
        choose: Callable[[], Action | None] | None = None
        proposer: Proposer = NoProposer()
        if (decisions := _decisions_left(folder, configuration)) is not None:
            choose = partial(decisions.next, tree_search)
        elif async_proposer is None:
            dollars = configuration.budget.left(0, 0.0, tree_search.tree.dollars).dollars
            proposer = stack.enter_context(open_proposer(task, configuration, fingerprint, dollars))
            async_proposer = _async_proposer(proposer, configuration)
        yield (
            Search(
                tree_search=tree_search,
                task=task,
                proposer=proposer,
                executor=executor,
                budget=configuration.budget,
                follow=follow,
                stop_requested=stop_requested,
                reward=find_function("reward", configuration.reward),
                spent_seconds=spent,
                clock=recorded or time.monotonic,
                choose=choose,
                async_proposer=async_proposer,
                starts=starting_points(task, configuration.language),
                fingerprint=fingerprint,
            ),
            unfinished,
        )


def _decisions_left(folder: RunFolder, configuration: SearchConfig) -> RecordedDecisions | None:
    """The decisions of the run that this one repeats; None where all kernels are made, and without such a run."""
    if configuration.replayed is None:
        return None
    source, made = open_run(Path(configuration.replayed)), read_events(folder.journal)
    recorded = read_events(source.journal)
    decisions = RecordedDecisions(recorded, source.blobs, configuration.replayed_nodes, made)
    return decisions if decisions.are_left else None


def finish(
    folder: RunFolder,
    search: Search,
    stop_reason: StopReason,
    *,
    validate: bool = True,
    may_wait: bool = False,
) -> SearchResult:
    """Choose the answer of a search that has stopped, and write best/.

    Ctrl-C leaves the final validation out, as it is without `validate`; after one that stopped the search, another.
    A search that waits for answers from outside has none yet if it `may_wait`. Raises RunError and DeviceError.
    """
    tree_search = search.tree_search
    if stop_reason is StopReason.NO_BASELINE:
        problem = root_failure(tree_search.tree)
        return SearchResult(folder, tree_search.tree, stop_reason, Answer(None, 0.0), problem)
    if stop_reason is StopReason.WAITING and may_wait:
        return SearchResult(folder, tree_search.tree, stop_reason, Answer(None, 0.0, validated=False))
    is_stopped = search.stop_requested()
    answer = choose(
        tree_search,
        search.executor,
        search.say_validating,
        lambda: not validate or (search.stop_requested() and not is_stopped),
    )
    answer = replace(answer, caveats=search.task.caveats, evaluations=tree_search.tree.evaluations)
    if not answer.validated:
        stop_reason = StopReason.INTERRUPTED
    if answer.checks and not search.task.held_out_shapes:
        answer = replace(answer, notes=(*answer.notes, NOTHING_HELD_OUT))
    write_answer(folder, tree_search, answer)
    advice = _advice(stop_reason, search.budget, read_manifest(folder).configuration.proposer)
    notes = search.executor.notes
    return SearchResult(folder, tree_search.tree, stop_reason, answer, advice=advice, notes=notes)


def _advice(stop_reason: StopReason, budget: Budget, proposer: str) -> str:
    """What a search that ended by itself means, and what could find more."""
    model = "a language model may find more: --proposer mixed" if proposer == RULES else ""
    if stop_reason is StopReason.EXHAUSTED and model:
        return f"Rules exhausted; {model}"
    if stop_reason is StopReason.PATIENCE:
        gain = f"The last {budget.patience} evaluations brought no gain (--patience)"
        return f"{gain}; {model}" if model else f"{gain}."
    return ""


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since the epoch that doesn't jump when the machine's clock is set."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


MOVABLE = (UUID, "driver")
"""What may differ where a search goes on: times are ratios to the starting kernel's, which is timed beside each."""


class OtherDeviceError(RunError):
    """A run whose times can't be compared with this machine's."""


RETIMED = 5
"""How many of the fastest kernels are timed again with another GPU of the same model, beside the starting kernel."""


def _refuse_other_model(folder: RunFolder, then: dict[str, str], now: dict[str, str]) -> None:
    names = sorted((then.keys() | now.keys()) - set(MOVABLE))
    changed = [name for name in names if then.get(name) != now.get(name)]
    if changed:
        name = changed[0]
        measure = f"mctskernel resume {folder.path} --device {now.get('device', 'gpu')}"
        raise OtherDeviceError(
            f"{folder.path} was searched with {name} = {then.get(name, 'nothing')}; here it is "
            f"{now.get(name, 'nothing')}. Times of the two can't be compared: `{measure}` measures the best kernels "
            "here, in a new run that can be searched further."
        )


def _moved(folder: RunFolder, now: dict[str, str]) -> bool:
    """Whether a run goes on with a GPU, or a driver, that it hasn't seen; it is written down."""
    manifest = read_manifest(folder)
    if any(_agree(then, now) for then in (manifest.fingerprint, *manifest.moved_to)):
        return False
    rewrite_manifest(folder, msgspec.structs.replace(manifest, moved_to=(*manifest.moved_to, now)))
    return True


def _agree(then: dict[str, str], now: dict[str, str]) -> bool:
    """Of several GPUs one in common is enough: the starting kernel's time on it is in the journal."""
    known, here = (set(each.get(UUID, "").split(UUID_SEPARATOR)) for each in (then, now))
    return then.get("driver") == now.get("driver") and not known.isdisjoint(here)


def _to_retime(tree: Tree) -> tuple[int, ...]:
    """The root, the fastest start and the fastest kernels, as far as they have valid times."""
    root = tree.nodes[0].evaluation
    if root is None:
        return ()
    evaluated = [(node.id, node.evaluation) for node in tree.nodes if node.evaluation is not None]
    return tuple(dict.fromkeys((0, best_start(tree), *fastest_first(evaluated, root)[:RETIMED])))


def _async_proposer(proposer: Proposer, configuration: SearchConfig) -> AsyncProposer | None:
    """Models are asked while evaluations go on; a proposer outside this program can't be asked at all."""
    if configuration.proposer == OUTSIDE:
        return ExternalQueue(0)
    if configuration.llm is None:
        return None
    return ThreadedProposer(proposer, (configuration.mixture or MixtureOptions()).in_flight)
