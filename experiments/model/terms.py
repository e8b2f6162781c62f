"""The model's terms of many kernels: a price with some of them changed is made in no time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.model.priced_kernels import Row
from mctskernel.profiling.counters import DRAM_BYTES, INSTRUCTIONS, L2_SECTORS, OCCUPANCY
from mctskernel.profiling.model.price import ADDED, Term, combined, soft_sum

SECTOR_BYTES = 32

Combine = Callable[[Mapping[str, float]], float]
"""From the terms of a launch to its time, in the same unit."""


@dataclass(frozen=True)
class Terms:
    """Seconds of each term (columns) of each launch (rows), and the kernel that a launch belongs to.

    `measured` and what `microseconds` returns are of kernels; `gaps` are seconds between a kernel's launches.
    """

    families: tuple[str, ...]
    measured: Array
    names: tuple[str, ...]
    launches: Array
    kernel: Array
    gaps: Array

    def of(self, families: Collection[str]) -> Terms:
        """The kernels of some families."""
        kept = np.array([family in families for family in self.families], dtype=bool)
        launches = kept[self.kernel]
        return Terms(
            tuple(family for family in self.families if family in families),
            self.measured[kept],
            self.names,
            self.launches[launches],
            (np.cumsum(kept) - 1)[self.kernel[launches]],
            self.gaps[kept],
        )

    def microseconds(
        self,
        combine: Combine = combined,
        *,
        without: Collection[str] = (),
        factors: Mapping[str, float] | None = None,
    ) -> Array:
        """The time of each kernel with terms multiplied by `factors` and those in `without` left out.

        The tail, which follows from the other terms, stays what it was.
        """
        scale = [0.0 if name in without else (factors or {}).get(name, 1.0) for name in self.names]
        seconds = [
            combine(dict(zip(self.names, row, strict=True))) for row in (self.launches * scale).tolist()
        ]
        return 1e6 * (np.bincount(self.kernel, seconds, len(self.measured)) + self.gaps)


def in_one_norm(norm: float) -> Combine:
    """All terms that overlap in one p-norm, from their sum (1) to the largest of them (infinity)."""

    def combine(terms: Mapping[str, float]) -> float:
        overlapped = soft_sum((seconds for name, seconds in terms.items() if name not in ADDED), norm)
        return overlapped + math.fsum(seconds for name, seconds in terms.items() if name in ADDED)

    return combine


def terms_of(rows: Sequence[Row]) -> Terms:
    """The terms of rows that have a price."""
    names = tuple(dict.fromkeys(name for row in rows for launch in row.launches_us for name in launch))
    launches = [(index, launch) for index, row in enumerate(rows) for launch in row.launches_us]
    return Terms(
        tuple(row.family for row in rows),
        np.array([row.us for row in rows]),
        names,
        1e-6 * np.array([[launch.get(name, 0.0) for name in names] for _, launch in launches]),
        np.array([index for index, _ in launches]),
        1e-6 * np.array([row.gaps_us for row in rows]),
    )


def naive_baselines(rows: Sequence[Row]) -> dict[str, Array]:
    """What one could rank by without a model, from what was counted; smaller is better in all of them."""
    return {
        "occupancy": -_counter(rows, OCCUPANCY),
        "DRAM bytes": _counter(rows, DRAM_BYTES),
        "bytes at L2": SECTOR_BYTES * _counter(rows, L2_SECTORS),
        "instructions": _counter(rows, INSTRUCTIONS),
        "roofline": np.array([sum(map(_roofline, row.launches_us)) for row in rows]),
    }


COMPUTE = (Term.FMA, Term.FP64, Term.SPECIAL, Term.TENSOR)


def _roofline(terms: Mapping[str, float]) -> float:
    """The longer of arithmetic and DRAM."""
    return max(terms.get(term, 0.0) for term in (*COMPUTE, Term.DRAM))


def _counter(rows: Sequence[Row], name: str) -> Array:
    return np.array([row.counters.get(name, 0.0) for row in rows])
