"""The tables of the model's benchmark, from rows: no kernel is modelled again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.results import page, table
from mctskernel.profiling import counters as names
from mctskernel.report.resampling import rank_correlation

PICKS = 5

COUNTS = (
    names.INSTRUCTIONS,
    names.LOAD_REQUESTS,
    names.LOAD_SECTORS,
    names.STORE_REQUESTS,
    names.STORE_SECTORS,
    names.WAVEFRONTS,
    names.SHARED_WAVEFRONTS,
    names.L2_READS,
    names.L2_WRITES,
    names.DRAM_READ,
    names.DRAM_BYTES,
)
CLOSE = 0.05
FAIRLY_CLOSE = 0.25


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A variant with its measured and its modelled time, in microseconds.

    `counters` and `ncu` are the modelled and the measured ones. `error` is a sentence where there is no price.
    """

    family: str
    name: str
    us: float
    ncu: dict[str, float] = {}
    modelled_us: float | None = None
    counters: dict[str, float] = {}
    error: str = ""


def benchmark_page(rows: Sequence[Row]) -> str:
    """Make all tables of rows, at least one of which has a price."""
    priced = [row for row in rows if row.modelled_us]
    can_rank = max(Counter(row.family for row in priced).values()) > 1
    sections = [
        ("Ranking", _ranking(priced) if can_rank else ""),
        ("Counts against Nsight Compute", _counts([row for row in priced if row.ncu])),
        ("Not priced", "\n".join(f"- {r.family} {r.name}: {r.error}" for r in rows if not r.modelled_us)),
    ]
    blocks = (block for title, text in sections if text for block in (f"## {title}", text))
    return page("The model against measurements", *blocks)


def regret(measured: Array, modelled: Array, picks: int) -> float:
    """Measured time of the best among the first `picks`, over that of the true best.

    Among kernels that the ranking holds for equal the slowest comes first, so that no order of the file flatters it.
    """
    chosen = np.lexsort((-measured, modelled))[:picks]
    return float(measured[chosen].min() / measured.min())


def _ranking(rows: Sequence[Row]) -> str:
    """A line for each family, and the means over families, in which an undefined correlation is 0."""
    columns = ("family", "kernels", "Spearman", "first pick", "best of 5", "modelled / measured, quartiles")
    lines, found = [], []
    for family, kernels in Counter(row.family for row in rows).items():
        if kernels == 1:
            continue
        times = [(row.us, row.modelled_us) for row in rows if row.family == family]
        measured, modelled = np.array(times, dtype=float).T
        picks = regret(measured, modelled, 1), regret(measured, modelled, PICKS)
        figures = (rank_correlation(measured, modelled), *picks)
        quartiles = " ".join(f"{value:.2f}" for value in np.percentile(modelled / measured, [25, 50, 75]))
        lines.append((family, str(kernels), *(f"{figure:.3f}" for figure in figures), quartiles))
        found.append(np.nan_to_num(figures))
    kernels = sum(int(line[1]) for line in lines)
    lines.append(("mean", str(kernels), *(f"{figure:.3f}" for figure in np.mean(found, axis=0)), ""))
    return table(columns, lines)


def _counts(rows: Sequence[Row]) -> str:
    lines = []
    for name in COUNTS:
        both = [
            (row.counters[name], row.ncu[name]) for row in rows if row.ncu.get(name) and name in row.counters
        ]
        if not both:
            continue
        ratios = np.array([modelled / measured for modelled, measured in both])
        quantiles = " ".join(f"{value:.2f}" for value in np.percentile(ratios, [5, 25, 50, 75, 95]))
        shares = (f"{np.mean(np.abs(ratios - 1.0) <= limit):.0%}" for limit in (CLOSE, FAIRLY_CLOSE))
        lines.append((name, str(len(ratios)), *shares, quantiles))
    within = (f"within {limit:.0%}" for limit in (CLOSE, FAIRLY_CLOSE))
    columns = ("counter", "kernels", *within, "modelled / measured: 5, 25, 50, 75, 95 %")
    return table(columns, lines) if lines else ""
