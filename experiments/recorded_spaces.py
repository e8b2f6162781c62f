"""Recorded kernels as spaces to search: every kernel's time is known, and nothing is built or run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.experiments.variants import Variant, measured_kernel, read_variants
from mctskernel.profiling.reward import is_eligible
from mctskernel.tree.trajectory import run_seconds

NEAR = 12
FAR = 4
"""Edits of a variant: most lead to variants made with nearly the same values, a few elsewhere, as rules have them."""


@dataclass(frozen=True)
class RecordedSpace:
    """Kernels with their evaluations, and the edits that lead from one to another, all by the kernels' identity.

    `tasks` says what each kernel was judged by, at its own shape.
    """

    name: str
    task: Task
    kernels: Mapping[str, Kernel]
    evaluations: Mapping[str, Evaluation]
    edits: Mapping[str, tuple[Edit, ...]]
    tasks: Mapping[str, Task]

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """The time of each kernel that may be an answer."""
        found = {
            each: run_seconds(judged) for each, judged in self.evaluations.items() if is_eligible(judged)
        }
        return {each: seconds for each, seconds in found.items() if seconds}

    def start(self, seed: int) -> Kernel:
        """Where a search begins: at one of the slower half."""
        slower = sorted(self.seconds, key=lambda each: self.seconds[each])[len(self.seconds) // 2 :]
        return self.kernels[slower[int(np.random.default_rng(seed).integers(len(slower)))]]


def read_spaces(folder: Path) -> Iterator[RecordedSpace]:
    """The spaces of the families of a folder of variants. Raises VariantError."""
    families = defaultdict(list)
    for variant in read_variants(folder):
        families[variant.family].append(variant)
    for name, variants in families.items():
        yield _space(folder, name, variants)


def _space(folder: Path, family: str, variants: list[Variant]) -> RecordedSpace:
    """Edits lead from a variant to those made with the fewest other values, and to a few of the rest."""
    measured = [(variant, measured_kernel(folder, variant)) for variant in variants]
    edits: dict[str, tuple[Edit, ...]] = {}
    for first, before in measured:
        others = [each for each in measured if each[1].kernel.identity != before.kernel.identity]
        others.sort(key=lambda each: (_changes(first, each[0]), each[0].name))
        near, far = others[:NEAR], others[NEAR:]
        edits[before.kernel.identity] = tuple(
            Edit(Category.TUNING, second.name, WholeSource(after.kernel.source))
            for second, after in (*near, *far[:: max(len(far) // FAR, 1)])
        )
    return RecordedSpace(
        family if folder.name == family else f"{folder.name}/{family}",
        measured[0][1].task,
        {each.kernel.identity: each.kernel for _, each in measured},
        {each.kernel.identity: _evaluation(variant) for variant, each in measured},
        edits,
        {each.kernel.identity: each.task for _, each in measured},
    )


def _changes(first: Variant, second: Variant) -> int:
    before, after = ({"source": each.source, **each.macros, **each.tunables} for each in (first, second))
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def _evaluation(variant: Variant) -> Evaluation:
    seconds = (variant.us or 0.0) * 1e-6
    timings = (Timing("", seconds, seconds, seconds),) if variant.outcome is Outcome.OK else ()
    return Evaluation(variant.outcome, Source.RECORDED, timings=timings)


@dataclass
class RecordedProposer:
    """Proposes the edits of a space, in an order drawn from the seed."""

    space: RecordedSpace
    seed: int
    name: str = "recorded"

    def propose(self, request: ProposalRequest) -> Proposals:
        """All edits of the request's kernel."""
        edits = self.space.edits.get(request.kernel.identity, ())
        drawn = np.random.default_rng((self.seed, request.seed)).permutation(len(edits))
        return Proposals(tuple(edits[index] for index in drawn))


def executor_of(space: RecordedSpace, seen: Callable[[str], None] = lambda _: None) -> RecordedExecutor:
    """Make an executor that looks up the kernels of a space and calls `seen` with the identity of each."""

    def look_up(kernel: Kernel) -> Evaluation:
        seen(kernel.identity)
        return space.evaluations[kernel.identity]

    return RecordedExecutor(look_up, {"device": "recorded", "space": space.name})
