"""The choices of a policy by name: what all strategies share, and the options of the one that is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from mctskernel.core.documents import excerpt, unknown_name
from mctskernel.core.user_errors import MisuseError
from mctskernel.registry import find, options_of
from mctskernel.tree.policy import Policy
from mctskernel.tree.strategies.strategy import Strategy

T = TypeVar("T")


def open_strategy(policy: Policy) -> Strategy:
    """The strategy of a policy, for one tree. Raises RegistryError and MisuseError."""
    factory, options = find("strategy", policy.strategy), options_of("strategy", policy.strategy)
    found: Strategy = factory(_converted(policy.options, options)) if options else factory()
    return found


def check_policy(policy: Policy) -> None:
    """Raise RegistryError for a strategy, and MisuseError for a value, that a search can't be made with."""
    with_choices(policy, {})
    open_strategy(policy)


def choice_names(strategy: str) -> tuple[str, ...]:
    """What can be chosen in a policy with such a strategy. Raises RegistryError."""
    options = options_of("strategy", strategy)
    shared = (name for name in Policy.__struct_fields__ if name != "options")
    return (*shared, *(options.__struct_fields__ if options else ()))


def with_choices(policy: Policy, choices: Mapping[str, Any]) -> Policy:
    """The policy with changed fields or strategy's options, perhaps as text. Raises MisuseError and RegistryError."""
    strategy = choices.get("strategy", policy.strategy)
    for name in choices:
        if complaint := unknown_name(name, choice_names(strategy), f"choice of the strategy {strategy}"):
            raise MisuseError(complaint)
    shared = {name: value for name, value in choices.items() if name in Policy.__struct_fields__}
    kept = policy.options if strategy == policy.strategy else {}
    options = {**kept, **{name: value for name, value in choices.items() if name not in shared}}
    if kind := options_of("strategy", strategy):
        read = msgspec.to_builtins(_converted(options, kind))
        options = {name: read[name] for name in options}
    return _converted({**msgspec.to_builtins(policy), **shared, "options": options}, Policy)


def _converted(values: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").partition(".")[0]
        if known := [each for each in get_args(get_type_hints(kind).get(name)) if isinstance(each, str)]:
            problem = f"It must be one of {', '.join(known)}"
        raise MisuseError(f"{name} is '{values.get(name)}'. {excerpt(problem)}.") from error
