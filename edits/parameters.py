"""The proposer of a search-space cache: from one configuration to others that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mctskernel.core.edit import Category, Edit, Factor, Settings
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.space import Configuration, SearchSpace, Value, values_of

JUMPS, FIRST_JUMPS = 16, 8192
"""Configurations of a reply that are drawn from the whole space; of the first, so many that most spaces are whole."""


@dataclass(frozen=True)
class ParameterProposer:
    """Proposes the configurations that differ in one parameter, then some drawn from the whole space by the seed.

    Asked again about the same node, it goes on with those that are left: each is offered once. The same request always
    gets the same reply. Of the starting configuration it says that there is more until it has offered the whole
    space, so that a search with budget enough evaluates all of it.
    """

    space: SearchSpace
    seed: int = 0
    jumps: int = JUMPS
    first_jumps: int = FIRST_JUMPS

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's configuration, all of which lead to another one; none of one that failed."""
        if not request.evaluation.ok:
            return Proposals(())
        here = values_of(self.space, request.kernel)
        start = int(request.kernel.identity[:12], 16)
        near = self._neighbours(here)
        jumps = self.jumps if request.lineage or request.offered else self.first_jumps
        far = self._drawn(here, near, start, jumps, max(0, request.offered - len(near)))
        rng = np.random.default_rng((self.seed, start))
        first = [] if request.offered else [near[place] for place in rng.permutation(len(near)).tolist()]
        reply = tuple(self._edit(here, there) for there in (*first, *far))
        left = len(self.space.entries) - 1 - request.offered - len(reply)
        return Proposals(reply, more=left > 0 and not request.lineage)

    def _neighbours(self, here: Configuration) -> list[Configuration]:
        known = self.space.by_values
        return [
            there
            for place, parameter in enumerate(self.space.parameters)
            for value in parameter.values
            if value != here[place] and (there := (*here[:place], value, *here[place + 1 :])) in known
        ]

    def _drawn(
        self, here: Configuration, near: Sequence[Configuration], start: int, jumps: int, offered: int
    ) -> Iterator[Configuration]:
        """The next of the whole space without the neighbours, in one random order, each from a place of its own on."""
        order, rank = self._order
        total = len(order)
        passed_over = sorted((rank[there] - start) % total for there in (here, *near))
        for number in range(offered, min(offered + jumps, total - len(passed_over))):
            place = number
            for taken in passed_over:
                if taken > place:
                    break
                place += 1
            yield order[(start + place) % total]

    @cached_property
    def _order(self) -> tuple[Sequence[Configuration], Mapping[Configuration, int]]:
        """All configurations in random order, and the place of each."""
        drawn = np.random.default_rng(self.seed).permutation(len(self.space.entries)).tolist()
        order = [self.space.entries[number].values for number in drawn]
        return order, {values: place for place, values in enumerate(order)}

    def _edit(self, here: Configuration, there: Configuration) -> Edit:
        changed = [place for place, value in enumerate(there) if value != here[place]]
        names = self.space.names
        return Edit(
            Category.TUNING,
            ", ".join(f"{names[place]} {here[place]} -> {there[place]}" for place in changed),
            Settings(),
            proposer="parameters",
            factors=tuple(self._factors[place, there[place]] for place in changed),
        )

    @cached_property
    def _factors(self) -> dict[tuple[int, Value], Factor]:
        """That of each value of a parameter, made once, since many edits decide the same."""
        return {
            (place, value): Factor(parameter.name, int(value) if isinstance(value, bool) else value)
            for place, parameter in enumerate(self.space.parameters)
            for value in parameter.values
        }
