"""The choices of a policy: for each field that is a name, what it may be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from mctskernel.tree.policy import Policy, PolicyError
from mctskernel.tree.strategies import STRATEGIES
from mctskernel.tree.strategies.mcts import PRIORS, SELECTIONS, VALUES

CHOICES: Mapping[str, Collection[str]] = {
    "strategy": STRATEGIES,
    "repair": ("in-turn", "at-once"),
    "order": ("prior", "predicted"),
    "selection": SELECTIONS,
    "value": VALUES,
    "prior": PRIORS,
}


def check_names(policy: Policy) -> None:
    """Raise PolicyError if the policy names something that doesn't exist."""
    for field, known in CHOICES.items():
        name = getattr(policy, field)
        if name not in known:
            raise PolicyError(f"{field} is '{name}'; it must be one of {', '.join(known)}.")


def with_settings(policy: Policy, settings: Iterable[str]) -> Policy:
    """The policy with fields set by lines such as "widening_factor=3", the last one of equal names counting.

    Raises PolicyError for a field that doesn't exist and for a value that it can't have.
    """
    changed = msgspec.structs.replace(policy, **dict(map(_setting, settings)))
    check_names(changed)
    return changed


def _setting(text: str) -> tuple[str, str | float]:
    name, separator, value = text.partition("=")
    fields = {field.name: field.type for field in msgspec.structs.fields(Policy)}
    if not separator:
        raise PolicyError(f"'{text}' sets nothing; write NAME=VALUE, for instance selection=uct.")
    if name not in fields:
        raise PolicyError(f"There is no choice '{name}'; it must be one of {', '.join(fields)}.")
    try:
        read: str | float = msgspec.convert(value, fields[name], strict=False)
    except msgspec.ValidationError:
        kind = "a whole number" if fields[name] is int else "a number"
        raise PolicyError(f"{name} is '{value}'; it must be {kind}.") from None
    return name, read
