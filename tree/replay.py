"""Replay: how each event changes the tree. Live and from a journal alike, so that resuming is replaying."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from mctskernel.core.evaluation import REPAIRABLE, Outcome
from mctskernel.tree.events import (
    Duplicated,
    EditRecord,
    Evaluated,
    Event,
    Proposed,
    Refused,
    Requested,
    Resumed,
    Retimed,
    Started,
    Submitted,
)
from mctskernel.tree.node import UNTRIED, Fate, Node, Tree


class TreeError(ValueError):
    """An event that can't follow the ones before it; the message is a sentence."""


def replay(events: Iterable[Event]) -> Tree:
    """The tree that the events make. Raises TreeError at one that can't follow."""
    tree = Tree()
    for event in events:
        apply(tree, event)
    return tree


def apply(tree: Tree, event: Event) -> None:
    """Change the tree by one event. Raises TreeError, the tree unchanged, if the event can't follow."""
    check(tree, event)
    advance(tree, event)


def check(tree: Tree, event: Event) -> None:
    """Raise TreeError if an event can't follow; the tree is unchanged."""
    if complaint := _complaint(tree, event):
        raise TreeError(f"A '{type(event).__struct_config__.tag}' event can't follow here: {complaint}.")


def advance(tree: Tree, event: Event) -> None:
    """Change the tree by one event that was checked."""
    tree.events += 1
    match event:
        case Started():
            tree.policy, tree.seed = event.policy, event.seed
        case Submitted():
            _submit(tree, event)
        case Evaluated() | Retimed():
            _evaluate(tree, event)
        case Requested():
            tree.requested[event.node] = None
            _count_in_flight(tree, event.node, 1)
            _refresh(tree, event.node)
        case Proposed():
            _propose(tree, event)
        case Duplicated():
            _duplicate(tree, event)
        case Refused():
            _settle(tree, event.node, event.edit, Fate(reason=event.reason))
        case Resumed():
            _end_requests(tree, list(tree.requested))


def _submit(tree: Tree, event: Submitted) -> None:
    depth = 0 if event.parent is None else tree.nodes[event.parent].depth + 1
    node = Node(event.node, event.kernel, event.parent, event.edit, depth)
    tree.nodes.append(node)
    tree.by_identity[event.kernel.identity] = node.id
    tree.pending[node.id] = None
    _count_in_flight(tree, node.id, 1)
    if event.parent is not None and event.edit is not None:
        parent = tree.nodes[event.parent]
        parent.children.append(node.id)
        parent.fruitless_replies = 0
        _settle(tree, parent.id, event.edit, Fate(node=node.id))


def _evaluate(tree: Tree, event: Evaluated | Retimed) -> None:
    node, reward = tree.nodes[event.node], event.score.reward
    replaced = node.reward if node.evaluation is not None else None
    node.evaluation, node.score, node.log = event.evaluation, event.score, event.log
    tree.evaluation_seconds += event.evaluation.cost_seconds
    tree.low, tree.high = min(tree.low, reward), max(tree.high, reward)
    if replaced is not None:
        _replace_reward(tree, node, replaced)
        return
    if not event.evaluation.ok and event.evaluation.outcome is not Outcome.UNVERIFIABLE:
        before = tree.nodes[node.parent].failures_in_a_row if node.parent is not None else 0
        node.failures_in_a_row = before + 1
    del tree.pending[node.id]
    tree.evaluated.append(node.id)
    _count_in_flight(tree, node.id, -1)
    for each in _upwards(tree, node.id):
        each.visits += 1
        each.reward_sum += reward
        each.reward_max = max(each.reward_max, reward)
    _refresh(tree, node.id)


def _replace_reward(tree: Tree, node: Node, before: float) -> None:
    for each in _upwards(tree, node.id):
        each.reward_sum += node.reward - before
        each.reward_max = max([each.reward, *(tree.nodes[child].reward_max for child in each.children)])
    _refresh(tree, node.id)


def _propose(tree: Tree, event: Proposed) -> None:
    node = tree.nodes[event.node]
    known = {edit.content for edit in node.edits}
    count = len(node.edits)
    for edit in event.edits:
        if edit.content not in known:
            known.add(edit.content)
            node.untried.append(len(node.edits))
            node.edits.append(_interned(edit))
            node.fates.append(UNTRIED)
    # Of equal priors the older edit stays before the newer.
    node.untried.sort(key=lambda number: -node.edits[number].prior)
    # A proposer that has more is asked again, unless all of its reply was known.
    if not event.silent and not (event.more and len(node.edits) > count):
        node.fruitless_replies += 1
    if not event.silent:
        node.lost = tuple(each.reason for each in event.dropped)
    tree.replied.append(node.id)
    tree.dollars += event.dollars
    if node.id in tree.requested:
        _end_requests(tree, [node.id])
    _refresh(tree, node.id)


def _settle(tree: Tree, number: int, edit: int, fate: Fate) -> None:
    node = tree.nodes[number]
    node.untried.remove(edit)
    node.fates[edit] = fate
    _refresh(tree, number)


def _duplicate(tree: Tree, event: Duplicated) -> None:
    tree.duplicated.append((event.node, event.edit))
    if event.of not in (event.node, *tree.nodes[event.node].children):
        tree.transpositions.setdefault((event.node, event.of), event.edit)
    _settle(tree, event.node, event.edit, Fate(node=event.of, duplicate=True))


def _end_requests(tree: Tree, nodes: Iterable[int]) -> None:
    for node in nodes:
        del tree.requested[node]
        _count_in_flight(tree, node, -1)
        _refresh(tree, node)


def _upwards(tree: Tree, number: int) -> Iterator[Node]:
    node = tree.nodes[number]
    yield node
    while node.parent is not None:
        node = tree.nodes[node.parent]
        yield node


def _count_in_flight(tree: Tree, number: int, change: int) -> None:
    for node in _upwards(tree, number):
        node.in_flight += change


def _refresh(tree: Tree, number: int) -> None:
    """Update whether a node is ready, and how many are on the way to it."""
    node = tree.nodes[number]
    ready = _is_ready(tree, node)
    if ready != node.ready:
        node.ready = ready
        for each in _upwards(tree, number):
            each.open += 1 if ready else -1


def _is_ready(tree: Tree, node: Node) -> bool:
    evaluation = node.evaluation
    if evaluation is None or evaluation.quarantine or node.id in tree.requested:
        return False
    if not evaluation.ok and (
        evaluation.outcome not in REPAIRABLE or node.failures_in_a_row > tree.policy.repair_depth
    ):
        return False
    return bool(node.untried) or node.fruitless_replies < tree.policy.patience


def _interned(edit: EditRecord) -> EditRecord:
    """The same edit, its texts shared with other edits: a rule gives the same reasons at every node."""
    return msgspec.structs.replace(
        edit,
        title=sys.intern(edit.title),
        rationale=sys.intern(edit.rationale),
        expected_effect=sys.intern(edit.expected_effect),
        proposer=sys.intern(edit.proposer),
    )


def _complaint(tree: Tree, event: Event) -> str | None:
    match event:
        case Started():
            return "a search starts once" if tree.events else None
        case Submitted():
            return _about_submission(tree, event)
        case Evaluated():
            return None if event.node in tree.pending else f"node {event.node} isn't being evaluated"
        case Requested():
            asked = f"edits of node {event.node} have been requested already"
            return _about_evaluated(tree, event.node) or (asked if event.node in tree.requested else None)
        case Proposed() | Retimed():
            return _about_evaluated(tree, event.node)
        case Duplicated():
            return _about_untried(tree, event.node, event.edit) or _about_node(tree, event.of)
        case Refused():
            return _about_untried(tree, event.node, event.edit)
        case Resumed():
            return None if tree.nodes else "there is nothing to resume"


def _about_submission(tree: Tree, event: Submitted) -> str | None:
    if not tree.events:
        return "the search hasn't started"
    if event.node != len(tree.nodes):
        return f"the next node is {len(tree.nodes)}, not {event.node}"
    if event.kernel.identity in tree.by_identity:
        return f"its kernel is node {tree.by_identity[event.kernel.identity]} already"
    if event.parent is None or event.edit is None:
        is_root = event.node == 0 and event.parent is None and event.edit is None
        return None if is_root else "only the root has no parent and no edit"
    return _about_untried(tree, event.parent, event.edit)


def _about_untried(tree: Tree, node: int, edit: int) -> str | None:
    complaint = _about_node(tree, node)
    if complaint is None and edit not in tree.nodes[node].untried:
        return f"edit {edit} of node {node} isn't waiting to be tried"
    return complaint


def _about_evaluated(tree: Tree, node: int) -> str | None:
    complaint = _about_node(tree, node)
    if complaint is None and tree.nodes[node].evaluation is None:
        return f"node {node} isn't evaluated"
    return complaint


def _about_node(tree: Tree, node: int) -> str | None:
    return None if 0 <= node < len(tree.nodes) else f"there is no node {node}"
