"""Why a node was made: the terms by which its strategy chose it, reconstructed from a journal.

None of it is recorded. The tree as it was when a kernel was submitted is made again by replaying the events before, and
the strategy's terms are computed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mctskernel.registry import find
from mctskernel.tree.choices import open_strategy
from mctskernel.tree.events import Event, Started, Submitted
from mctskernel.tree.node import Tree
from mctskernel.tree.replay import apply
from mctskernel.tree.strategies.strategy import Choice


@dataclass(frozen=True)
class Account:
    """How a node came to be: decisions in their order, and notes in sentences."""

    node: int
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]


def can_account(strategy: str) -> bool:
    """Whether a strategy's choices follow from terms that can be shown.

    A run to look at may be anyone's: nothing that its files name by a path is imported.
    """
    return ":" not in strategy and hasattr(find("strategy", strategy), "explain")


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
                found = explain(tree, event.parent, event.edit)
                yield Account(event.node, found.choices, found.notes)
        apply(tree, event)
        if isinstance(event, Started) and can_account(event.policy.strategy):
            explain = getattr(open_strategy(event.policy), "explain", None)
