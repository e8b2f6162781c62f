"""The fold: how each event changes the tree. Live and on replay alike, so that resuming is replaying."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat

import numpy as np

from mctskernel.core.evaluation import REPAIRABLE
from mctskernel.tree.backup import back_up, begin_traversal, end_traversal
from mctskernel.tree.events import (
    Asked,
    Duplicated,
    EditRecord,
    Evaluated,
    Event,
    Predicted,
    Proposed,
    Refused,
    Resumed,
    Started,
    Submitted,
)
from mctskernel.tree.evidence import EditInBrief, Filed, FiledReply, FiledResult, FiledSubmission
from mctskernel.tree.legality import check
from mctskernel.tree.node import UNTRIED, Edge, Fate, Node, Tree
from mctskernel.tree.vector import Vector


def fold(events: Iterable[Event | Filed]) -> Tree:
    """The tree that the events make."""
    tree = Tree()
    for event in events:
        apply(tree, event)
    return tree


def apply(tree: Tree, event: Event | Filed) -> None:
    """Changes the tree by one event; raises TreeError, the tree unchanged, if the event can't follow."""
    check(tree, event)
    match event:
        case Started():
            tree.policy, tree.seed = event.policy, event.seed
        case Submitted() | FiledSubmission():
            _submit(tree, event)
        case Evaluated() | FiledResult():
            _evaluate(tree, event)
        case Asked():
            _ask(tree, event)
        case Proposed() | FiledReply():
            _propose(tree, event)
        case Predicted():
            _predict(tree, event)
        case Duplicated():
            _duplicate(tree, event)
        case Refused():
            _settle(tree, tree.nodes[event.node], event.edit, Fate(reason=event.reason))
        case Resumed():
            _resume(tree)
    tree.events += 1


def _submit(tree: Tree, event: Submitted | FiledSubmission) -> None:
    parent = tree.nodes[event.edited] if event.edited is not None else None
    child = _add_node(tree, event, parent)
    if parent is not None and event.edit is not None:
        _add_edge(tree, Edge(parent.id, child.id, event.edit))
        parent.children += 1
        parent.fruitless_replies = 0
        child.prediction = parent.predictions.get(event.edit)
        _settle(tree, parent, event.edit, Fate(node=child.id))
    begin_traversal(tree, tree.path_to(child.id))
    tree.pending[child.id] = None


def _evaluate(tree: Tree, event: Evaluated | FiledResult) -> None:
    node, reward = tree.nodes[event.node], event.score.reward
    del tree.pending[node.id]
    node.evidence, node.score, node.log = event.evaluation, event.score, event.log
    if not event.evaluation.ok:
        before = tree.nodes[node.parent].failures_in_a_row if node.parent is not None else 0
        node.failures_in_a_row = before + 1
    tree.node_statistics.reward[node.id] = reward
    tree.evaluated.append(node.id)
    tree.evaluations += 1
    tree.evaluation_seconds += event.evaluation.cost_seconds
    tree.low = min(tree.low, reward)
    tree.high = max(tree.high, reward)
    back_up(tree, tree.path_to(node.id), reward)
    _refresh(tree, node)


def _ask(tree: Tree, event: Asked) -> None:
    node = tree.nodes[event.awaited]
    path = event.path or tuple(tree.lineage(node.id))
    begin_traversal(tree, path)
    tree.awaiting[node.id] = path
    _refresh(tree, node)


def _propose(tree: Tree, event: Proposed | FiledReply) -> None:
    node = tree.nodes[event.node]
    if node.id in tree.awaiting:
        end_traversal(tree, tree.awaiting.pop(node.id))
    before, known = len(node.edits), _changes(tree, node)
    edits: Sequence[EditRecord | EditInBrief] = event.edits
    new = []
    for number, edit in enumerate(edits):
        if (change := _change(edit)) not in known:
            known.add(change)
            new.append(number)
    if new:
        node.edits = event.kept(node.edits, new)
        priors = node.priors = node.priors + array("d", [edits[number].prior for number in new])
        node.fates = [*node.fates, *repeat(UNTRIED, len(new))]
        node.untried = [*node.untried, *range(before, len(priors))]
        node.untried.sort(key=lambda edit: (-priors[edit], edit))
    # Who is sure to have more is asked again even if all of this reply turns out to be known.
    if not (event.more and new):
        node.fruitless_replies += 1
    tree.replied.append(node.id)
    tree.dollars += event.dollars
    _refresh(tree, node)


def _predict(tree: Tree, event: Predicted) -> None:
    node = tree.nodes[event.node]
    if event.edit is None:
        node.prediction = event.prediction
        return
    node.predictions = {**node.predictions, event.edit: event.prediction}
    fate = node.fates[event.edit]
    if fate.node is not None and not fate.duplicate:
        tree.nodes[fate.node].prediction = event.prediction


def _duplicate(tree: Tree, event: Duplicated) -> None:
    node = tree.nodes[event.node]
    if event.of != node.id and tree.edge_between(node.id, event.of) is None:
        _add_edge(tree, Edge(node.id, event.of, event.edit, transposition=True))
    _settle(tree, node, event.edit, Fate(node=event.of, duplicate=True))


def _resume(tree: Tree) -> None:
    awaiting, tree.awaiting = tree.awaiting, {}
    for node, path in awaiting.items():
        end_traversal(tree, path)
        _refresh(tree, tree.nodes[node])


def _change(edit: EditRecord | EditInBrief) -> Hashable:
    return edit.change or edit.factors


def _changes(tree: Tree, node: Node) -> set[Hashable]:
    """The changes of a node's edits, to be added to; remembered from the second reply on."""
    if not node.edits:
        return set()
    if node.id not in tree.offered:
        tree.offered[node.id] = {_change(edit) for edit in node.edits}
    return tree.offered[node.id]


def _add_node(tree: Tree, event: Submitted | FiledSubmission, parent: Node | None) -> Node:
    depth = parent.depth + 1 if parent is not None else 0
    node = Node(event.node, event.kernel, event.edited, event.edit, depth)
    if not tree.is_lineage(event.path):
        node.detour = event.path
    tree.nodes.append(node)
    tree.by_identity[event.identity] = node.id
    statistics = tree.node_statistics
    for vector in (
        statistics.visits,
        statistics.reward_sum,
        statistics.in_flight,
        statistics.ready,
        statistics.open,
    ):
        vector.append(0)
    for vector in (statistics.reward_max, statistics.reward):
        vector.append(float("-inf"))
    return node


def _add_edge(tree: Tree, edge: Edge) -> None:
    number = len(tree.edges)
    parent = tree.nodes[edge.parent]
    tree.edges.append(edge)
    child = tree.nodes[edge.child]
    if edge.transposition:
        tree.transpositions[edge.parent, edge.child] = number
        for source in child.sources:
            tree.nodes[source].open_ways = None
    else:
        child.edge = number
    child.sources = (*child.sources, edge.parent)
    if not len(parent.edges):
        parent.edges = Vector("int64")
    parent.edges.append(number)
    parent.open_ways = None
    statistics = tree.edge_statistics
    statistics.child.append(edge.child)
    statistics.prior.append(parent.priors[edge.edit])
    statistics.visits.append(0)
    statistics.in_flight.append(0)


def _settle(tree: Tree, node: Node, edit: int, fate: Fate) -> None:
    node.untried.remove(edit)
    node.fates[edit] = fate
    _refresh(tree, node)


def _refresh(tree: Tree, node: Node) -> None:
    """Keeps the counts of ready nodes, of the node and of all above it."""
    ready = _is_ready(tree, node)
    if ready == node.ready:
        return
    node.ready = tree.node_statistics.open[node.id] = ready
    lineage = np.array(tree.lineage(node.id))
    counts = tree.node_statistics.ready.view
    counts[lineage] += 1 if ready else -1
    opened_or_closed = lineage[counts[lineage] == (1 if ready else 0)]
    for changed in opened_or_closed.tolist():
        for source in tree.nodes[changed].sources:
            tree.nodes[source].open_ways = None


def _is_ready(tree: Tree, node: Node) -> bool:
    if node.id in tree.awaiting or not _may_have_children(tree, node):
        return False
    return bool(node.untried) or node.fruitless_replies < tree.policy.patience


def _may_have_children(tree: Tree, node: Node) -> bool:
    if node.evidence is None or node.evidence.quarantine:
        return False
    if node.evidence.ok:
        return True
    return node.evidence.outcome in REPAIRABLE and node.failures_in_a_row <= tree.policy.repair_depth
