"""A sweep made again: whether its trials come out the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mctskernel.experiments.ablation.results import Results, Trial


@dataclass(frozen=True)
class Repetition:
    """Trials that both sweeps have, and what the others found elsewhere, in sentences."""

    compared: int
    differing: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What came of it."""
        same = self.compared - len(self.differing)
        return f"{same} of {self.compared} trials came out the same."


def repetition(then: Results, now: Results) -> Repetition:
    """Compare what two sweeps of one configuration found: outcomes and figures, not what they cost in seconds."""
    before = {trial.key: trial for trial in then.trials}
    pairs = [(before[trial.key], trial) for trial in now.trials if trial.key in before]
    return Repetition(
        len(pairs),
        tuple(_sentence(first, second) for first, second in pairs if _found(first) != _found(second)),
    )


def _found(trial: Trial) -> tuple[int, Sequence[tuple[int, float]], dict[str, int]]:
    return trial.evaluations, trial.improvements, trial.failures


def _sentence(first: Trial, second: Trial) -> str:
    where = f"{first.arm} on {first.subject}, seed {first.seed}"
    before, after = first.after(first.evaluations), second.after(second.evaluations)
    if before != after:
        return f"{where}: came to {after:.6g}, and to {before:.6g} then."
    return f"{where}: came to the same in another way."
