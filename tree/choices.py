"""The choices of a policy: for each field that is a name, the functions that it may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mctskernel.tree.backup import VALUES
from mctskernel.tree.expansion import ORDERS
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy, PolicyError
from mctskernel.tree.selection import SELECTIONS
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.widening import WIDENINGS

CHOICES: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "strategy": STRATEGIES,
    "selection": SELECTIONS,
    "value": VALUES,
    "normalisation": NORMALISATIONS,
    "widening": WIDENINGS,
    "order": ORDERS,
}


def check_names(policy: Policy) -> None:
    """Raises PolicyError if the policy names a function that doesn't exist."""
    for field, functions in CHOICES.items():
        name = getattr(policy, field)
        if name not in functions:
            raise PolicyError(f"{field} is '{name}'; it must be one of {', '.join(functions)}.")
