"""Why a node was made: the terms by which selection chose its parent and its edit, reconstructed from a journal.

None of it is recorded. The tree as it was when a kernel was submitted is made again by replaying the events before, and
the strategy's terms are computed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from mctskernel.tree.events import Event, Started, Submitted
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.replay import apply
from mctskernel.tree.strategies.edit_model import ModelGuided
from mctskernel.tree.strategies.mcts import MonteCarlo, PlainUct
from mctskernel.tree.trajectory import edit_title

MOST_RIVALS = 8
"""Of what could have been chosen, the best that are listed beside the one that was."""

CHILD_TERMS = ("visits n", "value Q", "prior P", "exploration U", "Q + U")
EDIT_TERMS = ("weight",)
MODEL_TERMS = ("expected improvement", "prior", "value")


@dataclass(frozen=True)
class Rival:
    """What could have been chosen: an existing child (`node`), or an edit of a node; its terms, by column."""

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
    """How a node came to be: decisions in their order, and notes in sentences."""

    node: int
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]


def can_account(strategy: str) -> bool:
    """Whether a strategy's choices follow from terms that can be shown."""
    return strategy in _EXPLAINERS


def selection_accounts(events: Iterable[Event], nodes: Collection[int]) -> Iterator[Account]:
    """The accounts of some nodes, in order of their creation; none of the root, nor of strategies without terms.

    `events` are those of a journal from its beginning; they are read no further than necessary.
    """
    tree, left, explain = Tree(), set(nodes), None
    for event in events:
        if not left:
            return
        if isinstance(event, Submitted) and event.node in left:
            left.discard(event.node)
            if explain is not None and event.parent is not None and event.edit is not None:
                yield explain(tree, event.node, event.parent, event.edit)
        apply(tree, event)
        if isinstance(event, Started) and event.policy.strategy in _EXPLAINERS:
            explain = _EXPLAINERS[event.policy.strategy]()


Explainer = Callable[[Tree, int, int, int], Account]
"""Takes the tree, the new node, its parent and the edit."""


def _walk_explainer(strategy: MonteCarlo) -> Explainer:
    def explain(tree: Tree, new: int, parent: int, edit: int) -> Account:
        strategy.update(tree)
        lineage = tree.lineage(parent)
        steps = [
            _among_children(tree, strategy, tree.nodes[number], chosen)
            for number, chosen in pairwise(lineage)
        ]
        last = tree.nodes[parent]
        weights = strategy.weights(tree, last, last.untried)
        shares = (weights / (weights.sum() or 1.0)).tolist()
        edits = [
            Rival(_edit_label(tree, parent, number), None, (share,), number == edit)
            for number, share in zip(last.untried, shares, strict=True)
        ]
        choices = (*steps, Choice(f"Untried edits of node {parent}", EDIT_TERMS, _best_rivals(edits)))
        overruled = [
            f"{step.title} the highest score wasn't followed: it was a repair, or evaluations were pending."
            for step in steps
            if not step.rivals or not step.rivals[0].chosen
        ]
        return Account(new, choices, (_expansion_sentence(tree, strategy, last), *overruled))

    return explain


def _model_explainer() -> Explainer:
    strategy = ModelGuided()

    def explain(tree: Tree, new: int, parent: int, edit: int) -> Account:
        rivals = tuple(
            Rival(
                _edit_label(tree, each.node, each.edit),
                None,
                (each.improvement, each.prior, each.value),
                (each.node, each.edit) == (parent, edit),
            )
            for each in strategy.ratings(tree, MOST_RIVALS)
        )
        notes = [
            "Of all edits of the tree that could be tried, the one with the greatest value is taken: the expected "
            "improvement over the fastest kernel, in standard deviations of the log times, times its prior."
        ]
        if not any(rival.chosen for rival in rivals):
            notes.append(
                f"It isn't among the first {len(rivals)}: other evaluations were pending, or it was a repair."
            )
        return Account(new, (Choice("Edits of the whole tree", MODEL_TERMS, rivals),), tuple(notes))

    return explain


_EXPLAINERS: Mapping[str, Callable[[], Explainer]] = {
    "mcts": lambda: _walk_explainer(MonteCarlo()),
    "uct": lambda: _walk_explainer(PlainUct()),
    "edit-model": _model_explainer,
}


def _among_children(tree: Tree, strategy: MonteCarlo, node: Node, chosen: int) -> Choice:
    found = [
        Rival(
            edit_title(tree, each.node),
            each.node.id,
            (each.visits, each.value, each.prior, each.bonus, each.score),
            each.node.id == chosen,
        )
        for each in strategy.candidates(tree, node)
    ]
    return Choice(f"From node {node.id}, after {node.visits} visits", CHILD_TERMS, _best_rivals(found))


def _best_rivals(found: list[Rival]) -> tuple[Rival, ...]:
    """The best by their last term, and the chosen one wherever it is."""
    ranked = sorted(found, key=lambda rival: -rival.terms[-1])
    return tuple(rival for rank, rival in enumerate(ranked) if rank < MOST_RIVALS or rival.chosen)


def _expansion_sentence(tree: Tree, strategy: MonteCarlo, node: Node) -> str:
    limit = strategy.limit(tree, node)
    if len(node.children) < limit:
        return (
            f"Node {node.id} was expanded: {len(node.children)} children are fewer than the {limit:.1f} that "
            f"widening allows after {node.visits} visits."
        )
    return f"Node {node.id} was expanded: none of its {len(node.children)} children led to an edit to try."


def _edit_label(tree: Tree, node: int, edit: int | None) -> str:
    if edit is None:
        return f"node {node}: edits that its proposer hasn't proposed yet"
    return f"node {node}: {tree.nodes[node].edits[edit].title}"
