"""The rule proposer: every rule of the library, ranked by what the node's evidence says binds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Edit
from mctskernel.core.evaluation import Diagnosis
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.edits import triton
from mctskernel.edits.limits import Limits
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.rule import Context, Rule, Seen, Subject
from mctskernel.edits.rules import ALL
from mctskernel.edits.syntax import parse
from mctskernel.edits.triton.context import TritonContext
from mctskernel.edits.triton.module import parse as parse_module

EVIDENCE_WEIGHT = 8.0
"""How many times its base prior a rule gets when it addresses all of a kernel's time."""


@dataclass(frozen=True)
class RuleProposer:
    """Proposes what the rules of a language find. The same request always gets the same reply, best first."""

    rules: tuple[Rule[Context], ...] = ALL
    triton_rules: tuple[Rule[TritonContext], ...] = triton.ALL
    name: str = "rules"

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's kernel, each a different kernel whose plan resolves at every shape.

        None for a kernel that failed or whose plan can't be read: rules improve what works and repair nothing.
        """
        if not request.evaluation.ok:
            return Proposals(())
        if request.kernel.language is Language.TRITON:
            edits = self._edits(triton_context_of(request), self.triton_rules)
        else:
            edits = self._edits(context_of(request), self.rules)
        return Proposals(tuple(sorted(edits, key=lambda edit: -edit.prior)))

    def _edits(self, context: Seen | None, rules: tuple[Rule[Seen], ...]) -> Iterator[Edit]:
        if context is None:
            return
        seen = {context.kernel.identity}
        limits = Limits(context.task, context.shapes)
        for rule in rules:
            for edit in rule.propose(context):
                result = _result(context, edit, limits)
                if result is None or result.identity in seen:
                    continue
                seen.add(result.identity)
                prior = rule.prior * edit.prior * _evidence(rule, context.diagnosis)
                rationale = _with_evidence(edit.rationale, rule, context.diagnosis)
                yield replace(edit, rationale=rationale, prior=prior, proposer=self.name)


def context_of(request: ProposalRequest) -> Context | None:
    """What the rules see of a CUDA C++ kernel; None where they have nothing to say."""
    kernel = request.kernel
    try:
        plan = plan_of(kernel)
        context = Context(request.task, kernel, plan, request.evaluation, parse(kernel.source))
        return context if context.resolved else None
    except LaunchPlanError:
        return None


def triton_context_of(request: ProposalRequest) -> TritonContext | None:
    """What the rules see of a Triton kernel; None where they have nothing to say."""
    kernel = request.kernel
    try:
        plan, module = plan_of(kernel), parse_module(kernel.source)
        if module is None:
            return None
        context = TritonContext(request.task, kernel, plan, request.evaluation, module)
        return context if context.resolved else None
    except LaunchPlanError:
        return None


def addressed(rule: Rule[Seen], diagnosis: Diagnosis) -> float:
    """The fraction of the kernel's time, at most 1, whose causes a rule addresses."""
    return min(1.0, sum(cause.share for cause in diagnosis.causes if cause.bottleneck in rule.addresses))


def _with_evidence(rationale: str, rule: Rule[Seen], diagnosis: Diagnosis) -> str:
    """The rationale, followed by the strongest cause that the rule addresses."""
    causes = [cause for cause in diagnosis.causes if cause.bottleneck in rule.addresses]
    if not causes:
        return rationale
    sentence = max(causes, key=lambda cause: cause.share).sentence
    return f"{rationale} Evidence: {sentence}"


def _evidence(rule: Rule[Seen], diagnosis: Diagnosis) -> float:
    return 1.0 + (EVIDENCE_WEIGHT - 1.0) * addressed(rule, diagnosis)


def _result(context: Subject, edit: Edit, limits: Limits) -> Kernel | None:
    try:
        result = apply(context.kernel, edit)
    except PatchError:
        return None
    return result if limits.allow(result) else None
