"""The choices of a policy: for each field that is a name, the functions that it may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mctskernel.tree.backup import VALUES
from mctskernel.tree.estimates import ESTIMATES
from mctskernel.tree.expansion import ORDERS
from mctskernel.tree.first_play import FIRST_PLAYS
from mctskernel.tree.mixing import MIXINGS
from mctskernel.tree.normalisation import NORMALISATIONS
from mctskernel.tree.policy import Policy, PolicyError
from mctskernel.tree.priors import PRIORS
from mctskernel.tree.pruning import PRUNINGS
from mctskernel.tree.repairs import REPAIRS
from mctskernel.tree.restarts import RESTARTS
from mctskernel.tree.rollouts import ROLLOUTS
from mctskernel.tree.scores import SELECTIONS
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.widening import WIDENINGS

CHOICES: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "strategy": STRATEGIES,
    "selection": SELECTIONS,
    "value": VALUES,
    "normalisation": NORMALISATIONS,
    "widening": WIDENINGS,
    "order": ORDERS,
    "first_play": FIRST_PLAYS,
    "estimate": ESTIMATES,
    "prior": PRIORS,
    "mixing": MIXINGS,
    "pruning": PRUNINGS,
    "repair": REPAIRS,
    "restart": RESTARTS,
    "rollout": ROLLOUTS,
}


def check_names(policy: Policy) -> None:
    """Raises PolicyError if the policy names a function that doesn't exist."""
    for field, functions in CHOICES.items():
        name = getattr(policy, field)
        if name not in functions:
            raise PolicyError(f"{field} is '{name}'; it must be one of {', '.join(functions)}.")


def with_settings(policy: Policy, settings: Iterable[str]) -> Policy:
    """The policy with fields set by lines such as "widening_factor=3", the last of equals counting.

    Raises PolicyError for a field that doesn't exist and for a value that it can't have.
    """
    return msgspec.structs.replace(policy, **dict(map(_setting, settings)))


def _setting(text: str) -> tuple[str, str | float]:
    name, separator, value = text.partition("=")
    fields = {field.name: field.type for field in msgspec.structs.fields(Policy)}
    if not separator:
        raise PolicyError(f"'{text}' sets nothing; write NAME=VALUE, for instance selection=uct.")
    if name not in fields:
        raise PolicyError(f"There is no choice '{name}'; it must be one of {', '.join(fields)}.")
    if name in CHOICES and value not in CHOICES[name]:
        raise PolicyError(f"{name} is '{value}'; it must be one of {', '.join(CHOICES[name])}.")
    try:
        read: str | float = msgspec.convert(value, fields[name], strict=False)
    except msgspec.ValidationError:
        kind = "a whole number" if fields[name] is int else "a number"
        raise PolicyError(f"{name} is '{value}'; it must be {kind}.") from None
    return name, read
