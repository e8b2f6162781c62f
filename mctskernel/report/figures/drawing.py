"""A figure by its name, from runs to a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from mctskernel.report.compared_run import ComparedRun
from mctskernel.report.figures.comparison import draw_comparison
from mctskernel.report.figures.outcomes import draw_edits, draw_outcomes
from mctskernel.report.figures.plotted import PlottedRun
from mctskernel.report.figures.progress import draw_evaluations, draw_money, draw_seconds
from mctskernel.report.figures.roofline import draw_roofline
from mctskernel.report.figures.style import COLUMN_INCHES, DPI, FONT, paper_style, save
from mctskernel.report.figures.tree import draw_tree
from mctskernel.report.run_comparison_table import short_names

_DRAWINGS: Mapping[str, Callable[[Figure, Sequence[PlottedRun]], None]] = {
    "evaluations": draw_evaluations,
    "seconds": draw_seconds,
    "money": draw_money,
    "tree": draw_tree,
    "roofline": draw_roofline,
    "outcomes": draw_outcomes,
    "edits": draw_edits,
    "comparison": draw_comparison,
}


@dataclass(frozen=True)
class Look:
    """`columns` of a paper with two that the figure fills, dots an inch of a PNG, and the font."""

    columns: int = 1
    dpi: int = DPI
    font: str = FONT


def draw(name: str, runs: Sequence[ComparedRun], path: Path, look: Look) -> None:
    """Draw a figure of the runs into a file, whose suffix says the format.

    Raises RunError for runs that the figure can't be drawn of, FontError for a font that isn't installed, and OSError.
    """
    names = short_names([run.name for run in runs])
    sides = short_names(list(dict.fromkeys(run.side for run in runs)))
    plotted = [PlottedRun(run, names[run.name], sides[run.side]) for run in runs]
    with paper_style(look.font):
        figure = Figure(figsize=(COLUMN_INCHES[look.columns], 2.4), layout="constrained")
        _DRAWINGS[name](figure, plotted)
        save(figure, path, look.dpi)
