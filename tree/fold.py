"""The fold: how each event changes the tree. Live and on replay alike, so that resuming is replaying."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from mctskernel.core.evaluation import REPAIRABLE
from mctskernel.tree.backup import back_up, begin_traversal, end_traversal
from mctskernel.tree.events import (
    Asked,
    Duplicated,
    Evaluated,
    Event,
    Proposed,
    Refused,
    Resumed,
    Started,
    Submitted,
)
from mctskernel.tree.node import UNTRIED, Edge, Fate, Node, Tree


class TreeError(ValueError):
    """An event that can't follow the ones before it; the tree is as it was."""


def fold(events: Iterable[Event]) -> Tree:
    """The tree that the events make."""
    tree = Tree()
    for event in events:
        apply(tree, event)
    return tree


def apply(tree: Tree, event: Event) -> None:
    """Changes the tree by one event."""
    match event:
        case Started():
            _start(tree, event)
        case Submitted():
            _submit(tree, event)
        case Evaluated():
            _evaluate(tree, event)
        case Asked():
            _ask(tree, event)
        case Proposed():
            _propose(tree, event)
        case Duplicated():
            _duplicate(tree, event)
        case Refused():
            node = _node_of_untried(tree, event.node, event.edit)
            _settle(tree, node, event.edit, Fate(reason=event.reason))
        case Resumed():
            for path in tree.awaiting.values():
                end_traversal(tree, path)
            waiting, tree.awaiting = tree.awaiting, {}
            for node_id in waiting:
                _refresh(tree, tree.nodes[node_id])
    tree.events += 1


def _start(tree: Tree, event: Started) -> None:
    _require(tree.events == 0, "a search can't start twice")
    tree.policy, tree.seed = event.policy, event.seed


def _submit(tree: Tree, event: Submitted) -> None:
    _require(tree.events > 0, "the search hasn't started")
    _require(event.node == len(tree.nodes), f"the next node is {len(tree.nodes)}, not {event.node}")
    _require(event.kernel.identity not in tree.by_identity, "its kernel is known already")
    if event.edit is None:
        _require(event.node == 0 and not event.path, "only the root has no edit")
        _add_node(tree, event, depth=0)
    else:
        _require_path(tree, event.path)
        parent = _node_of_untried(tree, event.path[-1], event.edit)
        child = _add_node(tree, event, depth=parent.depth + 1)
        _add_edge(tree, Edge(parent.id, child.id, event.edit))
        parent.children += 1
        parent.fruitless_replies = 0
        _settle(tree, parent, event.edit, Fate(node=child.id))
    begin_traversal(tree, (*event.path, event.node))
    tree.pending[event.node] = None


def _evaluate(tree: Tree, event: Evaluated) -> None:
    _require(event.node in tree.pending, f"node {event.node} isn't in flight")
    node = tree.nodes[event.node]
    del tree.pending[node.id]
    node.evaluation, node.score, node.log = event.evaluation, event.score, event.log
    if not event.evaluation.ok:
        before = tree.nodes[node.parent].failures_in_a_row if node.parent is not None else 0
        node.failures_in_a_row = before + 1
    tree.evaluations += 1
    tree.evaluation_seconds += event.evaluation.cost_seconds
    tree.low = min(tree.low, event.score.reward)
    tree.high = max(tree.high, event.score.reward)
    path = (*node.path, node.id)
    end_traversal(tree, path)
    back_up(tree, path, event.score.reward)
    _refresh(tree, node)


def _ask(tree: Tree, event: Asked) -> None:
    _require_path(tree, event.path)
    node = tree.nodes[event.path[-1]]
    _require(node.id not in tree.awaiting, f"node {node.id} awaits a reply already")
    begin_traversal(tree, event.path)
    tree.awaiting[node.id] = event.path
    _refresh(tree, node)


def _propose(tree: Tree, event: Proposed) -> None:
    _require(0 <= event.node < len(tree.nodes), f"there is no node {event.node}")
    node = tree.nodes[event.node]
    if node.id in tree.awaiting:
        end_traversal(tree, tree.awaiting.pop(node.id))
    known = {edit.change for edit in node.edits}
    for edit in event.edits:
        if edit.change not in known:
            known.add(edit.change)
            node.untried.append(len(node.edits))
            node.edits.append(edit)
            node.fates.append(UNTRIED)
    node.fruitless_replies += 1
    tree.dollars += event.dollars
    _refresh(tree, node)


def _duplicate(tree: Tree, event: Duplicated) -> None:
    node = _node_of_untried(tree, event.node, event.edit)
    _require(0 <= event.of < len(tree.nodes), f"there is no node {event.of}")
    if event.of != node.id and (node.id, event.of) not in tree.edge_between:
        _add_edge(tree, Edge(node.id, event.of, event.edit, transposition=True))
    _settle(tree, node, event.edit, Fate(node=event.of, duplicate=True))


def _add_node(tree: Tree, event: Submitted, depth: int) -> Node:
    node = Node(event.node, event.kernel, event.path, event.edit, depth)
    tree.nodes.append(node)
    tree.by_identity[event.kernel.identity] = node.id
    statistics = tree.node_statistics
    for vector in (statistics.visits, statistics.reward_sum, statistics.in_flight, statistics.ready):
        vector.append(0)
    statistics.reward_max.append(float("-inf"))
    return node


def _add_edge(tree: Tree, edge: Edge) -> None:
    number = len(tree.edges)
    parent = tree.nodes[edge.parent]
    tree.edges.append(edge)
    tree.edge_between[edge.parent, edge.child] = number
    parent.edges.append(number)
    statistics = tree.edge_statistics
    statistics.child.append(edge.child)
    statistics.prior.append(parent.edits[edge.edit].prior)
    statistics.visits.append(0)
    statistics.in_flight.append(0)


def _settle(tree: Tree, node: Node, edit: int, fate: Fate) -> None:
    node.untried.remove(edit)
    node.fates[edit] = fate
    _refresh(tree, node)


def _refresh(tree: Tree, node: Node) -> None:
    """Keeps the counts of ready nodes of the node and of all above it."""
    ready = _is_ready(tree, node)
    if ready == node.ready:
        return
    node.ready = ready
    change = 1 if ready else -1
    counts = tree.node_statistics.ready.view
    above: int | None = node.id
    while above is not None:
        counts[above] += change
        above = tree.nodes[above].parent


def _is_ready(tree: Tree, node: Node) -> bool:
    """Whether an edit of the node can be tried, or more asked for, at once."""
    if node.evaluation is None or node.id in tree.awaiting:
        return False
    if node.evaluation.ok:
        expandable = not node.evaluation.quarantine
    else:
        repairable = node.evaluation.outcome in REPAIRABLE
        expandable = repairable and node.failures_in_a_row <= tree.policy.repair_depth
    return expandable and (bool(node.untried) or node.fruitless_replies < tree.policy.patience)


def _node_of_untried(tree: Tree, node_id: int, edit: int) -> Node:
    _require(0 <= node_id < len(tree.nodes), f"there is no node {node_id}")
    node = tree.nodes[node_id]
    _require(edit in node.untried, f"edit {edit} of node {node_id} isn't waiting to be tried")
    return node


def _require_path(tree: Tree, path: tuple[int, ...]) -> None:
    _require(bool(tree.nodes) and path[:1] == (0,), "a path begins at the root")
    _require(len(set(path)) == len(path), "a path visits no node twice")
    for parent, child in pairwise(path):
        _require((parent, child) in tree.edge_between, f"no edge leads from node {parent} to node {child}")


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise TreeError(f"{message}.")
