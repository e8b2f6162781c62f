"""One search of a recorded space, in this process, at the speed of the machine: only its clock is the recording's."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import mctskernel.tree
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposer
from mctskernel.core.space import Entry, SearchSpace, SpaceError, configuration_kernel, values_of
from mctskernel.core.task import Task, recorded_task
from mctskernel.edits import parameters
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.executors.recorded import RecordedExecutor, evaluation_of
from mctskernel.experiments.strategies.model_variations import settings_of, varied
from mctskernel.experiments.strategies.traces import Trace, improvements
from mctskernel.forecast import Forecaster
from mctskernel.profiling.reward import Reward, composite
from mctskernel.run import Budget
from mctskernel.search import Ending, Search
from mctskernel.space_task import RANDOM, choose_start
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.choices import with_settings
from mctskernel.tree.events import Event
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

ForecasterOf = Callable[[TreeSearch], Forecaster]
StopRequested = Callable[[], bool]


def policy_of(contender: str) -> Policy:
    """The policy that a contender is: a strategy's name, then after a colon what of the policy is set otherwise.

    "mcts:value=mean,exploration=0.5" for instance; after an "@" there may be a variation of the model of edits
    (`mctskernel.experiments.strategies.model_variations`). Raises PolicyError and VariationError.
    """
    strategy, _, changed = settings_of(contender).partition(":")
    return with_settings(Policy(), [f"strategy={strategy}", *filter(None, changed.split(","))])


def search(space: SearchSpace, contender: str, seed: int, in_flight: int, budget: int) -> Trace:
    """Search a space with the real loop, from a configuration that the seed draws.

    Where that one failed the next is drawn, and each of them counts as an evaluation.
    """
    began = time.process_time()
    with varied(contender) as proposer_of:
        found = search_space(space, policy_of(contender), seed, in_flight, budget, proposer_of=proposer_of)
    times = [entry.seconds for entry in found.entries]
    return Trace(
        space=space.name,
        contender=contender,
        seed=seed,
        in_flight=in_flight,
        evaluations=len(times),
        failures=times.count(None),
        improvements=improvements(times, space.optimum_seconds),
        seconds=time.process_time() - began,
        virtual_seconds=found.recorded_seconds,
        code=code_digest(),
    )


@dataclass(frozen=True)
class SpaceSearch:
    """What was evaluated, in the order in which it came back, and the seconds that it took when it was recorded.

    `ended` is False of a search that was told to stop.
    """

    entries: tuple[Entry, ...]
    recorded_seconds: float
    ended: bool


def search_space(
    space: SearchSpace,
    policy: Policy,
    seed: int,
    in_flight: int,
    budget: int,
    *,
    proposer_of: Callable[..., Proposer] = ParameterProposer,
    forecaster_of: ForecasterOf | None = None,
    stop_requested: StopRequested = lambda: False,
) -> SpaceSearch:
    """Search a space by a policy, from a configuration that the seed draws, as `search` does. Raises PolicyError."""
    looked_up: dict[str, Entry] = {}

    def look_up(kernel: Kernel) -> Evaluation:
        entry = looked_up[kernel.identity] = space.by_values[values_of(space, kernel)]
        return evaluation_of(entry)

    try:
        start = choose_start(space, RANDOM, seed, Budget(evaluations=budget))
    except SpaceError:
        # None that runs is found in so many.
        order = np.random.default_rng(seed).permutation(len(space.entries))
        failed = tuple(space.entries[drawn] for drawn in order[:budget])
        return SpaceSearch(failed, sum(entry.cost_seconds for entry in failed), ended=True)
    executor = RecordedExecutor(look_up, {}, workers=in_flight)
    began = executor.clock()
    kernel = configuration_kernel(space, start.entry.values)
    tree, ending = grow(
        kernel,
        task=recorded_task(space.name, kernel),
        policy=policy,
        seed=seed,
        proposer=proposer_of(space, seed),
        executor=executor,
        budget=budget,
        spent=len(start.failed),
        forecaster_of=forecaster_of,
        stop_requested=stop_requested,
    )
    came_back = [looked_up[tree.nodes[node].kernel.identity] for node in tree.evaluated]
    return SpaceSearch(
        (*start.failed, *came_back[: budget - len(start.failed)]),
        executor.clock() - began + sum(entry.cost_seconds for entry in start.failed),
        ending is not Ending.INTERRUPTED,
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
    forecaster_of: ForecasterOf | None = None,
    stop_requested: StopRequested = lambda: False,
    reward: Reward = composite,
) -> tuple[Tree, Ending]:
    """The tree that the real loop grows from a kernel in `budget` evaluations, `spent` of them before it began.

    Nothing of it is written down. Raises PolicyError.
    """
    tree_search = TreeSearch(Tree(), UnkeptLog(), MemoryBlobs(), clock=lambda: 0.0)
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
        forecaster=forecaster_of(tree_search) if forecaster_of else None,
        reward=reward,
    )
    return tree_search.tree, loop.run((root,))


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
