"""What a search is configured with: one name or number for every choice that an ablation may change."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from mctskernel.core.user_errors import MisuseError


class PolicyError(MisuseError, ValueError):
    """A choice that doesn't exist or a number outside its range; the message is a sentence."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tree grows. `mctskernel.tree.choices.CHOICES` lists what each name may be.

    `strategy` decides what is tried next. Of every strategy: a failed kernel may be mended by up to `repair_depth`
    edits in a row, `repair` says whether before all else, and a node is exhausted after `patience` replies in a row
    that led to no new kernel. The rest is for "mcts".

    Which child: `selection` scores children, with the weight `exploration` on those that were little visited. `value`
    says what a child is worth, `normalisation` brings worths to one scale, `virtual_loss` is how many lost visits a
    traversal in flight counts for.

    Which edit: `widening` admits children as visits grow, with its factor and exponent; `first_play` lets them wait for
    as long as a child promises more. `order` picks the next edit of a node. With predictions (`order` "predicted"),
    the most promising of the next `lookahead` tries is taken, and the share `dissent` of all nodes goes to edits that
    the predictions don't favour.

    What edits did elsewhere: `estimate` is what an edit's kernel is expected to be worth, with what is known of all
    edits counting for `shrinkage` tries of this one. `prior` may follow it, or, of untried edits, what is drawn by what
    is believed of their effects ("thompson"); the more the lower the `prior_temperature`. `mixing` makes the estimate
    part of a child's worth, one half after `equivalence` visits.

    Where to stop: `pruning` passes subtrees over that failed `dead_end_failures` times and did nothing else, or gained
    nothing in `dead_end_visits`. After `stagnation` evaluations without a better kernel, `restart` leads the walks
    somewhere else for `restart_length` evaluations.

    What might follow: with predictions, `rollout` chooses the edits of a line of up to `rollout_depth` that begins at
    each new node and isn't evaluated. What the predictions say of it counts for the share `rollout_weight` of a
    child's worth.

    To compare "mcts" with there are other strategies. "beam": each of the best `beam_width` nodes of a depth makes
    `beam_edits` new kernels. "annealing": `annealing_walkers` take turns; the temperature, in units of the reward, is
    multiplied by `annealing_cooling` for each evaluation and begins again after `annealing_period` of them. "genetic":
    the share `genetic_crossover` of edits is taken over from another elite. "epsilon-net": kernels whose rewards differ
    by at most `net_radius` count as one, and the share `net_exploration` of edits is of a random node.
    """

    strategy: str = "edit-model"
    selection: str = "puct"
    exploration: float = 0.5
    value: str = "max"
    normalisation: str = "min-max"
    virtual_loss: float = 0.0
    widening: str = "progressive"
    widening_factor: float = 2.0
    widening_exponent: float = 0.5
    order: str = "prior"
    lookahead: int = 1
    dissent: float = 0.2
    repair: str = "in-turn"
    repair_depth: int = 1
    patience: int = 1
    first_play: str = "none"
    estimate: str = "gain"
    shrinkage: float = 2.0
    prior: str = "thompson"
    prior_temperature: float = 1.0
    mixing: str = "none"
    equivalence: float = 4.0
    pruning: str = "none"
    dead_end_visits: int = 10
    dead_end_failures: int = 3
    restart: str = "none"
    stagnation: int = 30
    restart_length: int = 10
    rollout: str = "none"
    rollout_depth: int = 3
    rollout_weight: float = 0.5
    beam_width: int = 4
    beam_edits: int = 4
    annealing_walkers: int = 1
    annealing_temperature: float = 0.3
    annealing_cooling: float = 0.97
    annealing_period: int = 100
    genetic_crossover: float = 0.5
    net_radius: float = 0.01
    net_exploration: float = 0.1

    def __post_init__(self) -> None:
        for names, is_allowed, range_of in _RANGES:
            for name in names:
                if not is_allowed(value := getattr(self, name)):
                    raise PolicyError(f"{name} is {value}; it must be {range_of}.")


_RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (
        (
            "exploration",
            "virtual_loss",
            "widening_exponent",
            "equivalence",
            "annealing_temperature",
            "net_radius",
        ),
        lambda value: 0 <= value < math.inf,
        "0 or more",
    ),
    (("widening_factor", "shrinkage", "prior_temperature"), lambda value: 0 < value < math.inf, "above 0"),
    (
        ("annealing_cooling", "genetic_crossover", "net_exploration", "dissent", "rollout_weight"),
        lambda value: 0 <= value <= 1,
        "from 0 to 1",
    ),
    (("repair_depth",), lambda value: value >= 0, "0 or more"),
    (
        (
            "lookahead",
            "patience",
            "dead_end_visits",
            "dead_end_failures",
            "stagnation",
            "restart_length",
            "rollout_depth",
            "beam_width",
            "beam_edits",
            "annealing_walkers",
            "annealing_period",
        ),
        lambda value: value >= 1,
        "1 or more",
    ),
)
"""Numbers, whether one of them may have a value, and in words which."""
