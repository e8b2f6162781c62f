"""The model's terms of many kernels as arrays: a price with some of them changed is made in no time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.priced_kernels import Row
from mctskernel.profiling.counters import DRAM_BYTES, INSTRUCTIONS, L2_SECTORS, OCCUPANCY
from mctskernel.profiling.model.price import ADDED, NORM, Term

SECTOR_BYTES = 32


@dataclass(frozen=True)
class Terms:
    """Microseconds of each term (columns) of each launch (rows), and the kernel that a launch belongs to."""

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
        *,
        norm: float = NORM,
        without: Collection[str] = (),
        factors: Mapping[str, float] | None = None,
    ) -> Array:
        """The time of each kernel: terms multiplied by `factors`, those in `without` left out, softly added."""
        scale = np.array([0.0 if name in without else (factors or {}).get(name, 1.0) for name in self.names])
        overlapped = np.array([name not in ADDED for name in self.names])
        terms = self.launches * scale
        parts = terms[:, overlapped]
        largest = np.maximum(parts.max(axis=1, initial=0.0), np.finfo(float).tiny)
        softly = largest * ((parts / largest[:, None]) ** norm).sum(axis=1) ** (1 / norm)
        each = softly + terms[:, ~overlapped].sum(axis=1)
        return np.bincount(self.kernel, each, len(self.measured)) + self.gaps


def terms_of(rows: Sequence[Row]) -> Terms:
    """The terms of rows that have a price."""
    names = tuple(dict.fromkeys(name for row in rows for launch in row.launches_us for name in launch))
    launches = [(index, launch) for index, row in enumerate(rows) for launch in row.launches_us]
    return Terms(
        tuple(row.family for row in rows),
        np.array([row.us for row in rows]),
        names,
        np.array([[launch.get(name, 0.0) for name in names] for _, launch in launches]),
        np.array([index for index, _ in launches]),
        np.array([row.gaps_us for row in rows]),
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
