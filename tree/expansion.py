"""Expansion: which untried edit of a node comes next."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mctskernel.tree.node import Node

Generators = Callable[[], np.random.Generator]
"""Makes the random generator of the moment, for an order that wants one."""


def by_prior(node: Node, rng: Generators) -> int:  # noqa: ARG001
    """The edit with the greatest prior, the older one of equals."""
    return node.untried[0]


def by_arrival(node: Node, rng: Generators) -> int:  # noqa: ARG001
    """The oldest edit."""
    return min(node.untried)


def sampled(node: Node, rng: Generators) -> int:
    """An edit drawn with its prior as weight."""
    weights = np.array([node.edits[edit].prior for edit in node.untried])
    return node.untried[int(rng().choice(len(weights), p=weights / weights.sum()))]


Order = Callable[[Node, Generators], int]

ORDERS: Mapping[str, Order] = {"prior": by_prior, "arrival": by_arrival, "sampled": sampled}
