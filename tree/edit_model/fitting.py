"""Fitting: the hyperparameters that make what was seen most probable, under a prior that holds while little was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mctskernel.tree.edit_model.gaussian_process import JITTER, Array, Distances, Hyperparameters, pair_mean

LENGTH = 0.7
LENGTH_SPREAD = 1.0  # median of the prior of lengths, and the standard deviation of their logarithm

WEIGHTS = (1.0, 1.0, 0.5, 0.003)
WEIGHT_SPREAD = 1.5
"""The same of the weights main, pairs, whole and noise, where two kernels differ in every place."""

ITERATIONS = 40
STEP, SMALLEST_STEP, LARGEST_STEP = 0.3, 1e-3, 0.6
GROW, SHRINK = 1.3, 0.5
"""Of the logarithms: steps grow while the slope keeps its sign and shrink when it turns."""

FLAT = 1e-8  # a slope below this is rounding, of which only the sign would be followed


def prior_hyperparameters(between: Distances, rows: Array) -> Hyperparameters:
    """What is assumed before anything is known of the times of kernels described by `rows`."""
    evidence = evidence_of(between, rows, np.zeros(len(rows)))
    return _hyperparameters(evidence, evidence.mean)


def fit(between: Distances, rows: Array, values: Array) -> Hyperparameters:
    """The hyperparameters with the greatest posterior probability; `values` have mean 0 and variance 1.

    Resilient gradient steps (Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the
    RPROP algorithm", 1993) from the prior's mean, so that the same data always gives the same.
    """
    evidence = evidence_of(between, rows, values)
    theta = best = evidence.mean
    least, steps, before = math.inf, np.full(len(theta), STEP), np.zeros(len(theta))
    for _ in range(ITERATIONS):
        loss, slope = loss_and_slope(evidence, theta)
        if loss < least:
            least, best = loss, theta
        slope = np.where(np.abs(slope) < FLAT, 0.0, slope)
        turned = slope * before
        factor = np.select([turned > 0, turned < 0], [GROW, SHRINK], 1.0)
        steps = np.clip(steps * factor, SMALLEST_STEP, LARGEST_STEP)
        before = np.where(turned < 0, 0.0, slope)
        theta = theta - np.sign(before) * steps
    return _hyperparameters(evidence, best)


@dataclass(frozen=True)
class Evidence:
    """What is fitted to, and the prior of what is fitted: lengths of the factors that vary, then weights; logarithms.

    `apart` are distances in each of these `factors`, of each two kernels once.
    """

    factors: list[int]
    apart: Array
    values: Array
    places: int
    mean: Array
    spread: Array


def evidence_of(between: Distances, rows: Array, values: Array) -> Evidence:
    """What the times of kernels described by `rows` say, and what is assumed of them."""
    factors = [j for j in between.tables if (rows[:, j] != rows[0, j]).any()]
    first, second = np.triu_indices(len(rows), 1)
    apart = np.array([between.tables[j][rows[first, j], rows[second, j]] for j in factors])
    # The weights are larger the fewer factors two kernels differ in, so that their times differ with variance 1.
    differing = 2 * np.count_nonzero(apart) / len(rows) ** 2
    share = max(differing, 1.0) / between.places
    main, pairs, whole, noise = WEIGHTS
    weights = np.log([main / share, pairs / (1 - (1 - share) ** 2), whole, noise])
    return Evidence(
        factors,
        apart.reshape(len(factors), len(first)),
        values,
        between.places,
        np.append(np.full(len(factors), math.log(LENGTH)), weights),
        np.append(np.full(len(factors), LENGTH_SPREAD), np.full(len(weights), WEIGHT_SPREAD)),
    )


def _hyperparameters(evidence: Evidence, theta: Array) -> Hyperparameters:
    """Factors that don't vary yet have the length that is assumed of all."""
    *_, main, pairs, whole, noise = np.exp(theta).tolist()
    lengths = np.full(evidence.places, LENGTH)
    lengths[evidence.factors] = np.exp(theta[: -len(WEIGHTS)])
    return Hyperparameters(lengths, main, pairs, whole, noise)


def loss_and_slope(evidence: Evidence, theta: Array) -> tuple[float, Array]:
    """The negative logarithm of the posterior probability but for a constant, and its slope."""
    places, values = evidence.places, evidence.values
    main, pairs, whole, noise = np.exp(theta[-len(WEIGHTS) :]).tolist()
    nearness = evidence.apart / -np.exp(theta[: -len(WEIGHTS)])[:, None]
    alike, idle = np.exp(nearness), places - len(evidence.factors)
    total, squares = alike.sum(axis=0) + idle, np.einsum("fp,fp->p", alike, alike) + idle
    mean, paired, product = total / places, pair_mean(total, squares, places), np.exp(nearness.sum(axis=0))
    gram = np.zeros((len(values), len(values)))
    above = np.triu_indices(len(values), 1)
    gram[above] = main * mean + pairs * paired + whole * product
    gram += gram.T
    np.fill_diagonal(gram, main + pairs + whole + noise + JITTER)
    lower = np.linalg.cholesky(gram)
    inverse = np.linalg.inv(lower)
    inverse = inverse.T @ inverse
    weights = inverse @ values
    away = (theta - evidence.mean) / evidence.spread
    loss = 0.5 * float(values @ weights) + float(np.log(np.diag(lower)).sum()) + 0.5 * float(away @ away)
    # The slope in a direction in which the covariance changes by C is the sum of `outer` times C; it is symmetric.
    outer = inverse - np.outer(weights, weights)
    own, outer = 0.5 * float(np.trace(outer)), outer[above]
    # d k / d log(length) is -k log k, of one factor and of the product alike.
    each = 2 * pairs / (places * (places - 1))
    changes = nearness * alike
    lengths = each * (changes * alike) @ outer - changes @ (outer * (main / places + each * total))
    lengths -= nearness @ (outer * whole * product)
    slopes = [weight * (own + outer @ k) for weight, k in ((main, mean), (pairs, paired), (whole, product))]
    slope: Array = away / evidence.spread + np.concatenate([lengths, slopes, [noise * own]])
    return loss, slope
