"""Scores as the benchmarks define them: pure functions of which solutions are right, and how fast.

Sources: KernelBench's `fast_p` and geometric means (Ouyang et al., "KernelBench: Can LLMs write efficient GPU
kernels?", 2025, section 3.4, and src/score.py of its repository); flashinfer-bench's score of a solution
(`get_solution_score` of its trace set); the speed-of-light score of SOL-ExecBench (Lin et al., arXiv 2603.19173,
section 4.3, equation 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.report.resampling import Estimate, ratio_of_medians, share_interval

THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""The speed-ups at which `fast_p` is usually told."""


@dataclass(frozen=True)
class Scored:
    """What became of one problem, or of one workload of a problem.

    `speedup` is the baseline's time over the solution's, and None where it isn't known. `baseline_samples` and
    `samples` are the times that it is of, in seconds, where they were kept.
    """

    correct: bool
    speedup: float | None = None
    baseline_samples: tuple[float, ...] = ()
    samples: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.speedup is not None and not 0 < self.speedup < math.inf:
            raise ValueError(f"A speed-up must be a positive number, not {self.speedup}.")


def fast_p(results: Sequence[Scored], threshold: float) -> float:
    """The share of all results that are correct and more than `threshold` times as fast as the baseline.

    A correct one whose speed-up isn't known counts at a threshold of 0 alone. 0 of nothing is 0, as in KernelBench.
    """
    return _successes(results, threshold) / len(results) if results else 0.0


def fast_p_interval(results: Sequence[Scored], threshold: float) -> tuple[float, float]:
    """The 95 % interval of `fast_p`, as if the problems were drawn from many (Wilson)."""
    return share_interval(_successes(results, threshold), len(results))


def geomean(results: Sequence[Scored]) -> float | None:
    """The geometric mean of the speed-ups of the correct results; None where no speed-up of one is known.

    KernelBench calls it the geometric mean speed ratio of correct samples only: what failed isn't in it, so it is to be
    told beside how many did.
    """
    logs = [math.log(each.speedup) for each in results if each.correct and each.speedup is not None]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def geomean_interval(results: Sequence[Scored]) -> Estimate | None:
    """`geomean` of the medians of the samples with its 95 % interval; None unless every correct result has samples."""
    correct = [each for each in results if each.correct]
    if not correct or not all(each.samples and each.baseline_samples for each in correct):
        return None
    return ratio_of_medians([(np.array(each.baseline_samples), np.array(each.samples)) for each in correct])


def mean_speedup(workloads: Sequence[Scored]) -> float | None:
    """What flashinfer-bench gives a solution: the arithmetic mean over workloads, and 0 if it fails at one.

    None where there is no workload, or the speed-up at one isn't known.
    """
    if not workloads:
        return None
    if not all(each.correct for each in workloads):
        return 0.0
    speedups = [each.speedup for each in workloads if each.speedup is not None]
    return math.fsum(speedups) / len(speedups) if len(speedups) == len(workloads) else None


def speed_of_light(seconds: float, baseline_seconds: float, bound_seconds: float) -> float:
    """How far a correct solution gets from the baseline (0.5) to what the hardware allows (1), at one workload.

    S = 1 / (1 + (T - T_SOL) / (T_b - T_SOL)), with T the solution's time, T_b the baseline's and T_SOL the bound; 0 for
    what is infinitely slow. Where the baseline is at its bound there is nothing left to score: 1 at the bound, else 0.
    Faster than the bound is not better than light: it gets 1, and is worth a look. An incorrect solution gets 0, which
    is for the caller to say. Raises ValueError for times that aren't positive.
    """
    if not all(0 < each < math.inf for each in (seconds, baseline_seconds, bound_seconds)):
        raise ValueError("Times must be positive numbers.")
    if seconds <= bound_seconds:
        return 1.0
    headroom = baseline_seconds - bound_seconds
    return headroom / (seconds - bound_seconds + headroom) if headroom > 0 else 0.0


def speed_of_light_of(workloads: Sequence[float | None]) -> float | None:
    """The score of a problem: the mean over its workloads, of which one that fails (None) counts 0."""
    return math.fsum(each or 0.0 for each in workloads) / len(workloads) if workloads else None


def _successes(results: Sequence[Scored], threshold: float) -> int:
    return sum(
        each.correct and ((each.speedup is not None and each.speedup > threshold) or threshold <= 0)
        for each in results
    )
