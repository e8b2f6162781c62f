"""The tables of the model's benchmark."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from mctskernel.experiments.model.family_splits import Split, fit_on, leave_one_out
from mctskernel.experiments.model.honesty import fitted_sigmas, honesty
from mctskernel.experiments.model.priced_kernels import Row
from mctskernel.experiments.model.ranking import Ranking, by_family, summarise
from mctskernel.experiments.model.terms import Terms, in_one_norm, naive_baselines, terms_of
from mctskernel.experiments.records.documents import Block, Document, Section, Table, Text
from mctskernel.profiling.counters import (
    DRAM_BYTES,
    DRAM_READ,
    INSTRUCTIONS,
    L2_READS,
    L2_WRITES,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    SHARED_WAVEFRONTS,
    STORE_REQUESTS,
    STORE_SECTORS,
    WAVEFRONTS,
)

COUNTS = (
    INSTRUCTIONS,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    STORE_REQUESTS,
    STORE_SECTORS,
    WAVEFRONTS,
    SHARED_WAVEFRONTS,
    L2_READS,
    L2_WRITES,
    DRAM_READ,
    DRAM_BYTES,
)
CLOSE = 0.05
FAIRLY_CLOSE = 0.25

NORMS = {
    "the sum of all terms": 1.0,
    "all terms in one norm of 2": 2.0,
    "all terms in one norm of 3": 3.0,
    "all terms in one norm of 6": 6.0,
    "the largest term alone": math.inf,
}
FITTED_FAMILIES = 2
FEWEST_TO_FIT = FITTED_FAMILIES + 1


def benchmark_tables(rows: Sequence[Row]) -> Document:
    """Everything that rows say. At least one row must have a price."""
    priced = [row for row in rows if row.modelled_us]
    terms = terms_of(priced)
    refused = [f"- {row.family} {row.name}: {row.error}" for row in rows if not row.modelled_us]
    sections: list[tuple[str, list[Block]]] = [
        *(_rankings(priced, terms) if max(Counter(terms.families).values()) > 1 else ()),
        ("Counts against Nsight Compute", _counts([row for row in priced if row.ncu])),
        ("Cost of a kernel, in seconds", _cost(priced)),
        ("Not priced", [Text("\n".join(refused))] if refused else []),
    ]
    shown = [Section(title, blocks) for title, blocks in sections if blocks]
    return Document("The model against measurements", shown)


def _rankings(rows: Sequence[Row], terms: Terms) -> tuple[tuple[str, list[Block]], ...]:
    """What at least one family of two kernels and more is needed for."""
    return (
        ("Ranking", _ranking(rows, terms)),
        ("Fitted on some families, tested on others", _splits(terms)),
        ("Errors against what the model says of them", _honesty(rows)),
        ("Without each term", _ablations(terms)),
        ("Without a model", _baselines(rows, terms)),
    )


def _ranking(rows: Sequence[Row], terms: Terms) -> list[Block]:
    modelled = np.array([row.modelled_us for row in rows], dtype=float)
    rankings = by_family(terms.families, terms.measured, modelled)
    heading = ("family", "kernels", "Spearman", "first pick", "best of 5", "modelled / measured, quartiles")
    lines = [
        (
            each.family,
            str(each.kernels),
            f"{each.correlation:.3f}",
            f"{each.first:.3f}",
            f"{each.best_of_five:.3f}",
            " ".join(f"{value:.2f}" for value in each.quartiles),
        )
        for each in rankings
    ]
    mean = summarise(rankings)
    total = str(sum(each.kernels for each in rankings))
    lines.append(
        (
            "mean",
            total,
            f"{mean.correlation:.3f}",
            f"{mean.first:.3f}",
            f"{mean.best_of_five:.3f}",
            "",
        )
    )
    return _table(heading, lines)


def _splits(terms: Terms) -> list[Block]:
    """Unfitted beside fitted, each family tested by splits that don't fit it."""
    ranked = [family for family, count in Counter(terms.families).items() if count > 1]
    if len(ranked) < FEWEST_TO_FIT:
        return []
    terms = terms.of(ranked)
    shipped = {each.family: each for each in by_family(terms.families, terms.measured, terms.microseconds())}
    alone = _tested(leave_one_out(terms))
    pairs = _tested(fit_on(terms, FITTED_FAMILIES))
    heading = (
        "family",
        "shipped constants",
        "first",
        "of 5",
        "fitted on all others",
        "first",
        "of 5",
        f"fitted on {FITTED_FAMILIES}",
        "first",
        "of 5",
    )
    lines: list[tuple[str, ...]] = [
        (family, *_three([shipped[family]]), *_three(alone[family]), *_three(pairs[family]))
        for family in shipped
    ]
    everything = [
        [ranking for family in shipped for ranking in found[family]]
        for found in ({family: [shipped[family]] for family in shipped}, alone, pairs)
    ]
    lines.append(("mean", *(cell for found in everything for cell in _three(found))))
    return _table(heading, lines)


def _tested(splits: Iterable[Split]) -> dict[str, list[Ranking]]:
    found: dict[str, list[Ranking]] = {}
    for split in splits:
        for ranking in split.tested:
            found.setdefault(ranking.family, []).append(ranking)
    return found


def _three(rankings: Sequence[Ranking]) -> tuple[str, str, str]:
    mean = summarise(rankings)
    return f"{mean.correlation:.3f}", f"{mean.first:.3f}", f"{mean.best_of_five:.3f}"


def _honesty(rows: Sequence[Row]) -> list[Block]:
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    found = [honesty(family, members) for family, members in families.items() if len(members) > 1]
    heading = ("family", "within 1 sigma", "2 sigma", "ratios within 1", "ties", "others in the right order")
    lines = [
        (
            each.family,
            *(
                f"{share:.0%}"
                for share in (
                    each.within_one,
                    each.within_two,
                    each.ratios_within_one,
                    each.ties,
                    each.right,
                )
            ),
        )
        for each in found
    ]
    term, rest = fitted_sigmas(list(families.values()))
    return [
        *_table(heading, lines),
        Text(
            f"Fitted to pairs: {term:.3f} for what a term's constant may be off by, {rest:.3f} for the rest."
        ),
    ]


_SUMMARY = ("Spearman, mean", "worst", "first pick, mean", "worst", "best of 5, mean", "worst")


def _summary(label: str, rankings: Sequence[Ranking]) -> tuple[str, ...]:
    found = summarise(rankings)
    return (
        label,
        f"{found.correlation:.3f}",
        f"{found.worst_correlation:.3f}",
        f"{found.first:.3f}",
        f"{found.worst_first:.3f}",
        f"{found.best_of_five:.3f}",
        f"{found.worst_best_of_five:.3f}",
    )


def _ablations(terms: Terms) -> list[Block]:
    """Terms that are zero everywhere change nothing and have no row."""
    used = [name for name, column in zip(terms.names, terms.launches.T, strict=True) if np.any(column)]
    variations = [
        ("the model", terms.microseconds()),
        *((f"without {name}", terms.microseconds(without=(name,))) for name in used),
        *((label, terms.microseconds(in_one_norm(norm))) for label, norm in NORMS.items()),
    ]
    return _table(
        ("", *_SUMMARY),
        [_summary(label, by_family(terms.families, terms.measured, found)) for label, found in variations],
    )


def _baselines(rows: Sequence[Row], terms: Terms) -> list[Block]:
    ranked = [("the model", terms.microseconds()), *naive_baselines(rows).items()]
    return _table(
        ("ranked by", *_SUMMARY),
        [_summary(label, by_family(terms.families, terms.measured, found)) for label, found in ranked],
    )


def _counts(rows: Sequence[Row]) -> list[Block]:
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
    heading = (
        "counter",
        "kernels",
        f"within {CLOSE:.0%}",
        f"within {FAIRLY_CLOSE:.0%}",
        "modelled / measured: 5, 25, 50, 75, 95 %",
    )
    return _table(heading, lines) if lines else []


def _cost(rows: Sequence[Row]) -> list[Block]:
    stages = dict.fromkeys(stage for row in rows for stage in row.stage_seconds)
    seconds = {stage: [row.stage_seconds.get(stage, 0.0) for row in rows] for stage in stages}
    seconds["all"] = [sum(row.stage_seconds.values()) for row in rows]
    return _table(
        ("stage", "median", "most", "all kernels"),
        [
            (stage, f"{statistics.median(each):.3f}", f"{max(each):.2f}", f"{sum(each):.1f}")
            for stage, each in seconds.items()
        ],
    )


def _table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> list[Block]:
    return [Table(list(heading), [list(line) for line in lines])]
