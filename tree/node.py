"""The tree: nodes and edges with their facts, and beside them the statistics that selection reads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.evaluation import Evaluation, Outcome, Score
from mctskernel.tree.events import EditRecord, KernelRecord, PredictionRecord
from mctskernel.tree.evidence import FiledEvaluation, FiledKernel, FiledScore
from mctskernel.tree.lineage import Lineages, Path
from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array, Vector

# Most nodes are leaves, which share what is empty. The fold replaces it before it adds anything.
_NOTHING: Any = ()
_NO_EDGES = Vector("int64")
_NO_PREDICTIONS: Mapping[int, PredictionRecord] = MappingProxyType({})


@dataclass(slots=True)
class Node:
    """A kernel of the search. `id` counts from 0 in order of creation.

    `parent` is the node whose edit made the kernel, `edit` an index into its `edits`, `edge` the number of the edge
    that leads from there in the tree's list; the root has none of them. `detour` holds the nodes through which
    selection came, from the root to the parent, where that is another way (`Tree.path_to`). `made` is the record of the
    kernel and `evidence` the evaluation, or what is left of them while the journal keeps them; `evidence` and `score`
    are None while it is in flight. `priors` are those of `edits`, which may stay in the journal too; `fates` says what
    became of each of them, `untried` are those that wait, by descending prior; `edges` are numbers of
    outgoing edges in the tree's list, `sources` the nodes with an edge to this one; `shares_children` says whether
    edges of other nodes lead to any of its children too. `ready` says whether an edit can be
    tried, or more asked for, at once. `prediction` is a surrogate's of the kernel itself, `predictions` those of what
    edits make, by their number. `open_ways` is what selection remembers, None when it has to look again.
    """

    id: int
    made: KernelRecord | FiledKernel
    parent: int | None
    edit: int | None
    depth: int
    edge: int | None = None
    detour: tuple[int, ...] | None = None
    failures_in_a_row: int = 0
    evidence: Evaluation | FiledEvaluation | None = None
    score: Score | FiledScore | None = None
    log: str = ""
    edits: Sequence[EditRecord] = _NOTHING
    priors: Sequence[float] = _NOTHING
    fates: list[Fate] = field(default=_NOTHING)
    untried: list[int] = field(default=_NOTHING)
    edges: Vector = field(default_factory=lambda: _NO_EDGES)
    prediction: PredictionRecord | None = None
    predictions: Mapping[int, PredictionRecord] = field(default_factory=lambda: _NO_PREDICTIONS)
    children: int = 0
    fruitless_replies: int = 0
    ready: bool = False
    sources: tuple[int, ...] = ()
    shares_children: bool = False
    open_ways: OpenWays | None = field(default=None, compare=False, repr=False)

    @property
    def kernel(self) -> KernelRecord:
        """The record of its kernel, read from the journal if it is there."""
        return self.made.read() if isinstance(self.made, FiledKernel) else self.made

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation, read from the journal if it is there; None while it is in flight."""
        return self.evidence.read() if isinstance(self.evidence, FiledEvaluation) else self.evidence

    @property
    def outcome(self) -> Outcome | None:
        """How the evaluation ended; None while it is in flight."""
        return self.evidence.outcome if self.evidence is not None else None


@dataclass(frozen=True, slots=True, eq=False)
class OpenWays:
    """A node's edges to where something is ready: their numbers, targets, and priors that sum to 1."""

    edges: Array
    children: Array
    priors: Array


class Fate(msgspec.Struct, frozen=True, gc=False):
    """What became of an edit: the node that it made or, as a duplicate, makes again; or why it made none."""

    node: int | None = None
    duplicate: bool = False
    reason: str = ""


UNTRIED = Fate()


class Edge(msgspec.Struct, frozen=True, gc=False):
    """An edit that leads from a node to another; to one that was known before it if `transposition`."""

    parent: int
    child: int
    edit: int
    transposition: bool = False


@dataclass
class NodeStatistics:
    """What selection reads of nodes, by id.

    Traversals (the node's own evaluation is one), the sum and the maximum of their rewards, traversals in
    flight, and how many nodes of the subtree, itself included, are ready. Of the node alone, `open` says whether it is
    ready, and `reward` is that of its own evaluation, minus infinity while that is in flight. `changes` says how often
    its open ways have changed since the tree was made or read.
    """

    visits: Vector = field(default_factory=lambda: Vector("int64"))
    reward_sum: Vector = field(default_factory=lambda: Vector("float64"))
    reward_max: Vector = field(default_factory=lambda: Vector("float64"))
    in_flight: Vector = field(default_factory=lambda: Vector("int64"))
    ready: Vector = field(default_factory=lambda: Vector("int64"))
    open: Vector = field(default_factory=lambda: Vector("bool"))
    reward: Vector = field(default_factory=lambda: Vector("float64"))
    changes: Vector = field(default_factory=lambda: Vector("int64"), compare=False)


@dataclass
class EdgeStatistics:
    """What selection reads of edges, by number: target, prior of the edit, traversals, those in flight."""

    child: Vector = field(default_factory=lambda: Vector("int64"))
    prior: Vector = field(default_factory=lambda: Vector("float64"))
    visits: Vector = field(default_factory=lambda: Vector("int64"))
    in_flight: Vector = field(default_factory=lambda: Vector("int64"))


@dataclass
class Tree:
    """Everything that is known of a search. Changed by `mctskernel.tree.fold.apply` alone.

    `evaluated` are nodes in the order in which their evaluations came, `replied` those that replies of a proposer were
    about, `pending` the nodes in flight, `awaiting` the paths to nodes whose proposer works, by node.
    `transpositions` are the numbers of such edges by the nodes that they join, `offered` the changes of the edits of
    nodes that were asked for more than once, `rollouts` the gains that those of nodes came to, in the order in which
    they came. `low` and `high` are the least and the greatest reward.
    """

    policy: Policy = field(default_factory=Policy)
    seed: int = 0
    events: int = 0
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    node_statistics: NodeStatistics = field(default_factory=NodeStatistics)
    edge_statistics: EdgeStatistics = field(default_factory=EdgeStatistics)
    by_identity: dict[str, int] = field(default_factory=dict)
    transpositions: dict[tuple[int, int], int] = field(default_factory=dict)
    offered: dict[int, set[Hashable]] = field(default_factory=dict)
    evaluated: list[int] = field(default_factory=list)
    replied: list[int] = field(default_factory=list)
    pending: dict[int, None] = field(default_factory=dict)
    awaiting: dict[int, tuple[int, ...]] = field(default_factory=dict)
    rollouts: dict[int, float] = field(default_factory=dict)
    evaluations: int = 0
    evaluation_seconds: float = 0.0
    dollars: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")
    lineages: Lineages = field(default_factory=Lineages, compare=False, repr=False)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to try, nor in flight."""
        return bool(self.nodes) and not (self.node_statistics.ready[0] or self.pending or self.awaiting)

    def children_of(self, node: int) -> list[int]:
        """The nodes that edits of a node made, without those that they made again, in order of creation."""
        edges = (self.edges[edge] for edge in self.nodes[node].edges.view)
        return [edge.child for edge in edges if not edge.transposition]

    def lineage(self, node: int) -> list[int]:
        """The nodes from the root to a node, each made by an edit of the one before."""
        lineage: list[int] = self.lineages.of(self.nodes, node).nodes.tolist()
        return lineage

    def is_lineage(self, path: Sequence[int]) -> bool:
        """Whether a path from the root is the lineage of its last node."""
        return list(path) == self.lineage(path[-1])

    def path_to(self, node: int) -> list[int]:
        """The nodes from the root to a node as selection came when it made the node, which is the last."""
        path: list[int] = self.traversal(node).nodes.tolist()
        return path

    def traversal(self, node: int) -> Path:
        """What `path_to` says, with the edges. It may be overwritten by the next."""
        detour = self.nodes[node].detour
        return self.lineages.of(self.nodes, node) if detour is None else self._path((*detour, node))

    def path(self, nodes: Sequence[int]) -> Path:
        """From the root along some nodes, between which there are edges. It may be overwritten by the next."""
        lineage = self.lineages.of(self.nodes, nodes[-1])
        return lineage if lineage.nodes.tolist() == list(nodes) else self._path(nodes)

    def _path(self, nodes: Sequence[int]) -> Path:
        edges = [self.edge_between(parent, child) for parent, child in pairwise(nodes)]
        return Path(np.array(nodes), np.array(edges, np.int64))

    def edge_between(self, parent: int, child: int) -> int | None:
        """The number of the edge that leads from a node to another; None without one."""
        made = self.nodes[child]
        return made.edge if made.parent == parent else self.transpositions.get((parent, child))
