"""The policy of a search: one name or number for every choice that an ablation may change."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from mctskernel.core.user_errors import MisuseError


class PolicyError(MisuseError, ValueError):
    """A choice that doesn't exist or a number outside its range; the message is a sentence."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tree grows. `mctskernel.tree.choices.CHOICES` lists the values of each name.

    `strategy` decides which edit is tried next. For every strategy: a failed kernel may be repaired by up to
    `repair_depth` edits in a row, `repair` says whether before anything else, and a node is exhausted after `patience`
    replies in a row that led to no new kernel. `order` says which edit of a node comes first; with "predicted", the
    `exploration_fraction` of all nodes goes to edits that the predictions don't favour.

    "mcts": `selection` is the upper confidence bound, `exploration` its weight, `value` what is backed up. A node with
    n visits may have `widening_factor` * n ** `widening_exponent` children. `prior` says how edits are weighted.

    "beam": each of the best `beam_width` nodes of a depth makes `beam_edits` new kernels. "annealing": the temperature,
    in units of the reward, is multiplied by `annealing_cooling` after each evaluation and raised again after
    `annealing_period` of them. "evolutionary": the fraction `crossover` of new kernels combines two elites.
    "epsilon-net": kernels whose rewards differ by at most `net_radius` count as one, and the fraction `net_exploration`
    of edits is of a random node.
    """

    strategy: str = "edit-model"
    repair: str = "in-turn"
    repair_depth: int = 1
    patience: int = 1
    order: str = "prior"
    exploration_fraction: float = 0.2
    selection: str = "puct"
    exploration: float = 0.5
    value: str = "max"
    widening_factor: float = 2.0
    widening_exponent: float = 0.5
    prior: str = "thompson"
    beam_width: int = 4
    beam_edits: int = 4
    annealing_temperature: float = 0.3
    annealing_cooling: float = 0.97
    annealing_period: int = 100
    crossover: float = 0.5
    net_radius: float = 0.01
    net_exploration: float = 0.1

    def __post_init__(self) -> None:
        for names, is_allowed, range_of in _RANGES:
            for name in names:
                if not is_allowed(value := getattr(self, name)):
                    raise PolicyError(f"{name} is {value}; it must be {range_of}.")


_RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (
        ("exploration", "widening_exponent", "annealing_temperature", "net_radius"),
        lambda value: 0 <= value < inf,
        "0 or more",
    ),
    (("widening_factor",), lambda value: value > 0, "above 0"),
    (
        ("exploration_fraction", "annealing_cooling", "crossover", "net_exploration"),
        lambda value: 0 <= value <= 1,
        "from 0 to 1",
    ),
    (("repair_depth",), lambda value: value >= 0, "0 or more"),
    (
        ("patience", "beam_width", "beam_edits", "annealing_period"),
        lambda value: value >= 1,
        "1 or more",
    ),
)
"""Numbers, whether one of them may have a value, and the range in words."""
