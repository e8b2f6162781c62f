"""What trials say of arms: means, paired differences and their tests, and what each arm cost.

Arms are compared in pairs of trials of the same subject and seed, after the same number of evaluations. Intervals are
95 % bootstrap intervals over seeds within each subject, and tests flip the signs of the pairs: they say how far other
seeds on these subjects could have led, not other subjects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.ablation.results import Results, Trial
from mctskernel.report.resampling import Estimate, estimate, holm, sign_flip_p

FEWEST = 5
"""Pairs from which on there is an interval and a test: of fewer, no outcome would be unlikely enough."""


@dataclass(frozen=True)
class ArmRow:
    """An arm: the mean figure after each checkpoint, and what a trial cost on average.

    `means` are over subjects of the means over seeds. `failed` is the share of evaluations. `passed` counts trials
    whose answer came through the last gate; None where there is none.
    """

    arm: str
    settings: str
    trials: int
    means: tuple[Estimate, ...]
    evaluations: float
    failed: float
    seconds: float
    device_seconds: float
    predictions: float
    dollars: float
    tokens: float
    passed: int | None


@dataclass(frozen=True)
class Comparison:
    """An arm against another after `at` evaluations: the mean of its figures minus the other's, over pairs.

    `standardised` is that mean over the standard deviation of the differences within subjects (Cohen's d of paired
    samples), None where they don't differ. The arm was ahead in `won` pairs and behind in `lost`, and its mean was
    higher on `subjects_won` of the subjects. `adjusted_p` is Holm's, for all comparisons of the table. Of fewer than
    `FEWEST` pairs there is neither interval nor p-value.
    """

    arm: str
    against: str
    at: int
    pairs: int
    difference: float
    low: float | None
    high: float | None
    p: float | None
    adjusted_p: float | None
    standardised: float | None
    won: int
    tied: int
    lost: int
    subjects: int
    subjects_won: int

    @property
    def share_won(self) -> float:
        """Of the pairs, a tie counting half: the probability of superiority of paired samples."""
        return (self.won + self.tied / 2) / self.pairs


@dataclass(frozen=True)
class Statistics:
    """Everything that the tables of some results show. `by_subject` are means after the last checkpoint."""

    arms: tuple[ArmRow, ...]
    comparisons: tuple[Comparison, ...]
    by_subject: Mapping[str, Mapping[str, Estimate]]


def statistics(results: Results) -> Statistics:
    """The figures of some results; an arm without any trial has no row."""
    trials = {
        arm.name: grouped(trial for trial in results.trials if trial.arm == arm.name) for arm in results.arms
    }
    known = {arm: found for arm, found in trials.items() if found}
    settings = {arm.name: arm.settings for arm in results.arms}
    rows = tuple(_arm_row(arm, settings[arm], found, results.checkpoints) for arm, found in known.items())
    last = results.checkpoints[-1]
    return Statistics(
        rows,
        tuple(_adjusted(_comparisons(results, known))),
        {
            subject.name: {
                arm: estimate([_figures(found[subject.name], last)])
                for arm, found in known.items()
                if subject.name in found
            }
            for subject in results.subjects
        },
    )


def grouped(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Trials by subject."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.subject, []).append(trial)
    return found


def _arm_row(
    arm: str, settings: str, found: Mapping[str, Sequence[Trial]], checkpoints: Sequence[int]
) -> ArmRow:
    trials = [trial for each in found.values() for trial in each]
    evaluations = sum(trial.evaluations for trial in trials)
    gates = [trial.gate for trial in trials if trial.gate is not None]
    return ArmRow(
        arm=arm,
        settings=settings,
        trials=len(trials),
        means=tuple(estimate([_figures(each, at) for each in found.values()]) for at in checkpoints),
        evaluations=evaluations / len(trials),
        failed=sum(sum(trial.failures.values()) for trial in trials) / max(evaluations, 1),
        seconds=_mean(trial.seconds for trial in trials),
        device_seconds=_mean(trial.device_seconds for trial in trials),
        predictions=_mean(trial.predictions for trial in trials),
        dollars=_mean(trial.dollars for trial in trials),
        tokens=_mean(trial.input_tokens + trial.output_tokens for trial in trials),
        passed=sum(gate.passed for gate in gates) if gates else None,
    )


def _comparisons(results: Results, known: Mapping[str, Mapping[str, Sequence[Trial]]]) -> list[Comparison]:
    theirs = known.get(results.against, {})
    found = []
    for at in results.checkpoints:
        for arm, ours in known.items():
            if arm == results.against:
                continue
            differences = _differences(ours, theirs, at)
            if differences:
                found.append(_comparison(arm, results.against, at, list(differences.values())))
    return found


def _differences(
    ours: Mapping[str, Sequence[Trial]], theirs: Mapping[str, Sequence[Trial]], at: int
) -> dict[str, Array]:
    """By subject, an arm's figures minus another's, of the seeds that both have."""
    found = {}
    for subject in (each for each in ours if each in theirs):
        other = {trial.seed: trial.after(at) for trial in theirs[subject]}
        pairs = [trial.after(at) - other[trial.seed] for trial in ours[subject] if trial.seed in other]
        if pairs:
            found[subject] = np.array(pairs)
    return found


def _comparison(arm: str, against: str, at: int, groups: Sequence[Array]) -> Comparison:
    units: Array = np.concatenate(groups)
    enough = len(units) >= FEWEST and min(map(len, groups)) > 1
    found = estimate(groups)
    return Comparison(
        arm=arm,
        against=against,
        at=at,
        pairs=len(units),
        difference=found.mean,
        low=found.low if enough else None,
        high=found.high if enough else None,
        p=sign_flip_p(units) if enough else None,
        adjusted_p=None,
        standardised=_standardised(found.mean, groups),
        won=int(np.count_nonzero(units > 0)),
        tied=int(np.count_nonzero(units == 0)),
        lost=int(np.count_nonzero(units < 0)),
        subjects=len(groups),
        subjects_won=sum(float(each.mean()) > 0 for each in groups),
    )


def _standardised(mean: float, groups: Sequence[Array]) -> float | None:
    """Source: Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988, d of paired samples, here with
    the standard deviation pooled over subjects."""
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in groups)
    freedom = sum(len(each) - 1 for each in groups)
    return mean / float(np.sqrt(squares / freedom)) if freedom and squares > 0 else None


def _adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    adjusted = iter(holm([each.p for each in comparisons if each.p is not None]))
    return [replace(each, adjusted_p=next(adjusted)) if each.p is not None else each for each in comparisons]


def _figures(trials: Sequence[Trial], at: int) -> Array:
    return np.array([trial.after(at) for trial in trials])


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
