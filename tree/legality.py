"""Legality: which events can follow a tree, so that nothing is journalled that can't be replayed."""

from __future__ import annotations

from itertools import pairwise

from mctskernel.tree.events import (
    Asked,
    Duplicated,
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
from mctskernel.tree.evidence import Filed, FiledReply, FiledResult, FiledSubmission
from mctskernel.tree.node import Tree


class TreeError(ValueError):
    """An event that can't follow the ones before it; the message is a sentence."""


def check(tree: Tree, event: Event | Filed) -> None:
    """Raises TreeError if an event can't follow; the tree is unchanged."""
    complaint = _complaint(tree, event)
    if complaint:
        raise TreeError(f"A '{type(event).__struct_config__.tag}' event can't follow here: {complaint}.")


def _complaint(tree: Tree, event: Event | Filed) -> str | None:
    match event:
        case Submitted() | FiledSubmission():
            return _about_submission(tree, event)
        case Evaluated() | FiledResult():
            return None if event.node in tree.pending else f"node {event.node} isn't in flight"
        case Asked():
            return _about_asking(tree, event)
        case Proposed() | FiledReply():
            return _about_evaluated_node(tree, event.node)
        case Predicted():
            return _about_prediction(tree, event)
        case RolledOut():
            return _about_rollout(tree, event)
        case Duplicated() | Refused():
            return _about_settling(tree, event)
        case Started():
            return "a search starts once" if tree.events else None
        case Resumed():
            return None if tree.nodes else "there is nothing to resume"


def _about_submission(tree: Tree, event: Submitted | FiledSubmission) -> str | None:
    if not tree.events:
        return "the search hasn't started"
    if event.node != len(tree.nodes):
        return f"the next node is {len(tree.nodes)}, not {event.node}"
    if event.identity in tree.by_identity:
        return f"its kernel is node {tree.by_identity[event.identity]} already"
    parent = event.edited
    if event.edit is None or parent is None:
        is_root = event.node == 0 and event.edit is None and parent is None
        return None if is_root else "only the root has no parent and no edit"
    if event.parent not in {None, parent}:
        return f"its path leads to node {parent}, not to its parent {event.parent}"
    return _about_path(tree, event.path) or _about_untried(tree, parent, event.edit)


def _about_asking(tree: Tree, event: Asked) -> str | None:
    node = event.awaited
    if event.node not in {None, node}:
        return f"its path leads to node {node}, not to node {event.node}"
    complaint = _about_path(tree, event.path) or _about_evaluated_node(tree, node)
    if complaint is None and node in tree.awaiting:
        return f"node {node} awaits a reply already"
    return complaint


def _about_prediction(tree: Tree, event: Predicted) -> str | None:
    complaint = _about_node(tree, event.node)
    if complaint is not None:
        return complaint
    node = tree.nodes[event.node]
    if event.edit is not None and not 0 <= event.edit < len(node.edits):
        return f"node {event.node} has no edit {event.edit}"
    known = node.prediction is not None if event.edit is None else event.edit in node.predictions
    return "its kernel is predicted already" if known else None


def _about_rollout(tree: Tree, event: RolledOut) -> str | None:
    known = f"node {event.node} is rolled out already" if event.node in tree.rollouts else None
    return _about_evaluated_node(tree, event.node) or known


def _about_settling(tree: Tree, event: Duplicated | Refused) -> str | None:
    of = _about_node(tree, event.of) if isinstance(event, Duplicated) else None
    return _about_untried(tree, event.node, event.edit) or of


def _about_path(tree: Tree, path: tuple[int, ...]) -> str | None:
    if not path:
        return None
    if not tree.nodes or path[0] != 0:
        return "a path begins at the root"
    if not all(0 <= node < len(tree.nodes) for node in path):
        return "a path leads through nodes that there are"
    if len(set(path)) != len(path):
        return "a path visits no node twice"
    for parent, child in pairwise(path):
        if tree.edge_between(parent, child) is None:
            return f"no edge leads from node {parent} to node {child}"
    return None


def _about_untried(tree: Tree, node: int, edit: int) -> str | None:
    complaint = _about_node(tree, node)
    if complaint is None and edit not in tree.nodes[node].untried:
        return f"edit {edit} of node {node} isn't waiting to be tried"
    return complaint


def _about_evaluated_node(tree: Tree, node: int) -> str | None:
    complaint = _about_node(tree, node)
    if complaint is None and tree.nodes[node].evidence is None:
        return f"node {node} isn't evaluated"
    return complaint


def _about_node(tree: Tree, node: int) -> str | None:
    return None if 0 <= node < len(tree.nodes) else f"there is no node {node}"
