"""Priors that follow what edits of the same kind did in earlier runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from mctskernel.core.edit import Edit
from mctskernel.core.experience import Experience, kind_of, names_of
from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer

STRENGTH = 8.0
"""How many tries weigh as much as what is known of the more general kind."""

MOST = 4.0
"""The most that a prior is multiplied with, and the most that it is divided by."""

QUOTED = 12
"""How many experiences a proposer is told."""


@dataclass(frozen=True)
class ExperiencedProposer:
    """Asks another proposer, tells it what is remembered of such kernels, and multiplies its priors by `factor`."""

    proposer: Proposer
    experiences: tuple[Experience, ...]

    @property
    def name(self) -> str:
        """That of the proposer which is asked."""
        return self.proposer.name

    def propose(self, request: ProposalRequest) -> Proposals:
        """The reply of the proposer, best first by the new priors."""
        told = replace(request, experiences=relevant(self.experiences, request))
        reply = self.proposer.propose(told)
        names, bottleneck = names_of(request.task), bottleneck_of(request)
        weighted = (
            replace(edit, prior=edit.prior * self.rates.factor(edit, bottleneck, names))
            for edit in reply.edits
        )
        return replace(reply, edits=tuple(sorted(weighted, key=lambda edit: -edit.prior)))

    @cached_property
    def rates(self) -> Rates:
        """How often edits of each kind made something faster."""
        return Rates(self.experiences)


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
    """What a proposer is told about a node: of its bottleneck, the most tried first, at the most `QUOTED`."""
    bottleneck = bottleneck_of(request)
    found = [each for each in experiences if each.bottleneck == bottleneck]
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
