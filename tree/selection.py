"""Selection: the walk from the root to the node to expand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mctskernel.tree.backup import VALUES
from mctskernel.tree.guidance import Closed, Guidance, Rival, nothing_closed
from mctskernel.tree.leads import Leads
from mctskernel.tree.node import Node, OpenWays, Tree
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy
from mctskernel.tree.scores import SELECTIONS, Children
from mctskernel.tree.vector import Array
from mctskernel.tree.widening import WIDENINGS


@dataclass(frozen=True)
class Selection:
    """The nodes from the root to the one to expand, which is the last."""

    path: tuple[int, ...]

    @property
    def node(self) -> int:
        """The node to expand."""
        return self.path[-1]


def select(
    tree: Tree, policy: Policy, guidance: Guidance | None = None, leads: Leads | None = None
) -> Selection | None:
    """Walks to the node to expand; None if no node can be expanded now. Changes nothing.

    A node is expanded while it has fewer children than widening allows, unless `guidance` has its children compete
    with what they may become; and when there is no child to go to. Children without a ready node below are passed
    over, and so are those that `guidance` closes while there is any other way. No node is entered twice, ties go to
    the older edge. With `leads` of the same tree and policy, the same is found sooner.
    """
    if not tree.nodes or not tree.node_statistics.ready[0]:
        return None
    if guidance is None:
        guidance = Guidance(policy)
        guidance.follow(tree)
    if not guidance.is_silent:
        leads = None
    found = _walk(tree, guidance, guidance.closed, leads)
    return found or (_walk(tree, guidance, nothing_closed) if guidance.closes else None)


def _walk(tree: Tree, guidance: Guidance, closed: Closed, leads: Leads | None = None) -> Selection | None:
    """One walk; None if there is no node to expand."""
    path, entered = [0], {0}
    if leads is not None:
        leads.begin(tree)
    while path:
        if leads is not None:
            before = len(path)
            leads.follow(tree, path, entered)
            entered.update(path[before:])
        node = tree.nodes[path[-1]]
        admits = node.ready and node.children < most_children(tree, node, guidance.policy)
        rival = guidance.rival(tree, node) if admits else None
        if admits and rival is None:
            return Selection(tuple(path))
        ways, child = open_ways_of(tree, node), None
        if len(ways.children):
            scores = _scores(tree, node, guidance, rival, leads)
            child = _best(ways.children, scores, entered, closed(tree, node, ways.children))
        if child is not None:
            path.append(child)
            entered.add(child)
        elif node.ready:
            return Selection(tuple(path))
        else:
            # A transposition led to where every way on is on the path already.
            path.pop()
            leads = None
    return None


def _scores(tree: Tree, node: Node, guidance: Guidance, rival: Rival | None, leads: Leads | None) -> Array:
    """Of the node's open ways, and of the rival if there is one."""
    ways = open_ways_of(tree, node)
    scores = leads.scores(tree, node, ways) if leads is not None else None
    children = None
    if scores is None:
        children = compare_children(tree, node, guidance, rival)
        scores = SELECTIONS[guidance.policy.selection](children, guidance.policy)
    if leads is not None:
        leads.take(tree, node, ways, scores, children)
    return scores


def most_children(tree: Tree, node: Node, policy: Policy) -> float:
    """How many children the node may have, with the traversals in flight."""
    statistics = tree.node_statistics
    return WIDENINGS[policy.widening](statistics.visits[node.id] + statistics.in_flight[node.id], policy)


def _best(children: Array, scores: Array, entered: set[int], closed: Array | None) -> int | None:
    """The child of the greatest score that was neither entered nor closed; None if there is none.

    Nor is there one if what has no child, the score at the end, is greater.
    """
    if closed is not None:
        scores[: len(children)][closed] = -np.inf
    for _ in children:
        best = int(scores.argmax())
        if best == len(children) or scores[best] == -np.inf:
            return None
        if (child := int(children[best])) not in entered:
            return child
        scores[best] = -np.inf
    return None


def open_ways_of(tree: Tree, node: Node) -> OpenWays:
    """The edges of a node to where something is ready."""
    if node.open_ways is None:
        edges = node.edges.view
        edges = edges[tree.node_statistics.ready.view[tree.edge_statistics.child.view[edges]] > 0]
        priors = tree.edge_statistics.prior.view[edges]
        children = tree.edge_statistics.child.view[edges]
        node.open_ways = OpenWays(edges, children, priors / priors.sum())
    return node.open_ways


def compare_children(tree: Tree, node: Node, guidance: Guidance, rival: Rival | None) -> Children:
    """What a score may look at of a node's open ways, and of the rival, last, if there is one."""
    policy, ways = guidance.policy, open_ways_of(tree, node)
    statistics = tree.node_statistics
    normalise = NORMALISATIONS[policy.normalisation]
    visits = np.maximum(tree.edge_statistics.visits.view[ways.edges], 1)
    worths = guidance.mixed(tree, node, ways.edges, VALUES[policy.value](statistics, ways.children), visits)
    value = normalise(worths, tree.low, tree.high)
    parent_visits = statistics.visits[node.id]
    in_flight = statistics.in_flight[node.id]
    if in_flight:
        lost = policy.virtual_loss * tree.edge_statistics.in_flight.view[ways.edges]
        loss = normalise(np.array([tree.low]), tree.low, tree.high)
        value, visits = (value * visits + loss * lost) / (visits + lost), visits + lost
        parent_visits = parent_visits + policy.virtual_loss * in_flight
    if rival is not None:
        value = np.append(value, normalise(np.array([rival.worth]), tree.low, tree.high))
        visits = np.append(visits, 1)
    if guidance.ignores_values:
        value = np.zeros(len(value))
    return Children(value, visits, guidance.priors(tree, node, ways, rival), parent_visits)
