"""Why a node was made: the terms by which selection chose its parent and its edit, from a journal.

Nothing of it is recorded. A tree is a fold over its events, so the tree as it was when a kernel was submitted can be
made again, and the policy asked what it saw there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mctskernel.tree.events import Event, Started, Submitted
from mctskernel.tree.fold import apply
from mctskernel.tree.guidance import Guidance
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.scores import SELECTIONS
from mctskernel.tree.selection import compare_children, most_children, open_ways_of
from mctskernel.tree.strategies.edit_model import ModelGuided

MOST_RIVALS = 8
"""Of what competed, the best that are told beside the one that was chosen."""

CHILD_TERMS = ("visits n", "value Q", "prior P", "exploration U", "Q + U")
EDIT_TERMS = ("weight",)
MODEL_TERMS = ("expected improvement", "prior", "worth")


@dataclass(frozen=True)
class Rival:
    """What might have been chosen: a child that is there (`node`), or an edit of a node; its terms, by column."""

    title: str
    node: int | None
    terms: tuple[float, ...]
    chosen: bool


@dataclass(frozen=True)
class Choice:
    """One decision of a walk, the best rivals first."""

    title: str
    columns: tuple[str, ...]
    rivals: tuple[Rival, ...]


@dataclass(frozen=True)
class Account:
    """How a node came to be: decisions in their order, and remarks in sentences."""

    node: int
    choices: tuple[Choice, ...]
    remarks: tuple[str, ...]


def can_account(strategy: str) -> bool:
    """Whether a strategy's choices follow from terms that can be told."""
    return strategy in _WITNESSES


def selection_accounts(events: Iterable[Event], nodes: Collection[int]) -> Iterator[Account]:
    """The accounts of some nodes, in order of their creation; none of the root, nor of strategies without terms.

    `events` are those of a journal from its beginning; they are read no further than need be.
    """
    tree, left, witness = Tree(), set(nodes), None
    for event in events:
        if not left:
            return
        if isinstance(event, Submitted) and event.node in left:
            left.discard(event.node)
            if witness is not None and event.edited is not None and event.edit is not None:
                yield witness(tree, event)
        apply(tree, event)
        if isinstance(event, Started) and event.policy.strategy in _WITNESSES:
            witness = _WITNESSES[event.policy.strategy](tree)


class _TreeWalkWitness:
    """What Monte Carlo tree search saw on the way from the root to the node that it expanded."""

    def __init__(self, tree: Tree) -> None:
        self._guidance = Guidance(tree.policy)

    def __call__(self, tree: Tree, event: Submitted) -> Account:
        guidance = self._guidance
        guidance.follow(tree)
        path = event.path or tuple(tree.lineage(event.edited or 0))
        choices = [
            choice
            for number, chosen in pairwise(path)
            if (choice := _among_children(tree, tree.nodes[number], chosen, guidance))
        ]
        last = tree.nodes[path[-1]]
        remarks = [
            _expansion_sentence(tree, last, guidance),
            *map(_overruled, filter(_is_overruled, choices)),
        ]
        return Account(event.node, (*choices, _among_edits(tree, last, event, guidance)), tuple(remarks))


class _ModelWitness:
    """What the model of the edits expected of everything that could be tried."""

    def __init__(self, tree: Tree) -> None:  # noqa: ARG002 - as every witness
        self._strategy = ModelGuided()

    def __call__(self, tree: Tree, event: Submitted) -> Account:
        ratings = self._strategy.ratings(tree, MOST_RIVALS)
        rivals = tuple(
            Rival(
                _title(tree, each.node, each.edit),
                None,
                (each.improvement, each.prior, each.worth),
                (each.node, each.edit) == (event.edited, event.edit),
            )
            for each in ratings
        )
        remarks = [
            "Of all edits of the tree that could be tried, the one with the greatest worth is taken: the expected "
            "improvement over the fastest kernel, in standard deviations of the log times, times its prior."
        ]
        if not any(rival.chosen for rival in rivals):
            remarks.append(
                f"It isn't among the first {len(rivals)}: others were in flight, or it was a repair that was due."
            )
        return Account(event.node, (Choice("Edits of the whole tree", MODEL_TERMS, rivals),), tuple(remarks))


_WITNESSES: Mapping[str, Callable[[Tree], Callable[[Tree, Submitted], Account]]] = {
    "mcts": _TreeWalkWitness,
    "edit-model": _ModelWitness,
}


def _among_children(tree: Tree, node: Node, chosen: int, guidance: Guidance) -> Choice | None:
    ways = open_ways_of(tree, node)
    if not len(ways.children):
        return None
    admits = node.ready and node.children < most_children(tree, node, guidance.policy)
    untried = guidance.rival(tree, node) if admits else None
    children = compare_children(tree, node, guidance, untried)
    scores = SELECTIONS[guidance.policy.selection](children, guidance.policy)
    terms = np.column_stack(
        [children.visits, children.value, children.prior, scores - children.value, scores]
    )
    targets: list[int | None] = [*ways.children.tolist(), *([None] if untried is not None else [])]
    found = [
        Rival(_title_of(tree, child), child, tuple(row), child == chosen)
        for child, row in zip(targets, terms.tolist(), strict=True)
    ]
    title = f"From node {node.id}, after {tree.node_statistics.visits[node.id]} visits"
    return Choice(title, CHILD_TERMS, _foremost(found))


def _among_edits(tree: Tree, node: Node, event: Submitted, guidance: Guidance) -> Choice:
    untried = sorted(node.untried)
    weights = guidance.weights(tree, node, untried)
    shares = weights / (weights.sum() or 1.0)
    found = [
        Rival(_title(tree, node.id, edit), None, (share,), edit == event.edit)
        for edit, share in zip(untried, shares.tolist(), strict=True)
    ]
    return Choice(f"Untried edits of node {node.id}", EDIT_TERMS, _foremost(found))


def _foremost(found: list[Rival]) -> tuple[Rival, ...]:
    """The best by their last term, and the chosen one wherever it is."""
    ranked = sorted(found, key=lambda rival: -rival.terms[-1])
    return tuple(rival for rank, rival in enumerate(ranked) if rank < MOST_RIVALS or rival.chosen)


def _expansion_sentence(tree: Tree, node: Node, guidance: Guidance) -> str:
    limit = most_children(tree, node, guidance.policy)
    visits = tree.node_statistics.visits[node.id]
    if node.children < limit:
        return (
            f"Node {node.id} was expanded: {node.children} children are fewer than the {limit:.1f} that widening "
            f"allows after {visits} visits."
        )
    return (
        f"Node {node.id} was expanded: no child of its {node.children} led to anything that could be tried."
    )


def _is_overruled(choice: Choice) -> bool:
    return not choice.rivals[0].chosen


def _overruled(choice: Choice) -> str:
    return f"{choice.title} the highest score wasn't followed: it was passed over, or evaluations were in flight."


def _title(tree: Tree, node: int, edit: int | None) -> str:
    if edit is None:
        return f"node {node}: whatever its proposer says next"
    return f"node {node}: {tree.nodes[node].edits[edit].title}"


def _title_of(tree: Tree, number: int | None) -> str:
    if number is None:
        return "the best of its untried edits"
    node = tree.nodes[number]
    return "" if node.parent is None or node.edit is None else tree.nodes[node.parent].edits[node.edit].title
