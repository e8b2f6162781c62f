"""The rule proposer, which ranks all rules by the evidence, and a proposer that scales priors by earlier runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mctskernel.core.edit import Edit, Experience, kind_of, names_of
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer
from mctskernel.edits import triton
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.rule import Context, Limits, Rule, Seen, Subject
from mctskernel.edits.rules import ALL
from mctskernel.edits.syntax import parse
from mctskernel.edits.triton.module import TritonContext
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
                yield replace(edit, rationale=rationale, prior=prior, proposer=self.name)


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


STRENGTH = 8.0
"""How many tries weigh as much as what is known of the more general kind."""

MOST = 4.0
"""The most that a prior is multiplied with, and the most that it is divided by."""

QUOTED = 12
"""The number of experiences in a request."""


@dataclass(frozen=True)
class ExperiencedProposer:
    """Another proposer, with experiences in its requests and its priors multiplied by `factor`."""

    proposer: Proposer
    experiences: tuple[Experience, ...]

    @property
    def name(self) -> str:
        return self.proposer.name

    def propose(self, request: ProposalRequest) -> Proposals:
        """The reply of the proposer, best first by the new priors."""
        reply = self.proposer.propose(replace(request, experiences=relevant(self.experiences, request)))
        names, bottleneck = names_of(request.task), bottleneck_of(request)
        rates = self.rates[request.kernel.language]
        weighted = (
            replace(edit, prior=edit.prior * rates.factor(edit, bottleneck, names)) for edit in reply.edits
        )
        return replace(reply, edits=tuple(sorted(weighted, key=lambda edit: -edit.prior)))

    @cached_property
    def rates(self) -> Mapping[str, Rates]:
        """How often edits of each kind made something faster, by language."""
        return {
            language: Rates([each for each in self.experiences if each.language == language])
            for language in Language
        }


@dataclass
class Rates:
    """How often edits made kernels faster: all of them, those of a category, of a kind, and of a kind on a bottleneck.

    Each of these rates is shrunk towards the more general one before it, by as much as `STRENGTH` tries of that one:
    (improved + STRENGTH * general) / (tried + STRENGTH), the mean of a beta distribution whose prior has the general
    rate as its mean (Gelman et al., "Bayesian Data Analysis", 3rd edition, sections 2.4 and 5.3). What counts for a
    narrower rate is left out of the more general ones, but for that of all edits: no try counts twice. Failures and
    edits that changed nothing count alike: the evaluation is gone. The size of gains doesn't count, because it is the
    kernel's more than the edit's: the same edit gains 20 times on one starting kernel and 1.1 times on another.
    """

    experiences: Iterable[Experience]
    _counts: dict[tuple[str, ...], _Count] = field(init=False)

    def __post_init__(self) -> None:
        self._counts = defaultdict(_Count)
        for each in self.experiences:
            for key in _from_general(each.category, each.title, each.bottleneck):
                self._counts[key].add(each)

    def factor(self, edit: Edit, bottleneck: str, names: Collection[str] = ()) -> float:
        """What the prior of an edit is multiplied with: its rate over that of all edits, from 1/`MOST` to `MOST`.

        1 where nothing is remembered. `names` are those of `kind_of`.
        """
        keys = _from_general(str(edit.category), kind_of(edit.title, names), bottleneck)
        everything, *counts = (self._counts.get(key, _Count()) for key in keys)
        overall = rate = everything.shrunk(0.5, 2.0)
        for count, narrower in zip(counts, (*counts[1:], _Count()), strict=True):
            rate = count.without(narrower).shrunk(rate, STRENGTH)
        return min(max(rate / overall, 1 / MOST), MOST)


def relevant(experiences: Iterable[Experience], request: ProposalRequest) -> tuple[Experience, ...]:
    """The experiences with a node's language and bottleneck, the most tried first, at most `QUOTED`."""
    kind = (request.kernel.language, bottleneck_of(request))
    found = [each for each in experiences if (each.language, each.bottleneck) == kind]
    return tuple(sorted(found, key=lambda each: -each.tried)[:QUOTED])


def bottleneck_of(request: ProposalRequest) -> str:
    """The bottleneck that weighs most; empty where none is known."""
    diagnosis = request.evaluation.diagnosis
    return str(diagnosis.causes[0].bottleneck) if diagnosis and diagnosis.causes else ""


@dataclass
class _Count:
    tried: int = 0
    improved: int = 0

    def add(self, experience: Experience) -> None:
        self.tried += experience.tried
        self.improved += experience.improved

    def without(self, other: _Count) -> _Count:
        return _Count(self.tried - other.tried, self.improved - other.improved)

    def shrunk(self, towards: float, strength: float) -> float:
        return (self.improved + strength * towards) / (self.tried + strength)


def _from_general(category: str, title: str, bottleneck: str) -> tuple[tuple[str, ...], ...]:
    return (), (category,), (category, title), (category, title, bottleneck)
