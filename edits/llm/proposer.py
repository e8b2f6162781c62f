"""Proposers that ask a language model: for edits of what works, and for repairs of what failed.

They remember nothing. Whom they ask and what they say follows from the request, so that a search that is repeated with
the same replies makes the same decisions, however many requests wait at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import REPAIRABLE, Outcome
from mctskernel.core.proposer import Attempt, Dropped, Loss, ProposalRequest, Proposals, Purpose
from mctskernel.edits.llm.dialogue import converse, merged
from mctskernel.edits.llm.experts import EXPERTS, Expert
from mctskernel.edits.llm.feedback import Feedback
from mctskernel.edits.llm.model import Call, Model
from mctskernel.edits.llm.prompt import messages_to_propose, messages_to_repair
from mctskernel.edits.llm.router import Arm, choose
from mctskernel.edits.llm.schema import EDITS_SCHEMA
from mctskernel.edits.llm.wording import quoted
from mctskernel.edits.patch import PatchError, apply

EDITS = 5
"""Edits that a model is asked for at a time."""

REPAIRS = 2
REPAIRER = "llm/repair"
"""The name that repairs carry: they say nothing of the experts."""

SURPLUS = 2
"""How many times the edits that were asked for are read, if a reply has more."""

FUTILE = 8
"""After as many edits of a node in a row that made no new kernel, a model isn't trusted to have others."""


@dataclass(frozen=True)
class LLMProposer:
    """Asks `at_once` experts, chosen by what their edits came to, each for `edits` edits.

    `device` are sentences about the GPU. Of a kernel that failed it proposes repairs.
    """

    model: Model
    device: tuple[str, ...] = ()
    experts: tuple[Expert, ...] = EXPERTS
    edits: int = EDITS
    at_once: int = 1
    name: str = "llm"
    feedback: Feedback = Feedback.DIAGNOSIS

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel, with every exchange and every loss."""
        if not request.evaluation.ok:
            return self.repair(request)
        rng = random_generator(request)
        arms = choose(
            [arm_of(expert) for expert in self.experts],
            request.standings,
            request.evaluation.diagnosis,
            self.at_once,
            rng,
        )
        return self.ask(request, [arm.name for arm in arms], rng)

    def ask(self, request: ProposalRequest, names: Iterable[str], rng: np.random.Generator) -> Proposals:
        """Edits from the experts with these proposers' names, whoever else might be better asked."""
        experts = {expert.proposer: expert for expert in self.experts}
        replies = [self._asked(request, experts[name], int(rng.integers(1 << 31))) for name in names]
        return _without_repeats(merged(replies), request)

    def repair(self, request: ProposalRequest) -> Proposals:
        """Edits that may mend the request's kernel; none where its outcome can't be mended."""
        if request.evaluation.outcome not in REPAIRABLE:
            return Proposals(())
        call = Call(
            Purpose.REPAIR,
            messages_to_repair(request, REPAIRS, self.device),
            schema=EDITS_SCHEMA,
            seed=int(random_generator(request).integers(1 << 31)),
            subject=request.kernel.identity,
        )
        reply = converse(self.model, call, request.kernel, REPAIRS)
        edits = (replace(edit, category=Category.REPAIR, proposer=REPAIRER) for edit in reply.edits)
        return _without_repeats(replace(reply, edits=tuple(edits)), request)

    def _asked(self, request: ProposalRequest, expert: Expert, seed: int) -> Proposals:
        call = Call(
            Purpose.PROPOSE,
            messages_to_propose(request, expert, self.edits, self.device, self.feedback),
            schema=EDITS_SCHEMA,
            expert=expert.name,
            model=expert.model,
            temperature=expert.temperature,
            seed=seed,
            subject=request.kernel.identity,
        )
        reply = converse(self.model, call, request.kernel, SURPLUS * self.edits)
        return replace(reply, edits=tuple(replace(edit, proposer=expert.proposer) for edit in reply.edits))


def arm_of(expert: Expert) -> Arm:
    """An expert as the router knows it."""
    return Arm(expert.proposer, expert.relieves)


def random_generator(request: ProposalRequest) -> np.random.Generator:
    """The same for the same request; another one when a request came to nothing and is made again."""
    return np.random.default_rng((request.seed, request.fruitless))


def _without_repeats(reply: Proposals, request: ProposalRequest) -> Proposals:
    """The reply without edits that were tried under the same title, or that make the same kernel as another of it."""
    tried = {_normalised(each.title) for each in request.siblings if each.outcome not in REPAIRABLE}
    made = {request.kernel.identity}
    kept: list[Edit] = []
    dropped = list(reply.dropped)
    for edit in reply.edits:
        try:
            kernel = apply(request.kernel, edit)
        except PatchError as error:
            dropped.append(Dropped(Loss.NO_MATCH, str(error)))
            continue
        if _normalised(edit.title) in tried:
            dropped.append(Dropped(Loss.REPEATED, f"{quoted(edit.title)} was tried on this kernel before."))
        elif kernel.identity in made:
            dropped.append(
                Dropped(Loss.REPEATED, f"{quoted(edit.title)} makes the same kernel as another edit.")
            )
        else:
            made.add(kernel.identity)
            kept.append(edit)
    more = bool(kept) and not _is_futile(request.siblings)
    return replace(reply, edits=tuple(kept), dropped=tuple(dropped), more=more)


def _is_futile(siblings: tuple[Attempt, ...]) -> bool:
    last = siblings[-FUTILE:]
    fruitless = (Outcome.DUPLICATE, Outcome.REJECTED)
    return len(last) == FUTILE and all(each.outcome in fruitless for each in last)


def _normalised(title: str) -> str:
    return " ".join(title.casefold().split()).rstrip(".")
