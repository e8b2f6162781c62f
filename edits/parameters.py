"""The proposer of a recorded space: from one configuration to others that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mctskernel.core.edit import Block, Category, Edit, Factor, Patch
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.space import Configuration, SearchSpace, Value, line, values_of

JUMPS = 16
"""Configurations of a reply that are drawn from the whole space."""


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
    name: str = "parameters"

    def propose(self, request: ProposalRequest) -> Proposals:
        """Edits of the request's configuration, all of which lead to another one; none of one that failed."""
        if not request.evaluation.ok:
            return Proposals(())
        here = values_of(self.space, request.kernel)
        start = int(request.kernel.identity[:12], 16)
        near = self._neighbours(here)
        far = self._drawn(here, near, start, max(0, request.offered - len(near)))
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
        self, here: Configuration, near: Sequence[Configuration], start: int, offered: int
    ) -> Iterator[Configuration]:
        """The next of the whole space without the neighbours, after so many that were offered.

        All configurations go through the space in one random order, each from a place of its own on.
        """
        order, rank = self._order
        total = len(order)
        passed_over = sorted((rank[there] - start) % total for there in (here, *near))
        for number in range(offered, min(offered + self.jumps, total - len(passed_over))):
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
        changed = [
            (place, before, after)
            for place, (before, after) in enumerate(zip(here, there, strict=True))
            if before != after
        ]
        steps = [self._step(*each) for each in changed]
        if len(steps) == 1:
            return steps[0][0]
        edits, blocks = zip(*steps, strict=True)
        return Edit(
            Category.TUNING,
            ", ".join(edit.title for edit in edits),
            Patch(blocks),
            proposer=self.name,
            factors=tuple(factor for edit in edits for factor in edit.factors),
        )

    def _step(self, place: int, before: Value, after: Value) -> tuple[Edit, Block]:
        """The edit that changes one parameter, and its only block; made once."""
        found = self._steps.get((place, before, after))
        if found is None:
            name = self.space.names[place]
            # A configuration's lines all follow another: with both line ends, none is found within another.
            block = Block(f"\n{line(name, before)}\n", f"\n{line(name, after)}\n")
            edit = Edit(
                Category.TUNING,
                f"{name} {before} -> {after}",
                Patch((block,)),
                proposer=self.name,
                factors=(Factor(name, int(after) if isinstance(after, bool) else after),),
            )
            found = self._steps[place, before, after] = (edit, block)
        return found

    @cached_property
    def _steps(self) -> dict[tuple[int, Value, Value], tuple[Edit, Block]]:
        return {}
