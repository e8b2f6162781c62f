"""The policy of a search whose user leaves choices open: what suits its device, its proposer and its surrogate."""

from __future__ import annotations

import msgspec

from mctskernel.core.surrogate import SurrogateUse
from mctskernel.proposers import ASK_A_MODEL, OUTSIDE
from mctskernel.tree.policy import Policy

WALK = "mcts"

LOOKAHEAD = 4
"""Edits that a surrogate which filters compares for each evaluation."""

THINKERS = ASK_A_MODEL | {OUTSIDE}
"""Proposers that say something else when they are asked again, and may mend what failed."""

THINKERS_PATIENCE = 3
"""Replies without a new kernel after which a node of theirs is given up."""


def open_policy(device: str, proposer: str, use: SurrogateUse, lookahead: int = LOOKAHEAD) -> Policy:
    """The policy where nothing else is chosen. `lookahead` counts for a surrogate that filters.

    Predictions order the edits of a node, and it is the walk that comes to a node and then asks which. On `model` the
    walk is the default as well: what an evaluation costs there depends on the kernel, which the model of edits doesn't
    know, and the kernels that it prefers are the dearest.
    """
    policy = Policy()
    if device == "model" or use is not SurrogateUse.OFF:
        policy = msgspec.structs.replace(policy, strategy=WALK)
    if use is not SurrogateUse.OFF:
        policy = msgspec.structs.replace(policy, order="predicted")
    if use is SurrogateUse.FILTER:
        policy = msgspec.structs.replace(policy, lookahead=lookahead)
    if proposer in THINKERS:
        policy = msgspec.structs.replace(policy, patience=THINKERS_PATIENCE, repair="at-once")
    return policy
