"""Why a kernel takes as long as it does, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Evaluation
from mctskernel.profiling.model.explanation import MEANINGS, Explanation, explain, sentences
from mctskernel.profiling.quantities import time_text

ROOMY = 100
"""Columns of a terminal from which the table says what each term is."""

SMALLEST = 0.001
"""The fraction of the time below which a term has no row."""


def print_explanation(console: Console, title: str, evaluation: Evaluation) -> None:
    """What binds the kernel, the table of its terms where they are known, and the causes behind them."""
    console.print(Text(title, "bold"))
    found = explain(evaluation)
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    lines = sentences(found) if found else ()
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if found:
        console.print(_table(found, MEANINGS if console.width >= ROOMY else None))
    if causes:
        console.print(Text("Behind it:"))
    for cause in causes:
        console.print(Text(f"  {cause.share:4.0%}  {cause.sentence}"), soft_wrap=True)
    for flag in evaluation.flags:
        console.print(Text(f"! {flag}", "yellow"))


def _table(found: Explanation, meanings: Mapping[str, str] | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("term", no_wrap=True)
    for heading in ("alone", "share", "time if halved", "time if free"):
        table.add_column(heading, justify="right", no_wrap=True)
    if meanings:
        table.add_column("what the GPU does in it", no_wrap=True, overflow="ellipsis")
    for term in found.terms:
        if term.share < SMALLEST:
            continue
        table.add_row(
            Text(term.name),
            time_text(term.seconds),
            f"{term.share:.1%}",
            time_text(term.seconds_if_half),
            time_text(term.seconds_if_free),
            *([Text(meanings.get(term.name, ""), "dim")] if meanings else []),
        )
    return table
