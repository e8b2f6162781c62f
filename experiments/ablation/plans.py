"""The trials that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mctskernel.core.surrogate import Prediction
from mctskernel.experiments.ablation.configuration import Ablation, Arm
from mctskernel.experiments.ablation.subjects import Subject, TaskSubject

RUNS = "runs"

Known = Mapping[str, Mapping[str, Prediction | None]]
"""What the model says of recorded kernels: by subject, then by the kernel's identity."""


@dataclass(frozen=True)
class Plan:
    """A trial that is to be made."""

    arm: Arm
    subject: Subject
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """That of its trial."""
        return self.arm.name, self.subject.name, self.seed

    @property
    def run(self) -> str:
        """The folder of its run, relative to the sweep's; empty where nothing is built."""
        if not isinstance(self.subject, TaskSubject):
            return ""
        return f"{RUNS}/{self.arm.name}/{self.subject.name}/{self.seed}"


def plans_of(ablation: Ablation, subjects: Sequence[Subject]) -> list[Plan]:
    """Every arm on every subject, one seed after the other, so that a sweep that is cut off has pairs."""
    return [
        Plan(arm, subject, seed) for seed, subject, arm in product(ablation.seeds, subjects, ablation.arms)
    ]
