"""Draw a figure of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from mctskernel.report.comparison import ComparedRun
from mctskernel.report.comparison_table import short_names
from mctskernel.report.figures.progress import EVALUATIONS, MONEY, SECONDS, draw_progress
from mctskernel.report.figures.style import COLUMN_INCHES, DPI, FONT, PlottedRun, paper_style, save
from mctskernel.report.figures.tree import draw_tree

_DRAWINGS: Mapping[str, Callable[[Figure, Sequence[PlottedRun]], None]] = {
    "evaluations": partial(draw_progress, spending=EVALUATIONS),
    "seconds": partial(draw_progress, spending=SECONDS),
    "money": partial(draw_progress, spending=MONEY),
    "tree": draw_tree,
}


@dataclass(frozen=True)
class Look:
    """`columns` of a two-column paper that the figure fills, dots per inch of a PNG, and the font."""

    columns: int = 1
    dpi: int = DPI
    font: str = FONT


def draw(name: str, runs: Sequence[ComparedRun], path: Path | None, look: Look) -> Figure:
    """Draw a figure of the runs, into a file in the format of its suffix if there is a path.

    Raises RunError for runs that lack what the figure shows, FontError for a font that isn't installed, and OSError.
    """
    names = short_names([run.name for run in runs])
    sides = short_names(list(dict.fromkeys(run.side for run in runs)))
    plotted = [PlottedRun(run, names[run.name], sides[run.side]) for run in runs]
    with paper_style(look.font):
        figure = Figure(figsize=(COLUMN_INCHES[look.columns], 2.4), layout="constrained")
        _DRAWINGS[name](figure, plotted)
        if path is not None:
            save(figure, path, look.dpi)
    return figure
