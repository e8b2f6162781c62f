"""The tree: nodes with their facts and the statistics that selection reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from mctskernel.core.evaluation import Evaluation, Outcome, Score
from mctskernel.tree.events import EditRecord, KernelRecord
from mctskernel.tree.policy import Policy


class Fate(msgspec.Struct, frozen=True, gc=False):
    """What became of an edit: the node that it made or, as a duplicate, makes again; or why it made none."""

    node: int | None = None
    duplicate: bool = False
    reason: str = ""


UNTRIED = Fate()


@dataclass(slots=True)
class Node:
    """A kernel of the search. `id` counts from 0 in order of creation; node 0 is the root.

    `parent` is the node whose edit number `edit` made the kernel. `evaluation` and `score` are None while the
    evaluation is pending. `fates` says what became of each of its `edits`; `untried` are the edits that wait, by
    descending prior; `children` the nodes that its edits made. `ready` says whether an edit can be tried, or more
    can be asked for; `lost` why, in sentences, edits of the latest reply couldn't be used.

    Over the node and its descendants: `open` counts ready nodes, `visits` finished evaluations with the sum and the
    maximum of their rewards, `in_flight` pending evaluations and requests to proposers.
    """

    id: int
    kernel: KernelRecord
    parent: int | None = None
    edit: int | None = None
    depth: int = 0
    evaluation: Evaluation | None = None
    score: Score | None = None
    log: str = ""
    edits: list[EditRecord] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    untried: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    failures_in_a_row: int = 0
    fruitless_replies: int = 0
    lost: tuple[str, ...] = ()
    ready: bool = False
    open: int = 0
    visits: int = 0
    in_flight: int = 0
    reward_sum: float = 0.0
    reward_max: float = float("-inf")

    @property
    def outcome(self) -> Outcome | None:
        """How the evaluation ended; None while it is pending."""
        return self.evaluation.outcome if self.evaluation is not None else None

    @property
    def reward(self) -> float:
        """The reward of its own evaluation; minus infinity while it is pending."""
        return self.score.reward if self.score is not None else float("-inf")


@dataclass
class Tree:
    """Everything that is known of a search. Only `mctskernel.tree.replay` changes it.

    `evaluated` are nodes in the order of their results, `replied` those of proposers' replies; `pending` are being
    evaluated, and of those in `requested` a proposer has been asked for edits. `duplicated` are edits, as their node
    and number, that made a known kernel; `transpositions` has the edit that leads from a node to an older one, by the
    two. `low` and `high` are the least and the greatest reward.
    """

    policy: Policy = field(default_factory=Policy)
    seed: int = 0
    events: int = 0
    nodes: list[Node] = field(default_factory=list)
    by_identity: dict[str, int] = field(default_factory=dict)
    duplicated: list[tuple[int, int]] = field(default_factory=list)
    transpositions: dict[tuple[int, int], int] = field(default_factory=dict)
    evaluated: list[int] = field(default_factory=list)
    replied: list[int] = field(default_factory=list)
    pending: dict[int, None] = field(default_factory=dict)
    requested: dict[int, None] = field(default_factory=dict)
    evaluation_seconds: float = 0.0
    dollars: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    @property
    def evaluations(self) -> int:
        return len(self.evaluated)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to try, nor pending."""
        return bool(self.nodes) and not (self.nodes[0].open or self.pending or self.requested)

    def lineage(self, node: int) -> list[int]:
        """Return the nodes from the root to a node, each made by an edit of the one before."""
        found = [node]
        while (parent := self.nodes[found[-1]].parent) is not None:
            found.append(parent)
        return found[::-1]

    def made_by(self, node: Node) -> EditRecord | None:
        if node.parent is None or node.edit is None:
            return None
        return self.nodes[node.parent].edits[node.edit]
