"""The policy of a search: its strategy, the options of that, and what all strategies share."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mctskernel.core.option import Option


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the tree grows.

    `options` are those of the strategy's own options that are set. For every strategy: a failed kernel may be repaired
    by up to `repair_depth` edits in a row, `repair` says whether before anything else, and a node is exhausted after
    `patience` replies in a row that led to no new kernel. `mctskernel.tree.choices` checks and sets them.
    """

    strategy: Annotated[str, Option("How the next edit to try is selected.", registered="strategy")] = "mcts"
    options: dict[str, str | int | float] = {}
    repair: Literal["in-turn", "at-once"] = "in-turn"
    repair_depth: Annotated[int, Meta(ge=0)] = 1
    patience: Annotated[int, Meta(ge=1)] = 1
