"""The mixed proposer: for each node, what is known of rules and of each expert decides who is asked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from mctskernel.core.edit import Edit
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.edits.llm.proposer import LLMProposer, arm_of, random_generator
from mctskernel.edits.llm.router import Arm, choose
from mctskernel.edits.proposer import RuleProposer

SILENCE = 2
"""After as many requests in a row that no model answered the rules go on alone."""

PROBE = 1 / 16
"""The share of requests that go to a silent model all the same: its server may have come back."""


@dataclass(frozen=True)
class MixedProposer:
    """Rules and experts from the same standings; both at the root, and repairs from the model alone.

    Rules say of a node all that they have at once, and cost nothing. So an expert is asked where they have nothing to
    say, and where they have been asked before.
    """

    llm: LLMProposer
    rules: RuleProposer = field(default_factory=RuleProposer)
    name: str = "mixed"

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel, of equal promise where rules and an expert both proposed some."""
        rng = random_generator(request)
        is_silent = request.unanswered >= SILENCE and rng.random() >= PROBE
        if not request.evaluation.ok:
            return Proposals(()) if is_silent else self.llm.propose(request)
        if is_silent:
            return self.rules.propose(request)
        if request.offered == 0 and not request.lineage:
            return _both(self.rules.propose(request), self.llm.propose(request))
        return self._chosen(request, rng)

    def _chosen(self, request: ProposalRequest, rng: np.random.Generator) -> Proposals:
        rules = Arm(self.rules.name)
        arms = [arm_of(expert) for expert in self.llm.experts]
        were_asked = any(attempt.proposer == rules.name for attempt in request.siblings)
        candidates = arms if were_asked else [rules, *arms]
        chosen = choose(candidates, request.standings, request.evaluation.diagnosis, self.llm.at_once, rng)
        ruled = self.rules.propose(request) if rules in chosen else Proposals(())
        experts = [arm.name for arm in chosen if arm != rules]
        if not experts and ruled.edits:
            return replace(ruled, more=True)
        if not experts:
            experts = [choose(arms, request.standings, request.evaluation.diagnosis, 1, rng)[0].name]
        return _both(ruled, self.llm.ask(request, experts, rng))


def _both(ruled: Proposals, asked: Proposals) -> Proposals:
    """One reply, in which the best of each has the same prior."""
    return replace(
        asked,
        edits=(*_scaled(ruled.edits), *_scaled(asked.edits)),
        more=asked.more or bool(ruled.edits),
    )


def _scaled(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    best = max((edit.prior for edit in edits), default=1.0)
    return tuple(replace(edit, prior=edit.prior / best) for edit in edits)
