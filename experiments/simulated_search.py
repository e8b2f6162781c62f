"""One search of a recorded space, in this process, at the speed of the machine: only its clock is the recording's."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

import mctskernel.tree
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Entry, SearchSpace, SpaceError, configuration_kernel, values_of
from mctskernel.core.task import recorded_task
from mctskernel.edits import parameters
from mctskernel.executors.recorded import RecordedExecutor, evaluation_of
from mctskernel.experiments.model_variations import settings_of, varied
from mctskernel.experiments.search_traces import Trace, improvements
from mctskernel.run import Budget
from mctskernel.search import Search
from mctskernel.space_task import RANDOM, choose_start
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.choices import with_settings
from mctskernel.tree.events import Event
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch


def policy_of(contender: str) -> Policy:
    """The policy that a contender is: a strategy's name, then after a colon what of the policy is set otherwise.

    "mcts:value=mean,exploration=0.5" for instance; after an "@" there may be a variation of the model of edits
    (`mctskernel.experiments.model_variations`). Raises PolicyError and VariationError.
    """
    strategy, _, changed = settings_of(contender).partition(":")
    return with_settings(Policy(), [f"strategy={strategy}", *filter(None, changed.split(","))])


def search(space: SearchSpace, contender: str, seed: int, in_flight: int, budget: int) -> Trace:
    """Search a space with the real loop, from a configuration that the seed draws.

    Where that one failed the next is drawn, and each of them counts as an evaluation.
    """
    began = time.process_time()
    looked_up: dict[str, Entry] = {}

    def look_up(kernel: Kernel) -> Evaluation:
        entry = looked_up[kernel.identity] = space.by_values[values_of(space, kernel)]
        return evaluation_of(entry)

    executor = RecordedExecutor(look_up, {}, workers=in_flight)
    started = executor.clock()
    failed, kernels = _evaluated(space, executor, contender, seed, budget)
    times = [entry.seconds for entry in (*failed, *map(looked_up.__getitem__, kernels))]
    return Trace(
        space=space.name,
        contender=contender,
        seed=seed,
        in_flight=in_flight,
        evaluations=len(times),
        failures=times.count(None),
        improvements=improvements(times, space.optimum_seconds),
        seconds=time.process_time() - began,
        virtual_seconds=executor.clock() - started + sum(entry.cost_seconds for entry in failed),
        code=code_digest(),
    )


@cache
def code_digest() -> str:
    """Of the sources that decide what a search finds: traces of two versions don't compare."""
    found = hashlib.sha256()
    tree = Path(mctskernel.tree.__file__).parent
    for path in (*sorted(tree.rglob("*.py")), Path(parameters.__file__)):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


class UnkeptLog:
    """Events are passed on as they are: nothing reads them again."""

    def append(self, event: Event) -> Event:
        """The event."""
        return event


def _evaluated(
    space: SearchSpace, executor: RecordedExecutor, contender: str, seed: int, budget: int
) -> tuple[Sequence[Entry], Sequence[str]]:
    """The starting configurations that failed, and the kernels evaluated then, in the order in which they came back."""
    try:
        start = choose_start(space, RANDOM, seed, Budget(evaluations=budget))
    except SpaceError:
        # None that runs is found in so many.
        rng = np.random.default_rng(seed)
        return [space.entries[drawn] for drawn in rng.permutation(len(space.entries))[:budget]], ()
    kernel = configuration_kernel(space, start.entry.values)
    tree_search = TreeSearch(Tree(), UnkeptLog(), MemoryBlobs(), clock=lambda: 0.0)
    with varied(contender) as proposer_of:
        root = tree_search.start(kernel, policy_of(contender), seed)
        loop = Search(
            tree_search=tree_search,
            task=recorded_task(space.name, kernel),
            proposer=proposer_of(space, seed),
            executor=executor,
            budget=Budget(evaluations=budget),
            follow=lambda _: None,
            spent_evaluations=len(start.failed),
        )
        loop.run((root,))
    tree = tree_search.tree
    came_back = [tree.nodes[node].kernel.identity for node in tree.evaluated]
    return start.failed, came_back[: budget - len(start.failed)]
