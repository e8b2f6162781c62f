"""What kinds of edits did in earlier runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experience:
    """What edits of one kind did to kernels of one kind, over all runs that are remembered.

    A kind of edit is a category and a title without its numbers; a kind of kernel is a language, an architecture such
    as `sm_90` and the bottleneck that weighed most. Of `tried` edits, `failed` gave no valid kernel and `improved` made
    it faster by more than the noise. `log_gain` is the mean logarithm of the gain of those that were valid.
    """

    category: str
    title: str
    bottleneck: str
    language: str
    architecture: str
    tried: int
    failed: int
    improved: int
    log_gain: float
