"""One search of a recorded space, in this process, at the speed of the machine: only its clock is the recording's."""

from __future__ import annotations

import hashlib
import heapq
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import mctskernel.tree
from mctskernel.core.evaluation import Check, Evaluation, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import Entry, SearchSpace, configuration_kernel, values_of
from mctskernel.core.task import Task, Tolerance
from mctskernel.edits.parameters import ParameterProposer
from mctskernel.experiments.search_traces import Trace, improvements
from mctskernel.run import Budget
from mctskernel.search import Search
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.choices import with_settings
from mctskernel.tree.events import Event
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch


def policy_of(contender: str) -> Policy:
    """The policy that a contender is: a strategy's name, then after a colon what of the policy is set otherwise.

    "mcts:value=mean,exploration=0.5" for instance. Raises PolicyError.
    """
    strategy, _, settings = contender.partition(":")
    return with_settings(Policy(), [f"strategy={strategy}", *filter(None, settings.split(","))])


def search(space: SearchSpace, contender: str, seed: int, in_flight: int, budget: int) -> Trace:
    """Search a space with the real loop, from a configuration that the seed draws.

    Where that one failed another is drawn, and each of them counts as an evaluation.
    """
    began = time.process_time()
    failed, start = _start(space, seed)
    tree_search = TreeSearch(Tree(), UnkeptLog(), MemoryBlobs(), clock=lambda: 0.0)
    executor = ClockedExecutor(space, in_flight)
    if start is not None and len(failed) < budget:
        kernel = configuration_kernel(space, start.values)
        root = tree_search.start(kernel, policy_of(contender), seed)
        loop = Search(
            tree_search=tree_search,
            task=_task(space, kernel),
            proposer=ParameterProposer(space, seed),
            executor=executor,
            budget=Budget(evaluations=budget - len(failed)),
            follow=lambda _: None,
        )
        loop.run((root,))
    entries = [*failed, *executor.finished][:budget]
    times = [entry.seconds for entry in entries]
    return Trace(
        space=space.name,
        contender=contender,
        seed=seed,
        in_flight=in_flight,
        evaluations=len(times),
        failures=times.count(None),
        improvements=improvements(times, space.optimum_seconds),
        seconds=time.process_time() - began,
        virtual_seconds=executor.now + sum(entry.cost_seconds for entry in failed),
        code=code_digest(),
    )


class UnkeptLog:
    """Events are passed on as they are: nothing reads them again."""

    def append(self, event: Event) -> Event:
        """The event."""
        return event


@dataclass
class ClockedExecutor:
    """Looks evaluations up. `capacity` of them run beside each other, each for as long as was recorded.

    `now` is the clock, in seconds; `finished` are the entries in the order in which they came back.
    """

    space: SearchSpace
    capacity: int
    remarks: tuple[str, ...] = ()
    now: float = 0.0
    finished: list[Entry] = field(default_factory=list)
    _running: list[tuple[float, int, Entry]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation."""
        entry = self.space.by_values[values_of(self.space, kernel)]
        heapq.heappush(self._running, (self.now + entry.cost_seconds, ticket, entry))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:  # noqa: ARG002 - the clock is moved
        """The evaluation that ends next."""
        if not self._running:
            return []
        self.now, ticket, entry = heapq.heappop(self._running)
        self.finished.append(entry)
        return [(ticket, _evaluation(entry))]

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:  # noqa: ARG002 - nothing can be run
        """Nothing: a recorded kernel can't be run."""
        return ()

    def fingerprint(self) -> dict[str, str]:
        """The name of the space."""
        return {"device": "recorded", "space": self.space.name}

    def close(self) -> None:
        """Nothing is open."""


@cache
def code_digest() -> str:
    """Of the sources that decide what a search finds: traces of two versions don't compare."""
    found = hashlib.sha256()
    for path in sorted(Path(mctskernel.tree.__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _start(space: SearchSpace, seed: int) -> tuple[list[Entry], Entry | None]:
    """Configurations drawn without replacement: those that failed, then the first that ran, None if none does."""
    failed: list[Entry] = []
    for drawn in np.random.default_rng(seed).permutation(len(space.entries)):
        entry = space.entries[drawn]
        if entry.seconds is not None:
            return failed, entry
        failed.append(entry)
    return failed, None


def _task(space: SearchSpace, start: Kernel) -> Task:
    """As much of a task as a search of recorded times asks for."""
    return Task(
        name=space.name,
        summary="",
        folder=Path(),
        inputs=(),
        outputs=(),
        scalars={},
        search_shapes=(),
        verify_shapes=(),
        held_out_shapes=(),
        tolerance=Tolerance(),
        starting_kernel=start,
    )


def _evaluation(entry: Entry) -> Evaluation:
    seconds = entry.seconds
    timings = (Timing("", seconds, seconds, seconds),) if seconds is not None else ()
    return Evaluation(
        entry.outcome, Source.RECORDED, entry.word, timings, stage_seconds=dict(entry.stage_seconds)
    )
