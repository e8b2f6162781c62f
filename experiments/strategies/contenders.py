"""What is compared on recorded spaces: strategies, and policies that differ from the default in one choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mctskernel.experiments.strategies.model_variations import JUMPS_OF, VARIATIONS
from mctskernel.tree.choices import CHOICES
from mctskernel.tree.policy import Policy


def contenders(names: Iterable[str]) -> tuple[str, ...]:
    """Contenders by name, groups taken apart, none of them twice; the default policy without a name."""
    chosen = tuple(names) or (DEFAULT,)
    return tuple(
        dict.fromkeys(each for name in chosen for each in (GROUPS[name]() if name in GROUPS else (name,)))
    )


def every_strategy() -> tuple[str, ...]:
    """Every strategy with its defaults."""
    return tuple(CHOICES["strategy"])


def walks() -> tuple[str, ...]:
    """Monte Carlo tree search, then with each of its named choices switched to each alternative, and other numbers."""
    defaults = msgspec.structs.asdict(Policy())
    switched = [
        f"{WALK}:{field}={name}"
        for field, functions in CHOICES.items()
        if field != "strategy"
        for name in functions
        if name != defaults[field]
    ]
    changed = [f"{WALK}:{field}={value:g}" for field, values in NUMBERS.items() for value in values]
    return WALK, PLAIN_WALK, LEARNING_WALK, *switched, *changed


def grid() -> tuple[str, ...]:
    """The search guided by the model of edits, and its variations."""
    return GUIDED, *(f"{GUIDED}@{name}" for name in (*VARIATIONS, *JUMPS_OF))


DEFAULT = Policy().strategy
"""The default policy, as a contender."""

WALK = "mcts"

PLAIN_WALK = "mcts:prior=given,exploration=1.4,virtual_loss=1"
"""The walk that learns nothing of edits: every node's are tried as their proposer ordered them."""

LEARNING_WALK = "mcts:prior=learnt,estimate=effect,shrinkage=0.5,exploration=0.5"
"""The walk by what edits are expected to do, of which nothing is drawn."""

GUIDED = "edit-model"

NUMBERS: Mapping[str, tuple[float, ...]] = {
    "exploration": (0.1, 1.0, 1.4),
    "widening_factor": (1, 4),
    "virtual_loss": (1, 3),
}
"""Other numbers for choices of the walk, one at a time."""

GROUPS: Mapping[str, Callable[[], tuple[str, ...]]] = {"all": every_strategy, "walks": walks, "grid": grid}
"""What a name stands for that is no contender itself."""
