"""Expansion: which untried edit of a node comes next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.node import Node, Tree
from mctskernel.tree.vector import Array

Generators = Callable[[], np.random.Generator]
"""Makes the random generator of the moment, for an order that wants one."""


@dataclass(frozen=True)
class Untried:
    """Edits of a node that may be next, by descending prior and age, and their priors, of any scale."""

    edits: Sequence[int]
    priors: Array

    @classmethod
    def of(cls, node: Node) -> Untried:
        """All of a node's, at least one, with the priors that their proposer gave."""
        return cls(node.untried, np.array([node.priors[edit] for edit in node.untried]))

    @classmethod
    def ranked(cls, edits: Sequence[int], priors: Array) -> Untried:
        """From edits in order of age, at least one."""
        ranks = np.argsort(-priors, kind="stable")
        return cls([edits[rank] for rank in ranks], priors[ranks])


def by_prior(node: Node, untried: Untried, rng: Generators) -> int:  # noqa: ARG001 - an Order
    """The edit with the greatest prior, the older one of equals."""
    return untried.edits[0]


def by_arrival(node: Node, untried: Untried, rng: Generators) -> int:  # noqa: ARG001 - an Order
    """The oldest edit."""
    return min(untried.edits)


def sampled(node: Node, untried: Untried, rng: Generators) -> int:  # noqa: ARG001 - an Order
    """An edit drawn with its prior as weight."""
    weights = untried.priors / untried.priors.sum()
    return untried.edits[int(rng().choice(len(weights), p=weights))]


def by_prediction(node: Node, untried: Untried, rng: Generators) -> int:  # noqa: ARG001 - an Order
    """The edit with the greatest predicted gain, the greatest prior among equals.

    However uncertain, a prediction is the best guess that there is (docs/surrogate.md has the measurement). An edit
    without one counts as one that changes nothing, and goes by its prior against gains and losses within their
    uncertainty.
    """
    favoured = favourites(node, untried.edits)
    return next(edit for edit in untried.edits if edit in favoured)


def by_dissent(node: Node, untried: Untried, rng: Generators) -> int:  # noqa: ARG001 - an Order
    """The edit with the greatest prior among those that the predictions don't favour, if there are any."""
    favoured = favourites(node, untried.edits)
    return next((edit for edit in untried.edits if edit not in favoured), untried.edits[0])


def is_dissenting(tree: Tree) -> bool:
    """Whether the next node belongs to the edits that the predictions don't favour."""
    policy, count = tree.policy, len(tree.nodes)
    if policy.order != "predicted":
        return False
    return int((count + 1) * policy.dissent) > int(count * policy.dissent)


def favourites(node: Node, edits: Sequence[int]) -> frozenset[int]:
    """The edit with the greatest predicted gain, and those that the predictions don't put behind it."""
    best = max(edits, key=lambda edit: predicted_gain(node, edit))
    return frozenset(edit for edit in edits if edit == best or not _are_told_apart(node, best, edit))


def predicted_gain(node: Node, edit: int) -> float:
    """The node's time over that of what an edit makes; 1 where a surrogate doesn't say."""
    found = node.predictions.get(edit)
    return found.gain if found is not None and found.gain > 0 else 1.0


def _are_told_apart(node: Node, first: int, second: int) -> bool:
    """Whether two edits differ: by any predicted gain or, where one has none, by a gain beyond its uncertainty."""
    known = [found for edit in (first, second) if (found := node.predictions.get(edit)) and found.gain > 0]
    if len(known) == 2:
        return known[0].gain != known[1].gain
    return any(not found.is_tie for found in known)


Order = Callable[[Node, Untried, Generators], int]
"""Takes a node and those of its edits that may be next; there is at least one."""

ORDERS: Mapping[str, Order] = {
    "prior": by_prior,
    "arrival": by_arrival,
    "sampled": sampled,
    "predicted": by_prediction,
}
