"""Bookkeeping: what selection reads of a tree, kept up with every event, or counted at once when events are replayed.

Both come to the same bits: rewards are added in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mctskernel.core.evaluation import REPAIRABLE
from mctskernel.tree.backup import add, back_up, begin_traversal, end_traversal
from mctskernel.tree.events import Asked, Duplicated, Evaluated, Event, Proposed, Refused, Submitted
from mctskernel.tree.evidence import Filed, FiledReply, FiledResult, FiledSubmission
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.vector import Array, Vector

PIECE = 1 << 20
"""Nodes on paths that are counted at a time, so that deep trees need no more memory than others."""


def keep_up(tree: Tree, event: Event | Filed, ended: Sequence[Sequence[int]]) -> None:
    """Follows one event that the tree knows already, and with which these traversals in flight ended."""
    for path in ended:
        end_traversal(tree, tree.path(path))
        _refresh(tree, tree.nodes[path[-1]])
    match event:
        case Submitted() | FiledSubmission():
            _add_node(tree)
            _add_edges(tree)
            begin_traversal(tree, tree.traversal(event.node))
            if event.edited is not None:
                _refresh(tree, tree.nodes[event.edited])
        case Evaluated() | FiledResult():
            tree.node_statistics.reward[event.node] = event.score.reward
            back_up(tree, tree.traversal(event.node), event.score.reward)
            _refresh(tree, tree.nodes[event.node])
        case Asked():
            begin_traversal(tree, tree.path(tree.awaiting[event.awaited]))
            _refresh(tree, tree.nodes[event.awaited])
        case Duplicated():
            _add_edges(tree)
            _refresh(tree, tree.nodes[event.node])
        case Proposed() | FiledReply() | Refused():
            _refresh(tree, tree.nodes[event.node])


def count(tree: Tree) -> None:
    """Makes of a tree without any statistics what `keep_up` would have made of it with each of its events."""
    if not tree.nodes:
        return
    _count_edges(tree)
    _count_traversals(tree)
    _count_ready(tree)
    for node in tree.pending:
        begin_traversal(tree, tree.traversal(node))
    for awaited in tree.awaiting.values():
        begin_traversal(tree, tree.path(awaited))


def is_ready(tree: Tree, node: Node) -> bool:
    """Whether an edit of a node can be tried, or more asked for, at once."""
    if node.id in tree.awaiting or not _may_have_children(tree, node):
        return False
    return bool(node.untried) or node.fruitless_replies < tree.policy.patience


def _may_have_children(tree: Tree, node: Node) -> bool:
    if node.evidence is None or node.evidence.quarantine:
        return False
    if node.evidence.ok:
        return True
    return node.evidence.outcome in REPAIRABLE and node.failures_in_a_row <= tree.policy.repair_depth


def _add_node(tree: Tree) -> None:
    statistics = tree.node_statistics
    for vector in (
        statistics.visits,
        statistics.reward_sum,
        statistics.in_flight,
        statistics.ready,
        statistics.open,
        statistics.changes,
    ):
        vector.append(0)
    for vector in (statistics.reward_max, statistics.reward):
        vector.append(float("-inf"))


def _add_edges(tree: Tree) -> None:
    statistics = tree.edge_statistics
    for number in range(len(statistics.child), len(tree.edges)):
        edge = tree.edges[number]
        parent, child = tree.nodes[edge.parent], tree.nodes[edge.child]
        if not len(parent.edges):
            parent.edges = Vector("int64")
        parent.edges.append(number)
        statistics.child.append(edge.child)
        statistics.prior.append(parent.priors[edge.edit])
        statistics.visits.append(0)
        statistics.in_flight.append(0)
        for changed in child.sources if edge.transposition else (edge.parent,):
            _forget_ways(tree, changed)


def _refresh(tree: Tree, node: Node) -> None:
    """Keeps the counts of ready nodes, of the node and of all above it."""
    ready = is_ready(tree, node)
    if ready == node.ready:
        return
    node.ready = tree.node_statistics.open[node.id] = ready
    add(tree.node_statistics.ready, tree.lineages.of(tree.nodes, node.id).nodes, 1 if ready else -1)
    # The counts rise from here to the root, so those that became 1 or 0 come first.
    counts, opened_or_closed, above = tree.node_statistics.ready.cells, 1 if ready else 0, node
    while counts[above.id] == opened_or_closed:
        for source in above.sources:
            _forget_ways(tree, source)
        if above.parent is None:
            break
        above = tree.nodes[above.parent]


def _forget_ways(tree: Tree, number: int) -> None:
    tree.nodes[number].open_ways = None
    tree.node_statistics.changes[number] += 1


def _count_edges(tree: Tree) -> None:
    statistics, nodes = tree.edge_statistics, tree.nodes
    parents = np.array([edge.parent for edge in tree.edges], np.int64)
    by_parent = np.argsort(parents, kind="stable")
    outgoing = np.bincount(parents, minlength=len(nodes))
    ends = np.cumsum(outgoing)
    for parent in np.flatnonzero(outgoing).tolist():
        nodes[parent].edges = Vector.of(by_parent[ends[parent] - outgoing[parent] : ends[parent]].copy())
    statistics.child = Vector.of(np.array([edge.child for edge in tree.edges], np.int64))
    priors = [nodes[edge.parent].priors[edge.edit] for edge in tree.edges]
    statistics.prior = Vector.of(np.array(priors, np.float64))
    statistics.visits = Vector.of(np.zeros(len(priors), np.int64))
    statistics.in_flight = Vector.of(np.zeros(len(priors), np.int64))


def _count_traversals(tree: Tree) -> None:
    count, statistics = len(tree.nodes), tree.node_statistics
    rewards = np.array([-np.inf if node.score is None else node.score.reward for node in tree.nodes])
    visits, sums, best = np.zeros(count, np.int64), np.zeros(count), np.full(count, -np.inf)
    edge_visits = tree.edge_statistics.visits.view
    for walkers, nodes, edges in _traversals(tree):
        gained = rewards[walkers]
        np.add.at(visits, nodes, 1)
        np.add.at(sums, nodes, gained)
        np.maximum.at(best, nodes, gained)
        np.add.at(edge_visits, edges[edges >= 0], 1)
    statistics.reward = Vector.of(rewards)
    statistics.visits, statistics.in_flight = Vector.of(visits), Vector.of(np.zeros(count, np.int64))
    statistics.reward_sum, statistics.reward_max = Vector.of(sums), Vector.of(best)
    statistics.changes = Vector.of(np.zeros(count, np.int64))


def _traversals(tree: Tree) -> Iterator[tuple[Array, Array, Array]]:
    """All nodes on the paths of all evaluations, in the order in which they came.

    As arrays: the node that was evaluated, the node on its path, and the edge that led there (-1: none).
    """
    # Of what is before the root, where -1 points too: itself.
    above = np.array([*(-1 if node.parent is None else node.parent for node in tree.nodes), -1])
    entry = np.array([*(-1 if node.edge is None else node.edge for node in tree.nodes), -1])
    detours = {node.id: tree.traversal(node.id) for node in tree.nodes if node.detour is not None}
    longest = max(
        *(node.depth + 1 for node in tree.nodes), *(len(path.nodes) for path in detours.values()), 1
    )
    rows = max(PIECE // longest, 1)
    for start in range(0, len(tree.evaluated), rows):
        walkers = np.array(tree.evaluated[start : start + rows])
        nodes = np.full((len(walkers), longest), -1)
        nodes[:, 0] = walkers
        for level in range(1, longest):
            nodes[:, level] = above[nodes[:, level - 1]]
        edges = entry[nodes]
        for row in np.flatnonzero(np.isin(walkers, list(detours))) if detours else ():
            path = detours[int(walkers[row])]
            nodes[row], edges[row] = -1, -1
            nodes[row, : len(path.nodes)], edges[row, 1 : len(path.nodes)] = path.nodes, path.edges
        on_path = nodes >= 0
        yield np.repeat(walkers, on_path.sum(axis=1)), nodes[on_path], edges[on_path]


def _count_ready(tree: Tree) -> None:
    for node in tree.nodes:
        node.ready = is_ready(tree, node)
    counts = [int(node.ready) for node in tree.nodes]
    tree.node_statistics.open = Vector.of(np.array(counts, np.bool_))
    for node in reversed(tree.nodes):
        if node.parent is not None:
            counts[node.parent] += counts[node.id]
    tree.node_statistics.ready = Vector.of(np.array(counts))
