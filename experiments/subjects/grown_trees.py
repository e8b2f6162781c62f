"""Trees grown from made-up kernels, whose evaluations cost nothing: all the time that passes is the engine's.

Edits and evaluations are about as large as those that rules and the model of a GPU make.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field

from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import (
    Bottleneck,
    Cause,
    Check,
    Diagnosis,
    Evaluation,
    Outcome,
    Resources,
    Score,
    Source,
    Timing,
)
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import digest
from mctskernel.tree.events import Event
from mctskernel.tree.evidence import Filed
from mctskernel.tree.journal import EventLog
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch, Try
from mctskernel.tree.strategies.strategy import Propose

FAILURES = 0.2
"""The share of kernels that don't build."""

LEVELS = {f"PARAMETER_{number}": tuple(2.0**power for power in range(8)) for number in range(6)}
"""What edits decide, and how they may."""


@dataclass
class Clock:
    """Seconds of the processor's time, of what is asked of the search and, within it, of storing: journal and blobs.

    `reading` is a part of asking: an edit's record is read from the journal and the blobs when it is handed out.
    """

    asking: float = 0.0
    telling: float = 0.0
    storing: float = 0.0
    reading: float = 0.0

    @property
    def engine(self) -> float:
        """Selection, backup, bookkeeping, and the records of edits: everything but storing."""
        return self.asking + self.telling - self.storing


@dataclass
class Growth:
    """A search that grows by `step`, and the clock of the time that it took."""

    journal: EventLog
    policy: Policy
    edits_per_reply: int = 8
    seed: int = 0
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - repeatable, not secret
        self._samples = [made_up_evaluation(self._rng) for _ in range(100)]
        store = _TimedStore(self.journal, self.clock)
        self.search = _TimedSearch(Tree(), store, store)
        self.search.timed = self.clock
        root = self.search.start(Kernel("0"), self.policy, self.seed)
        self.search.evaluated(root, *self._result(failures=0.0))

    @property
    def tree(self) -> Tree:
        """What has grown."""
        return self.search.tree

    def step(self) -> bool:
        """Does what the search asks next; False if that is nothing. A new node is evaluated at once."""
        start = time.process_time()
        request = self.search.ask()
        self.clock.asking += time.process_time() - start
        match request:
            case Propose():
                proposals = Proposals(
                    tuple(made_up_edit(request.node, self._rng) for _ in range(self.edits_per_reply))
                )
                start = time.process_time()
                self.search.proposed(request, proposals)
            case Try(edit=Edit(change=WholeSource(source=source))):
                kernel, result = Kernel(source), self._result(FAILURES)
                # Hashing is the kernel's own cost, remembered from here on.
                _ = kernel.identity
                start = time.process_time()
                node = self.search.submit(request, kernel)
                if node is not None:
                    self.search.evaluated(node, *result)
            case _:
                return False
        self.clock.telling += time.process_time() - start
        return True

    def _result(self, failures: float) -> tuple[Evaluation, Score]:
        if self._rng.random() < failures:
            broken = Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, "line 12: expected a ';'")
            return broken, Score(-1.0, 0.0, {"time": 0.0})
        reward = self._rng.gauss(0, 0.5)
        terms = {"time": reward, "relief": 0.0, "spills": 0.0, "regression": 0.0}
        return self._rng.choice(self._samples), Score(reward, math.exp(reward), terms)


def made_up_edit(node: int, rng: random.Random) -> Edit:
    """An edit that decides one thing and gives its reasons; its kernel is new."""
    name = rng.choice(tuple(LEVELS))
    factor = Factor(name, rng.choice(LEVELS[name]))
    return Edit(
        Category.TUNING,
        f"{name} -> {factor.level:g}",
        WholeSource(f"{node} {rng.randrange(10**9)}"),
        rationale="Tiles trade reuse for parallelism and registers. Evidence: L2 bandwidth: 805 MB cross between L1 "
        f"and L2, {node} times the data that the kernel touches; tiles in shared memory would reuse it.",
        expected_effect="Another balance of parallelism, reuse and registers.",
        prior=rng.random(),
        proposer="rules",
        factors=(factor,),
    )


def made_up_evaluation(rng: random.Random) -> Evaluation:
    """An evaluation with the counters, terms, checks and diagnosis that the model of a GPU gives."""
    seconds = 1e-4 * rng.random()
    sentence = (
        "537 MB move at 2.44 TB/s, 81% of what a copy reaches; every byte moves about once: touch less of it."
    )
    return Evaluation(
        Outcome.OK,
        Source.MODELLED,
        timings=(Timing("rows=8192 cols=8192", seconds, seconds, seconds),),
        counters={
            f"smsp__average_warps_issue_stalled_{number}.ratio": 1e6 * rng.random() for number in range(31)
        },
        terms={f"pipe {number}": seconds * rng.random() for number in range(15)},
        resources=(Resources("transpose", 32, 4096),),
        checks=tuple(Check("rows=33 cols=130", seed, passed=True, error=0.0) for seed in range(9)),
        diagnosis=Diagnosis(
            tuple(Cause(bottleneck, rng.random(), sentence) for bottleneck in list(Bottleneck)[:5])
        ),
        stage_seconds={stage: rng.random() for stage in ("build", "verify", "count", "disassemble", "price")},
    )


class _TimedSearch(TreeSearch):
    """A search that tells the time of reading edits."""

    timed: Clock

    def edit(self, node: int, number: int) -> Edit:
        """An edit of a node."""
        start = time.process_time()
        found = super().edit(node, number)
        self.timed.reading += time.process_time() - start
        return found


class _TimedStore:
    """A journal and blobs in memory."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._texts: dict[str, str] = {}

    def append(self, event: Event) -> Event | Filed:
        """Keeps an event."""
        start = time.process_time()
        kept = self._log.append(event)
        self._clock.storing += time.process_time() - start
        return kept

    def put(self, text: str) -> str:
        """Keeps a text."""
        start = time.process_time()
        name = digest(text)
        self._texts[name] = text
        self._clock.storing += time.process_time() - start
        return name

    def get(self, name: str) -> str:
        """The text of a name."""
        return self._texts[name]
