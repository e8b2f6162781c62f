"""Searches where every time is looked up: the real loop with nothing built or run, and a clock of recorded seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposer
from mctskernel.core.space import Entry, SearchSpace, SpaceError, configuration_kernel, values_of
from mctskernel.core.task import Task
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.executors.recorded import RecordedExecutor, evaluation_of
from mctskernel.loop import Search, StopReason
from mctskernel.tasks.space import RANDOM, choose_start
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
    PolicyError.
    """
    looked_up: dict[str, Entry] = {}

    def look_up(kernel: Kernel) -> Evaluation:
        entry = looked_up[kernel.identity] = space.by_values[values_of(space, kernel)]
        return evaluation_of(entry)

    try:
        start = choose_start(space, RANDOM, seed, Budget(evaluations=budget))
    except SpaceError:
        # The budget is spent before a configuration runs.
        order = np.random.default_rng(seed).permutation(len(space.entries))
        failed = tuple(space.entries[drawn] for drawn in order[:budget])
        return SpaceSearch(failed, sum(entry.cost_seconds for entry in failed), finished=True)
    executor = RecordedExecutor(look_up, {}, workers=in_flight)
    began = executor.clock()
    kernel = configuration_kernel(space, start.entry.values)
    tree, stop_reason = grow(
        kernel,
        task=Task(name=space.name, starting_kernel=kernel),
        policy=policy,
        seed=seed,
        proposer=ParameterProposer(space, seed),
        executor=executor,
        budget=budget,
        spent=len(start.failed),
        stop_requested=stop_requested,
    )
    evaluated = [looked_up[tree.nodes[node].kernel.identity] for node in tree.evaluated]
    return SpaceSearch(
        (*start.failed, *evaluated[: budget - len(start.failed)]),
        executor.clock() - began + sum(entry.cost_seconds for entry in start.failed),
        stop_reason is not StopReason.INTERRUPTED,
    )


def grow(
    kernel: Kernel,
    *,
    task: Task,
    policy: Policy,
    seed: int,
    proposer: Proposer,
    executor: RecordedExecutor,
    budget: int,
    spent: int = 0,
    stop_requested: StopRequested = lambda: False,
) -> tuple[Tree, StopReason]:
    """Grow a tree in memory from a kernel, in `budget` evaluations of which `spent` are already made.

    Raises PolicyError.
    """
    tree_search = TreeSearch(Tree(), _NoJournal(), MemoryBlobs(), clock=lambda: 0.0)
    root = tree_search.start(kernel, policy, seed)
    loop = Search(
        tree_search=tree_search,
        task=task,
        proposer=proposer,
        executor=executor,
        budget=Budget(evaluations=budget),
        follow=lambda _: None,
        stop_requested=stop_requested,
        spent_evaluations=spent,
    )
    return tree_search.tree, loop.run((root,))


class _NoJournal:
    def append(self, event: Event) -> Event:
        return event
