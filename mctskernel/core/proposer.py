"""What a proposer is asked and what it answers."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task


@dataclass(frozen=True)
class Attempt:
    """An edit that was tried, the `node` it made, its `gain` (parent's time over its own, or 0) and its `effect`."""

    title: str
    category: str
    outcome: Outcome
    gain: float
    message: str = ""
    proposer: str = ""
    node: int | None = None
    effect: str = ""


@dataclass(frozen=True)
class ProposalRequest:
    """One node with its evidence: the lineage runs from the root, siblings are earlier edits of this node.

    `offered` is how many edits the node was given before, tried or not. `elsewhere` are edits that made other kernels
    of the search faster, the greatest gain first. `standings` are, by proposer, the logarithms of the gains of its
    edits in the order in which they were evaluated, 0 for those that failed or made nothing faster. `speedup` is the
    node's over the fastest start, `best_speedup` that of the fastest kernel so far. `fruitless` is how many replies
    in a row gave the node no new kernel, `unanswered` how often in a row, in the whole search, a model was asked and
    didn't answer. `beside` are the latest edits of the lineage's kernels that lead elsewhere, `lost` says in
    sentences what couldn't be used of the latest replies about these kernels, and `standing` how the starts and the
    fastest kernel stand.
    """

    task: Task
    kernel: Kernel
    evaluation: Evaluation
    lineage: tuple[Attempt, ...] = ()
    siblings: tuple[Attempt, ...] = ()
    seed: int = 0
    offered: int = 0
    node: int = 0
    elsewhere: tuple[Attempt, ...] = ()
    standings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    speedup: float = 1.0
    best_speedup: float = 1.0
    fruitless: int = 0
    unanswered: int = 0
    beside: tuple[Attempt, ...] = ()
    lost: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()


class Purpose(enum.StrEnum):
    """What a model was asked for."""

    PROPOSE = "propose"
    MEND = "mend"
    REPAIR = "repair"
    GENERATE = "generate"


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call of a model: prompt, reply and cost.

    `prompt` is a JSON array of messages; `reply` is empty where none came, and `problem` then says why, without any
    secret. In an event both name blobs. `loss` is set where no whole reply came, whether or not a part of one did.
    `dollars` is what was paid, nothing for a reply that was `recorded` before. `requests` is how often the server was
    asked, retries included; `estimated` says that it didn't count the tokens.
    """

    purpose: Purpose
    model: str
    prompt: str
    reply: str = ""
    expert: str = ""
    problem: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    recorded: bool = False
    loss: Loss | None = None
    requests: int = 1
    estimated: bool = False


class Loss(enum.StrEnum):
    """Why an edit or a reply was dropped before evaluation."""

    NO_REPLY = "no reply"
    OVER_BUDGET = "over the budget"
    REFUSAL = "refusal"
    EMPTY = "empty reply"
    CUT_OFF = "reply cut off"
    UNREADABLE = "unreadable reply"
    WRONG_SCHEMA = "wrong schema"
    NO_MATCH = "patch fits nowhere"
    AMBIGUOUS = "patch fits in several places"
    NO_CHANGE = "changes nothing"
    REPEATED = "tried before"


@dataclass(frozen=True)
class Dropped:
    loss: Loss
    reason: str


@dataclass(frozen=True)
class Proposals:
    """A reply: edits in any order, the exchanges with models that they came from, and what was dropped.

    `dollars` is what was paid beside the exchanges. `more` promises other edits when the same node is requested
    again. Without it a node whose edits all turned out to be known is given up; with it, it is not.
    """

    edits: tuple[Edit, ...]
    dollars: float = 0.0
    more: bool = False
    exchanges: tuple[Exchange, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Whether there was no answer about the node, which may be requested again."""
        return not self.edits and any(each.loss in (Loss.NO_REPLY, Loss.OVER_BUDGET) for each in self.dropped)

    @property
    def cost(self) -> float:
        """US dollars, the exchanges included."""
        return math.fsum((self.dollars, *(exchange.dollars for exchange in self.exchanges)))


class Proposer(Protocol):
    """Turns a node and its evidence into edits."""

    def propose(self, request: ProposalRequest) -> Proposals:
        """Propose edits of the request's kernel; none when nothing applies.

        Whatever a model or its server does comes back as exchanges and losses. Several threads may call this at once
        where it takes long (`mctskernel.edits.async_proposer`).
        """
