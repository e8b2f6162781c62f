"""The fold: how each event changes the tree. Live and on replay alike, so that resuming is replaying."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat

from mctskernel.tree.bookkeeping import count, keep_up
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
    RolledOut,
    Started,
    Submitted,
)
from mctskernel.tree.evidence import EditInBrief, Filed, FiledReply, FiledResult, FiledSubmission
from mctskernel.tree.legality import check
from mctskernel.tree.node import UNTRIED, Edge, Fate, Node, Tree


def fold(events: Iterable[Event | Filed]) -> Tree:
    """The tree that the events make; raises TreeError at one that can't follow."""
    tree = Tree()
    for event in events:
        record(tree, event)
    count(tree)
    return tree


def apply(tree: Tree, event: Event | Filed) -> None:
    """Changes the tree by one event; raises TreeError, the tree unchanged, if the event can't follow."""
    check(tree, event)
    advance(tree, event)


def advance(tree: Tree, event: Event | Filed) -> None:
    """Changes the tree by one event that was checked."""
    keep_up(tree, event, _take_in(tree, event))


def record(tree: Tree, event: Event | Filed) -> None:
    """Changes what is known of nodes and edges, but not their statistics, for `count` to follow.

    Raises TreeError, the tree unchanged, if the event can't follow.
    """
    check(tree, event)
    _take_in(tree, event)


def _take_in(tree: Tree, event: Event | Filed) -> Sequence[Sequence[int]]:
    """Changes what is known of nodes and edges; returns the paths that waited for the event."""
    tree.events += 1
    match event:
        case Submitted() | FiledSubmission():
            _submit(tree, event)
        case Evaluated() | FiledResult():
            _evaluate(tree, event)
        case Proposed() | FiledReply():
            return _propose(tree, event)
        case Asked():
            tree.awaiting[event.awaited] = event.path or tuple(tree.lineage(event.awaited))
        case Predicted() | RolledOut():
            _predict(tree, event)
        case Duplicated():
            _duplicate(tree, event)
        case Refused():
            _settle(tree.nodes[event.node], event.edit, Fate(reason=event.reason))
        case Started():
            tree.policy, tree.seed = event.policy, event.seed
        case Resumed():
            ended, tree.awaiting = tree.awaiting, {}
            return tuple(ended.values())
    return ()


def _submit(tree: Tree, event: Submitted | FiledSubmission) -> None:
    parent = tree.nodes[event.edited] if event.edited is not None else None
    child = _add_node(tree, event, parent)
    if parent is not None and event.edit is not None:
        _add_edge(tree, Edge(parent.id, child.id, event.edit))
        parent.children += 1
        parent.fruitless_replies = 0
        child.prediction = parent.predictions.get(event.edit)
        _settle(parent, event.edit, Fate(node=child.id))
    tree.pending[child.id] = None


def _evaluate(tree: Tree, event: Evaluated | FiledResult) -> None:
    node, reward = tree.nodes[event.node], event.score.reward
    del tree.pending[node.id]
    node.evidence, node.score, node.log = event.evaluation, event.score, event.log
    if not event.evaluation.ok:
        before = tree.nodes[node.parent].failures_in_a_row if node.parent is not None else 0
        node.failures_in_a_row = before + 1
    tree.evaluated.append(node.id)
    tree.evaluations += 1
    tree.evaluation_seconds += event.cost_seconds
    tree.low = min(tree.low, reward)
    tree.high = max(tree.high, reward)


def _propose(tree: Tree, event: Proposed | FiledReply) -> Sequence[Sequence[int]]:
    node = tree.nodes[event.node]
    edits: Sequence[EditRecord | EditInBrief] = event.edits
    new = _new(tree, node, edits)
    if new:
        before = len(node.fates)
        node.edits = event.kept(node.edits, new)
        node.priors = array("d", [*node.priors, *(edits[number].prior for number in new)])
        node.fates = [*node.fates, *repeat(UNTRIED, len(new))]
        # Of equal priors the older edit stays before the newer.
        node.untried = [*node.untried, *range(before, len(node.priors))]
        node.untried.sort(key=node.priors.__getitem__, reverse=True)
    # Who is sure to have more is asked again even if all of this reply turns out to be known.
    if not event.silent and not (event.more and new):
        node.fruitless_replies += 1
    tree.replied.append(node.id)
    tree.dollars += event.dollars
    return (tree.awaiting.pop(node.id),) if node.id in tree.awaiting else ()


def _predict(tree: Tree, event: Predicted | RolledOut) -> None:
    node = tree.nodes[event.node]
    if isinstance(event, RolledOut):
        tree.rollouts[node.id] = event.gain
        return
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
    _settle(node, event.edit, Fate(node=event.of, duplicate=True))


def _new(tree: Tree, node: Node, edits: Sequence[EditRecord | EditInBrief]) -> Sequence[int]:
    """The places of the edits that the node wasn't offered before."""
    changes = _changes(edits)
    if not node.fates:
        known: set[Hashable] = set()
        if len(set(changes)) == len(changes):
            return range(len(changes))
    else:
        # Remembered from the second reply on.
        known = tree.offered.setdefault(node.id, set())
        known.update(() if known else _changes(node.edits))
    new = []
    for place, change in enumerate(changes):
        if change not in known:
            known.add(change)
            new.append(place)
    return new


def _changes(edits: Iterable[EditRecord | EditInBrief]) -> list[Hashable]:
    return [edit.change or edit.factors for edit in edits]


def _add_node(tree: Tree, event: Submitted | FiledSubmission, parent: Node | None) -> Node:
    depth = parent.depth + 1 if parent is not None else 0
    node = Node(event.node, event.kernel, event.edited, event.edit, depth)
    if event.path and not tree.is_lineage(event.path):
        node.detour = event.path
    tree.nodes.append(node)
    tree.by_identity[event.identity] = node.id
    return node


def _add_edge(tree: Tree, edge: Edge) -> None:
    number = len(tree.edges)
    tree.edges.append(edge)
    child = tree.nodes[edge.child]
    if edge.transposition:
        tree.transpositions[edge.parent, edge.child] = number
    else:
        child.edge = number
    child.sources = (*child.sources, edge.parent)
    if len(child.sources) > 1:
        for source in child.sources:
            tree.nodes[source].shares_children = True


def _settle(node: Node, edit: int, fate: Fate) -> None:
    node.untried.remove(edit)
    node.fates[edit] = fate
