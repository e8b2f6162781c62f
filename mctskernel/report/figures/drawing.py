"""Draw a figure of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from mctskernel.report.comparison import ComparedRun
from mctskernel.report.comparison_table import short_names
from mctskernel.report.figures.progress import EVALUATIONS, MONEY, SECONDS, draw_progress
from mctskernel.report.figures.style import COLUMN_INCHES, PlottedRun, paper_style, save
from mctskernel.report.figures.tree import draw_tree

_DRAWINGS: Mapping[str, Callable[[Figure, Sequence[PlottedRun]], None]] = {
    "evaluations": partial(draw_progress, spending=EVALUATIONS),
    "seconds": partial(draw_progress, spending=SECONDS),
    "money": partial(draw_progress, spending=MONEY),
    "tree": draw_tree,
}


def draw(name: str, runs: Sequence[ComparedRun], path: Path | None, columns: int = 1) -> Figure:
    """Draw a figure of the runs that fills 1 or 2 columns of a paper, into a file if there is a path.

    Its suffix is the format. Raises RunError for runs that lack what the figure shows, and OSError.
    """
    names = short_names([run.name for run in runs])
    sides = short_names(list(dict.fromkeys(run.side for run in runs)))
    plotted = [PlottedRun(run, names[run.name], sides[run.side]) for run in runs]
    with paper_style():
        figure = Figure(figsize=(COLUMN_INCHES[columns], 2.4), layout="constrained")
        _DRAWINGS[name](figure, plotted)
        if path is not None:
            save(figure, path)
    return figure
