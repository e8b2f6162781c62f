"""What a proposer is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task


@dataclass(frozen=True)
class Attempt:
    """An edit that was tried, and how it ended; `gain` is the parent's time over the node's, 0 if unknown."""

    title: str
    category: str
    outcome: Outcome
    gain: float
    message: str = ""


@dataclass(frozen=True)
class ProposalRequest:
    """One node with its evidence: the lineage runs from the root, siblings are earlier edits of this node.

    `offered` is how many edits the node was given before, tried or not.
    """

    task: Task
    kernel: Kernel
    evaluation: Evaluation
    lineage: tuple[Attempt, ...] = ()
    siblings: tuple[Attempt, ...] = ()
    seed: int = 0
    offered: int = 0


@dataclass(frozen=True)
class Proposals:
    """A reply: edits in any order, what it cost in US dollars, and remarks on edits that were dropped.

    `more` promises other edits to whoever asks again about the same node. Without it a node whose edits all turned out
    to be known is given up; with it, it is not.
    """

    edits: tuple[Edit, ...]
    dollars: float = 0.0
    remarks: tuple[str, ...] = ()
    more: bool = False


class Proposer(Protocol):
    """Turns a node and its evidence into edits."""

    @property
    def name(self) -> str:
        """The name that its edits carry."""
        ...

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel; none when nothing applies."""
        ...
