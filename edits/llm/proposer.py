"""Proposers that ask a language model for edits of kernels that work and for repairs of those that failed.

They keep no state: which expert is asked follows from the request alone, so a search repeated with the same replies
makes the same decisions, however many requests are in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import REPAIRABLE, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Dropped, Exchange, Loss, ProposalRequest, Proposals, Purpose
from mctskernel.edits.llm.experts import Expert, MixtureOptions, choose, chosen_experts
from mctskernel.edits.llm.model import Call, Model
from mctskernel.edits.llm.prompt import (
    REPAIRS,
    messages_to_mend,
    messages_to_propose,
    messages_to_repair,
    quoted,
)
from mctskernel.edits.llm.replies import EDITS_SCHEMA, Reading, read_reply
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.proposer import NAME, RuleProposer

REPAIRER = "llm/repair"  # the proposer's name on repairs: they are no evidence about the experts
SURPLUS = 2  # how many times the number of edits that were asked for is read, if a reply has more

FUTILE = 8
"""After as many edits of a node in a row that made no new kernel, the model isn't asked about the node again."""

SILENCE = 2  # after as many requests in a row without a reply the rules go on alone
PROBE = 1 / 16  # the share of requests that go to a silent model all the same, in case its server is back

_WORTH_RETURNING = frozenset({Loss.UNREADABLE, Loss.WRONG_SCHEMA, Loss.CUT_OFF})


@dataclass(frozen=True)
class LLMProposer:
    """Asks experts, chosen by their edits' gains, and repairs failed kernels; `device` are sentences on the GPU."""

    model: Model
    device: tuple[str, ...] = ()
    options: MixtureOptions = field(default_factory=MixtureOptions)

    @property
    def experts(self) -> tuple[Expert, ...]:
        return chosen_experts(self.options.experts)

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel, with every exchange and every loss."""
        if not request.evaluation.ok:
            return self.repair(request)
        rng = _generator(request)
        chosen = choose(
            self.experts, request.standings, request.evaluation.diagnosis, self.options.at_once, rng
        )
        return self.ask(request, chosen)

    def ask(self, request: ProposalRequest, experts: Iterable[Expert]) -> Proposals:
        replies = [self._asked(request, expert) for expert in experts]
        return _without_repeats(_merged(replies), request)

    def repair(self, request: ProposalRequest) -> Proposals:
        """Edits that may repair the request's kernel; none for an outcome that can't be repaired."""
        if request.evaluation.outcome not in REPAIRABLE:
            return Proposals(())
        call = Call(
            Purpose.REPAIR,
            messages_to_repair(request, REPAIRS, self.device),
            schema=EDITS_SCHEMA,
            subject=request.kernel.identity,
        )
        reply = converse(self.model, call, request.kernel, REPAIRS)
        edits = (replace(edit, category=Category.REPAIR, proposer=REPAIRER) for edit in reply.edits)
        return _without_repeats(replace(reply, edits=tuple(edits)), request)

    def _asked(self, request: ProposalRequest, expert: Expert) -> Proposals:
        call = Call(
            Purpose.PROPOSE,
            messages_to_propose(request, expert, self.options.edits, self.device, self.options.feedback),
            schema=EDITS_SCHEMA,
            expert=expert.name,
            subject=request.kernel.identity,
        )
        reply = converse(self.model, call, request.kernel, SURPLUS * self.options.edits)
        return replace(reply, edits=tuple(replace(edit, proposer=expert.proposer) for edit in reply.edits))


@dataclass(frozen=True)
class MixedProposer:
    """Rules and experts as arms of one bandit; both at the root, and repairs from the model alone.

    Rules propose all that they have at once, and cost nothing. So an expert is asked where they have nothing, and where
    they were asked before.
    """

    llm: LLMProposer
    rules: RuleProposer = field(default_factory=RuleProposer)

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel; the best of the rules and of the expert have the same prior."""
        rng = _generator(request)
        is_silent = request.unanswered >= SILENCE and rng.random() >= PROBE
        if not request.evaluation.ok:
            return Proposals(()) if is_silent else self.llm.propose(request)
        if is_silent:
            return self.rules.propose(request)
        if request.offered == 0 and not request.lineage:
            return _both(self.rules.propose(request), self.llm.propose(request))
        return self._chosen(request, rng)

    def _chosen(self, request: ProposalRequest, rng: np.random.Generator) -> Proposals:
        rules, arms = Expert(NAME, prefix=""), self.llm.experts
        were_asked = any(attempt.proposer == rules.proposer for attempt in request.siblings)
        candidates = arms if were_asked else (rules, *arms)
        chosen = choose(
            candidates, request.standings, request.evaluation.diagnosis, self.llm.options.at_once, rng
        )
        ruled = self.rules.propose(request) if rules in chosen else Proposals(())
        experts = [arm for arm in chosen if arm != rules]
        if not experts and ruled.edits:
            return replace(ruled, more=True)
        if not experts:
            experts = list(choose(arms, request.standings, request.evaluation.diagnosis, 1, rng))
        found = _both(ruled, self.llm.ask(request, experts))
        # A server that doesn't answer must not end a search that rules can continue.
        return _both(self.rules.propose(request), found) if found.is_silent and not were_asked else found


def converse(model: Model, call: Call, kernel: Kernel, limit: int) -> Proposals:
    """At most `limit` edits of a kernel from one or two exchanges, with everything that was lost.

    What doesn't apply is returned to the model once. An edit that applies only then belongs to the second exchange; its
    first version is among the losses.
    """
    exchange = model.complete(call)
    reading = _read(exchange, kernel, limit)
    problems = _problems(reading)
    if not problems:
        return _reply(reading, exchange)
    messages = messages_to_mend(call.messages, exchange.reply, problems)
    second = model.complete(replace(call, purpose=Purpose.MEND, messages=messages))
    remaining = max(limit - len(reading.edits), 1)
    return _merged([_reply(reading, exchange), _reply(_read(second, kernel, remaining), second)])


def _read(exchange: Exchange, kernel: Kernel, limit: int) -> Reading:
    """The edits of an exchange. That a reply isn't whole replaces the losses of reading it."""
    if not exchange.reply.strip():
        loss = exchange.loss or (Loss.NO_REPLY if exchange.problem else Loss.EMPTY)
        return Reading(dropped=(Dropped(loss, exchange.problem or "The reply was empty."),))
    reading = read_reply(exchange.reply, kernel, limit)
    if exchange.loss is None:
        return reading
    return replace(reading, dropped=(Dropped(exchange.loss, exchange.problem or f"{exchange.loss}."),))


def _problems(reading: Reading) -> list[str]:
    """What to return to the model, in sentences; empty where it could do nothing better."""
    unfit = [f"The edit {quoted(each.edit.title)}: {each.reason}" for each in reading.unfit]
    if unfit or reading.edits:
        return unfit
    return [each.reason for each in reading.dropped if each.loss in _WORTH_RETURNING]


def _reply(reading: Reading, exchange: Exchange) -> Proposals:
    edits = tuple(replace(edit, exchange=0) for edit in reading.edits)
    unfit = (Dropped(each.loss, each.reason) for each in reading.unfit)
    return Proposals(edits, exchanges=(exchange,), dropped=(*reading.dropped, *unfit))


def _merged(proposals: Iterable[Proposals]) -> Proposals:
    """Several replies as one, with the exchanges of all."""
    edits: list[Edit] = []
    exchanges: list[Exchange] = []
    dropped: list[Dropped] = []
    for each in proposals:
        edits += [
            edit if edit.exchange is None else replace(edit, exchange=edit.exchange + len(exchanges))
            for edit in each.edits
        ]
        exchanges += each.exchanges
        dropped += each.dropped
    return Proposals(tuple(edits), exchanges=tuple(exchanges), dropped=tuple(dropped))


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
    last = request.siblings[-FUTILE:]
    fruitless = (Outcome.DUPLICATE, Outcome.REJECTED)
    is_futile = len(last) == FUTILE and all(each.outcome in fruitless for each in last)
    more = bool(kept) and not is_futile
    return replace(reply, edits=tuple(kept), dropped=tuple(dropped), more=more)


def _normalised(title: str) -> str:
    return " ".join(title.casefold().split()).rstrip(".")


def _both(ruled: Proposals, asked: Proposals) -> Proposals:
    """One reply, in which the best edit of each has the same prior."""
    return replace(
        asked, edits=(*_scaled(ruled.edits), *_scaled(asked.edits)), more=asked.more or bool(ruled.edits)
    )


def _scaled(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    best = max((edit.prior for edit in edits), default=1.0)
    return tuple(replace(edit, prior=edit.prior / best) for edit in edits)


def _generator(request: ProposalRequest) -> np.random.Generator:
    """The same for the same request; another one when a fruitless request is made again."""
    return np.random.default_rng((request.seed, request.fruitless))
