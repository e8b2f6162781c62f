"""The tables of the evidence that counters give."""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.experiments.counter_evidence import CategoryRow, Evidence, MoveRow, Report, by_question
from mctskernel.experiments.records.cluster_bootstrap import Interval
from mctskernel.experiments.records.documents import Document, Section, Table, Text

SHOWN = (
    "DRAM bytes",
    "L2 sectors",
    "sectors a load",
    "shared wavefronts",
    "instructions",
    "warps active",
    "waits for global memory",
    "waits at barriers",
)
"""Counters that have a column by category."""


def document(report: Report) -> Document:
    """The page."""
    lead = (
        f"{report.steps} steps from a kernel to one made of it by an edit, both right and timed, in {report.searches} "
        f"searches and families of {len(report.tasks)} tasks: {', '.join(report.tasks)}. The numbers are "
        f"{' or '.join(report.sources)}. Intervals are at 95 %, from "
        "drawing whole tasks again."
    )
    return Document(
        "Counters as evidence",
        [
            Section("What edits did, by category", [Text(_CATEGORIES), _categories(report.categories)]),
            Section("How counters went with the gain", [Text(_MOVES), _moves(report.moves)]),
            *(
                Section(f"Does a relief predict {question}?", [_evidence(rows)])
                for question, rows in by_question(report.evidence).items()
            ),
            Section("What the columns mean", [Text(_COLUMNS)]),
        ],
        [Text(lead), Text(verdict(report.evidence))],
    )


def verdict(evidence: Sequence[Evidence]) -> str:
    """In a sentence for each question, which proxies are supported."""
    sentences = []
    for question, rows in by_question(evidence).items():
        names = ", ".join(row.proxy for row in rows if row.supported)
        sentences.append(f"- Supported as a predictor of {question}: the relief of {names or 'none'}.")
    return "\n".join(sentences)


_CATEGORIES = (
    "Factors are means over tasks of the median of their steps: of the time, parent over child (above 1 is faster); of "
    "counters, child over parent. `faster` and `slower` are steps that changed the time by more than the noise."
)

_MOVES = (
    "The rank correlation of the logarithm of child over parent with that of the speed-up, within searches, as a mean "
    "over tasks."
)

_COLUMNS = (
    "`correlation` is the partial rank correlation within searches, a mean over tasks; `p` counts sign flips over "
    "tasks, `Holm` raises it for all rows of all questions. `error taken away` is the share of the squared error of a "
    "linear prediction that knowing the relief takes away on tasks that were left out when it was fitted; below 0 it "
    "does harm. `supported` needs a positive correlation, Holm below 0.05, and an interval of the error taken away "
    "above 0."
)


def _categories(rows: Sequence[CategoryRow]) -> Table:
    return Table(
        ["category", "steps", "tasks", "speed-up", "faster", "slower", *SHOWN],
        [
            [
                row.category,
                str(row.steps),
                str(row.tasks),
                _interval(row.speedup, ".3f"),
                f"{row.faster:.0%}",
                f"{row.slower:.0%}",
                *(f"{row.moves[name].mean:.2f}" if name in row.moves else "" for name in SHOWN),
            ]
            for row in rows
        ],
    )


def _moves(rows: Sequence[MoveRow]) -> Table:
    return Table(
        ["counter", "steps", "tasks", "correlation with the gain"],
        [
            [row.counter, str(row.steps), str(row.tasks), _interval(row.correlation, "+.2f")]
            for row in sorted(rows, key=lambda row: row.correlation.mean)
        ],
    )


def _evidence(rows: Sequence[Evidence]) -> Table:
    return Table(
        ["relief of", "steps", "tasks", "correlation", "p", "Holm", "error taken away", "supported"],
        [
            [
                row.proxy,
                str(row.steps),
                str(row.tasks),
                _interval(row.correlation, "+.2f"),
                f"{row.p:.4f}",
                f"{row.adjusted:.3f}",
                _interval(row.held_out, "+.1%") if row.held_out else "",
                "yes" if row.supported else "no",
            ]
            for row in rows
        ],
    )


def _interval(found: Interval, form: str) -> str:
    return f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"
