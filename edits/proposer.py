"""The rule proposer, which ranks all rules by the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Edit
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.edits import triton
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.rule import Context, Limits, Rule, Seen, Subject
from mctskernel.edits.rules import ALL
from mctskernel.edits.syntax import parse
from mctskernel.edits.triton.module import TritonContext
from mctskernel.edits.triton.module import parse as parse_module

NAME = "rules"
EVIDENCE_WEIGHT = 8.0  # how many times its base prior a rule gets when it addresses all of a kernel's time


@dataclass(frozen=True)
class RuleProposer:
    """Proposes what the rules of a language find. The same request always gets the same reply, best first."""

    rules: tuple[Rule[Context], ...] = ALL
    triton_rules: tuple[Rule[TritonContext], ...] = triton.ALL

    def propose(self, request: ProposalRequest) -> Proposals:
        """Different kernels whose plans resolve at every shape; none for a failed kernel: rules repair nothing."""
        if not request.evaluation.ok:
            return Proposals(())
        match _context(request):
            case TritonContext() as context:
                edits = self._edits(context, self.triton_rules)
            case Context() as context:
                edits = self._edits(context, self.rules)
            case None:
                return Proposals(())
        return Proposals(tuple(sorted(edits, key=lambda edit: -edit.prior)))

    def _edits(self, context: Seen, rules: tuple[Rule[Seen], ...]) -> Iterator[Edit]:
        seen = {context.kernel.identity}
        limits = Limits(context.task, context.shapes)
        for rule in rules:
            for edit in rule(context):
                result = _result(context, edit, limits)
                if result is None or result.identity in seen:
                    continue
                seen.add(result.identity)
                causes = [cause for cause in context.diagnosis.causes if cause.bottleneck in rule.addresses]
                share, rationale = min(1.0, sum(cause.share for cause in causes)), edit.rationale
                prior = rule.prior * edit.prior * (1.0 + (EVIDENCE_WEIGHT - 1.0) * share)
                if causes:
                    rationale += f" Evidence: {max(causes, key=lambda cause: cause.share).sentence}"
                yield replace(edit, rationale=rationale, prior=prior, proposer=NAME)


def _context(request: ProposalRequest) -> Context | TritonContext | None:
    """What the rules see of a kernel; None where they have nothing to say."""
    task, kernel, evaluation = request.task, request.kernel, request.evaluation
    context: Context | TritonContext
    try:
        plan = plan_of(kernel)
        if kernel.language is Language.TRITON:
            module = parse_module(kernel.source)
            if module is None:
                return None
            context = TritonContext(task, kernel, plan, evaluation, module)
        else:
            context = Context(task, kernel, plan, evaluation, parse(kernel.source))
        return context if context.resolved else None
    except LaunchPlanError:
        return None


def _result(context: Subject, edit: Edit, limits: Limits) -> Kernel | None:
    try:
        result = apply(context.kernel, edit)
    except PatchError:
        return None
    return result if limits.allow(result) else None
