"""How far a modelled time is to be trusted, and which modelled times are ties.

A term may be wrong by a factor that is the same for every kernel (the constant behind it) while what it
counts is right. Such an error moves the time by the term's share of it, so two kernels that spend their time
on the same terms are wrong together and their ratio hardly is:

    log(a / b) has the variance  sum over terms of (share in a - share in b)^2 s_term^2  +  2 s_rest^2

which is first-order error propagation with independent errors of the terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mctskernel.profiling.model.price import Term, shares

TERM_SIGMA = 0.3
"""Standard deviation of the logarithm of a term's error that all kernels share.

With this and the next, 60 % to 100 % of the kernels of most of 37 families timed on an H100 lie within one standard
deviation (`experiments.model_benchmark`). For five families of hand-made variants less would do; among 32 of recorded
searches a few kernels are off by far more than any normal error.
"""

REST_SIGMA = 0.08
"""Standard deviation of the logarithm of what is left and differs from kernel to kernel."""


def term_sigmas(terms: Mapping[str, float]) -> dict[str, float]:
    """What each term's error contributes: one standard deviation of the logarithm of the time."""
    return {name: TERM_SIGMA * share for name, share in shares(terms).items()}


def log_sigma(terms: Mapping[str, float]) -> float:
    """One standard deviation of the logarithm of modelled over true time."""
    return math.hypot(REST_SIGMA, *term_sigmas(terms).values())


def log_ratio_sigma(terms: Mapping[str, float], others: Mapping[str, float]) -> float:
    """One standard deviation of the logarithm of the error of a ratio of two modelled times."""
    first, second = shares(terms), shares(others)
    differences = (first.get(name, 0.0) - second.get(name, 0.0) for name in Term)
    return math.hypot(math.sqrt(2.0) * REST_SIGMA, *(TERM_SIGMA * each for each in differences))
