"""What a user chooses about the experts, in a form that a run can keep."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mctskernel.edits.llm.experts import chosen_experts
from mctskernel.edits.llm.feedback import Feedback
from mctskernel.edits.llm.model import Model
from mctskernel.edits.llm.proposer import EDITS, LLMProposer

_Count = Annotated[int, msgspec.Meta(ge=1, le=64)]


class MixtureOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which experts are asked for edits of a node, and how.

    `experts` are written as `chosen_experts` takes them, none for all; `at_once` of them are asked for each node, for
    `edits` edits each. Up to `in_flight` nodes wait for replies at the same time. `feedback` is what models are told of
    how a kernel does, the judge included.
    """

    experts: tuple[str, ...] = ()
    edits: _Count = EDITS
    at_once: _Count = 1
    in_flight: _Count = 4
    feedback: Feedback = Feedback.DIAGNOSIS

    def __post_init__(self) -> None:
        """Refuse experts that don't exist. Raises ExpertError."""
        chosen_experts(self.experts)


def mixture(model: Model, options: MixtureOptions, device: tuple[str, ...]) -> LLMProposer:
    """The experts as they were chosen, who ask this model; `device` are sentences about the GPU."""
    return LLMProposer(
        model,
        device,
        chosen_experts(options.experts),
        edits=options.edits,
        at_once=options.at_once,
        feedback=options.feedback,
    )
