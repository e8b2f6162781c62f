"""Statistics of an ablation: means, paired differences with tests, and the cost of each arm.

Arms are compared in pairs of trials of the same subject and seed, after the same number of evaluations. Intervals are
95 % bootstrap intervals over seeds within each subject, and tests flip the signs of the pairs: both generalise to other
seeds on these subjects, not to other subjects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.resampling import Estimate, estimate, holm, sign_flip_p
from mctskernel.core.task import Array
from mctskernel.experiments.ablation.sweep import Results
from mctskernel.experiments.ablation.trials import Trial

FEWEST = 5  # pairs that an interval and a test need: with fewer, no outcome would be unlikely enough


@dataclass(frozen=True)
class ArmRow:
    """An arm: its mean score after each checkpoint, and the mean cost of a trial.

    `means` are over subjects of the means over seeds. `failed` is a share of the evaluations. `passed` counts trials
    whose best kernel passed final validation; None where there is none.
    """

    arm: str
    trials: int
    means: tuple[Estimate, ...]
    evaluations: float
    failed: float
    seconds: float
    device_seconds: float
    dollars: float
    tokens: float
    passed: int | None


@dataclass(frozen=True)
class Comparison:
    """An arm against the baseline after `at` evaluations: the mean difference of their scores over pairs.

    The arm was ahead in `won` pairs and behind in `lost`, and its mean was higher on `subjects_won` of the subjects.
    `adjusted_p` is Holm's, for all comparisons of the table. Of fewer than `FEWEST` pairs there is neither interval nor
    p-value.
    """

    arm: str
    at: int
    pairs: int
    difference: float
    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None
    won: int
    tied: int
    lost: int
    subjects: int
    subjects_won: int

    @property
    def share_won(self) -> float:
        """Return the share of pairs won, a tie counting half: the probability of superiority of paired samples."""
        return (self.won + self.tied / 2) / self.pairs


@dataclass(frozen=True)
class Statistics:
    """What the tables show. `by_subject` are means after the last checkpoint."""

    arms: tuple[ArmRow, ...]
    comparisons: tuple[Comparison, ...]
    by_subject: Mapping[str, Mapping[str, Estimate]]


def statistics(results: Results) -> Statistics:
    """Compute the statistics of an ablation; an arm without a trial has no row."""
    trials = {
        arm.name: grouped(trial for trial in results.trials if trial.arm == arm.name) for arm in results.arms
    }
    known = {arm: found for arm, found in trials.items() if found}
    comparisons = _comparisons(results, known)
    adjusted = iter(holm([each.p for each in comparisons if each.p is not None]))
    last = results.checkpoints[-1]
    return Statistics(
        tuple(_arm_row(arm, found, results.checkpoints) for arm, found in known.items()),
        tuple(each if each.p is None else replace(each, adjusted_p=next(adjusted)) for each in comparisons),
        {
            subject: {
                arm: estimate([_scores(found[subject], last)])
                for arm, found in known.items()
                if subject in found
            }
            for subject in results.subjects
        },
    )


def grouped(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.subject, []).append(trial)
    return found


def _arm_row(arm: str, found: Mapping[str, Sequence[Trial]], checkpoints: Sequence[int]) -> ArmRow:
    trials = [trial for each in found.values() for trial in each]
    evaluations = sum(trial.evaluations for trial in trials)
    validations = [trial.validation for trial in trials if trial.validation is not None]
    return ArmRow(
        arm=arm,
        trials=len(trials),
        means=tuple(estimate([_scores(each, at) for each in found.values()]) for at in checkpoints),
        evaluations=evaluations / len(trials),
        failed=sum(sum(trial.failures.values()) for trial in trials) / max(evaluations, 1),
        seconds=_mean(trial.seconds for trial in trials),
        device_seconds=_mean(trial.device_seconds for trial in trials),
        dollars=_mean(trial.dollars for trial in trials),
        tokens=_mean(trial.tokens for trial in trials),
        passed=sum(each.passed for each in validations) if validations else None,
    )


def _comparisons(results: Results, known: Mapping[str, Mapping[str, Sequence[Trial]]]) -> list[Comparison]:
    theirs = known.get(results.baseline, {})
    found = []
    for at in results.checkpoints:
        for arm, ours in known.items():
            if arm == results.baseline:
                continue
            differences = _differences(ours, theirs, at)
            if differences:
                found.append(_comparison(arm, at, list(differences.values())))
    return found


def _differences(
    ours: Mapping[str, Sequence[Trial]], theirs: Mapping[str, Sequence[Trial]], at: int
) -> dict[str, Array]:
    found = {}
    for subject in (each for each in ours if each in theirs):
        other = {trial.seed: trial.after(at) for trial in theirs[subject]}
        pairs = [trial.after(at) - other[trial.seed] for trial in ours[subject] if trial.seed in other]
        if pairs:
            found[subject] = np.array(pairs)
    return found


def _comparison(arm: str, at: int, groups: Sequence[Array]) -> Comparison:
    units: Array = np.concatenate(groups)
    enough = len(units) >= FEWEST and min(map(len, groups)) > 1
    found = estimate(groups)
    return Comparison(
        arm=arm,
        at=at,
        pairs=len(units),
        difference=found.mean,
        low=found.low if enough else None,
        high=found.high if enough else None,
        p=sign_flip_p(units) if enough else None,
        adjusted_p=None,
        won=int(np.count_nonzero(units > 0)),
        tied=int(np.count_nonzero(units == 0)),
        lost=int(np.count_nonzero(units < 0)),
        subjects=len(groups),
        subjects_won=sum(float(each.mean()) > 0 for each in groups),
    )


def _scores(trials: Sequence[Trial], at: int) -> Array:
    return np.array([trial.after(at) for trial in trials])


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
