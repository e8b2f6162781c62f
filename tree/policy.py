"""What a search is configured with: one name or number for every choice that an ablation may change."""

from __future__ import annotations

import msgspec


class PolicyError(ValueError):
    """A choice that doesn't exist or a number outside its range; the message is a sentence."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tree grows. `mctskernel.tree.choices.CHOICES` lists what each name may be.

    `strategy` decides what is tried next; the rest is for "mcts". `selection` scores children, with the weight
    `exploration` on those that were little visited. `value` says what a child is worth, `normalisation` brings worths
    to one scale, `virtual_loss` is how many lost visits a traversal in flight counts for. `widening` admits children as
    visits grow, with its factor and exponent; `order` picks the next edit of a node. With predictions (`order`
    "predicted"), the most promising of the next `lookahead` tries is taken, and the share `dissent` of all nodes goes
    to edits that the predictions don't favour. Of every strategy: a failed kernel may be mended by up to
    `repair_depth` edits in a row, and a node is exhausted after `patience` replies in a row that led to no new kernel.
    """

    strategy: str = "mcts"
    selection: str = "puct"
    exploration: float = 1.4
    value: str = "max"
    normalisation: str = "min-max"
    virtual_loss: float = 1.0
    widening: str = "progressive"
    widening_factor: float = 2.0
    widening_exponent: float = 0.5
    order: str = "prior"
    lookahead: int = 1
    dissent: float = 0.2
    repair_depth: int = 1
    patience: int = 1

    def __post_init__(self) -> None:
        for name in ("exploration", "virtual_loss", "widening_exponent"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise PolicyError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        if not 0 < self.widening_factor < float("inf"):
            raise PolicyError(f"widening_factor is {self.widening_factor}; it must be above 0.")
        if not 0 <= self.dissent <= 1:
            raise PolicyError(f"dissent is {self.dissent}; it must be from 0 to 1.")
        if self.lookahead < 1:
            raise PolicyError(f"lookahead is {self.lookahead}; it must be 1 or more.")
        if self.repair_depth < 0:
            raise PolicyError(f"repair_depth is {self.repair_depth}; it must be 0 or more.")
        if self.patience < 1:
            raise PolicyError(f"patience is {self.patience}; it must be 1 or more.")
