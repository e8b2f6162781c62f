"""Searches where every time is looked up: the real loop with nothing built or run, and a clock of recorded seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Entry, SearchSpace, SpaceError, configuration_kernel, values_of
from mctskernel.core.task import Task
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.executors.recorded import RecordedExecutor, evaluation_of
from mctskernel.loop import Search, StopReason
from mctskernel.tasks.space import choose_start
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Event
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

StopRequested = Callable[[], bool]


@dataclass(frozen=True)
class SpaceSearch:
    """The entries that a search evaluated, in order, and their recorded seconds; `finished` unless it was stopped."""

    entries: tuple[Entry, ...]
    recorded_seconds: float
    finished: bool


def search_space(
    space: SearchSpace,
    policy: Policy,
    seed: int,
    budget: int,
    *,
    in_flight: int = 1,
    stop_requested: StopRequested = lambda: False,
) -> SpaceSearch:
    """Search a space from a configuration that the seed draws.

    While the drawn configuration is one that fails, the next is drawn; each of them counts as an evaluation. Raises
    MisuseError.
    """
    looked_up: dict[str, Entry] = {}

    def look_up(kernel: Kernel) -> Evaluation:
        entry = looked_up[kernel.identity] = space.by_values[values_of(space, kernel)]
        return evaluation_of(entry)

    try:
        start = choose_start(space, seed)
    except SpaceError:
        failed = space.entries
    else:
        failed = start.failed
    if len(failed) >= min(budget, len(space.entries)):
        spent = failed[:budget]
        return SpaceSearch(spent, sum(entry.cost_seconds for entry in spent), finished=True)
    executor = RecordedExecutor(look_up, {}, workers=in_flight)
    began = executor.clock()
    kernel = configuration_kernel(space, start.entry.values)
    tree_search = TreeSearch(Tree(), _NoJournal(), MemoryBlobs(), clock=lambda: 0.0)
    root = tree_search.start(kernel, policy, seed)
    stop_reason = Search(
        tree_search=tree_search,
        task=Task(name=space.name, starting_kernel=kernel),
        proposer=ParameterProposer(space, seed),
        executor=executor,
        budget=Budget(evaluations=budget - len(failed)),
        follow=lambda _: None,
        stop_requested=stop_requested,
    ).run((root,))
    tree = tree_search.tree
    return SpaceSearch(
        (*failed, *(looked_up[tree.nodes[node].kernel.identity] for node in tree.evaluated)),
        executor.clock() - began + sum(entry.cost_seconds for entry in failed),
        stop_reason is not StopReason.INTERRUPTED,
    )


class _NoJournal:
    def append(self, event: Event) -> Event:
        return event
