"""The rule proposer: every rule of the library, ranked by what the node's evidence says binds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Diagnosis
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.edits.limits import launchable
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.rule import Context, Rule
from mctskernel.edits.rules import ALL
from mctskernel.edits.syntax import parse

EVIDENCE_WEIGHT = 8.0
"""How many times its base prior a rule gets when it addresses all of a kernel's time."""


@dataclass(frozen=True)
class RuleProposer:
    """Proposes what the rules find. The same request always gets the same reply, best first."""

    rules: tuple[Rule, ...] = ALL
    name: str = "rules"

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel, each a different kernel whose plan resolves at every shape.

        None for a kernel that failed, that isn't CUDA C++ or whose plan can't be read: rules improve what
        works and repair nothing.
        """
        context = context_of(request)
        if context is None:
            return Proposals(())
        seen = {request.kernel.identity}
        edits: list[Edit] = []
        for rule in self.rules:
            for edit in rule.propose(context):
                result = _result(context, edit)
                if result is None or result.identity in seen:
                    continue
                seen.add(result.identity)
                prior = rule.prior * edit.prior * _evidence(rule, context.diagnosis)
                rationale = _with_evidence(edit.rationale, rule, context.diagnosis)
                edits.append(replace(edit, rationale=rationale, prior=prior, proposer=self.name))
        return Proposals(tuple(sorted(edits, key=lambda edit: -edit.prior)))


def context_of(request: ProposalRequest) -> Context | None:
    """What the rules see of a request; None where they have nothing to say."""
    if not request.evaluation.ok or request.kernel.language is not Language.CUDA:
        return None
    try:
        plan = plan_of(request.kernel)
        context = Context(
            request.task, request.kernel, parse(request.kernel.source), plan, request.evaluation
        )
        return context if context.resolved else None
    except LaunchPlanError:
        return None


def addressed(rule: Rule, diagnosis: Diagnosis) -> float:
    """The fraction of the kernel's time, at most 1, whose causes a rule addresses."""
    return min(1.0, sum(cause.share for cause in diagnosis.causes if cause.bottleneck in rule.addresses))


def _with_evidence(rationale: str, rule: Rule, diagnosis: Diagnosis) -> str:
    """The rationale, followed by the strongest cause that the rule addresses."""
    causes = [cause for cause in diagnosis.causes if cause.bottleneck in rule.addresses]
    if not causes:
        return rationale
    sentence = max(causes, key=lambda cause: cause.share).sentence
    return f"{rationale} Evidence: {sentence}"


def _evidence(rule: Rule, diagnosis: Diagnosis) -> float:
    return 1.0 + (EVIDENCE_WEIGHT - 1.0) * addressed(rule, diagnosis)


def _result(context: Context, edit: Edit) -> Kernel | None:
    try:
        result = apply(context.kernel, edit)
    except PatchError:
        return None
    return result if launchable(context.task, result, context.shapes) else None
