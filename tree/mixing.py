"""Mixing: how much of a child's worth is what its edit did elsewhere in the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mctskernel.tree.policy import Policy
from mctskernel.tree.vector import Array


def unmixed(visits: Array, policy: Policy) -> Array:  # noqa: ARG001 - a Mixing
    """Nothing."""
    return np.zeros(len(visits))


def rave(visits: Array, policy: Policy) -> Array:
    """sqrt(k / (3 n + k)), k the equivalence: everything before the first visit, half after k visits.

    Source: Gelly and Silver, "Monte-Carlo tree search and rapid action value estimation in computer Go", 2011, the
    hand-selected schedule.
    """
    if policy.equivalence == 0:
        return unmixed(visits, policy)
    share: Array = np.sqrt(policy.equivalence / (3 * visits + policy.equivalence))
    return share


Mixing = Callable[[Array, Policy], Array]
"""Takes how often children were visited; gives fractions."""

MIXINGS: Mapping[str, Mixing] = {"none": unmixed, "rave": rave}
