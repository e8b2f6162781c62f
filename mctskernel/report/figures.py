"""Figures of runs for papers: the best speed-up so far. Drawn with matplotlib, which is the extra `plots`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mctskernel.core.resampling import estimate
from mctskernel.core.task import Array
from mctskernel.core.user_errors import RunError
from mctskernel.report.comparison import ComparedRun, short_names
from mctskernel.report.progress import Moment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: Mapping[str, str] = {
    "evaluations": "the best speed-up so far against evaluations; for a folder of runs, their mean",
    "seconds": "the same against seconds of search",
    "money": "the same against dollars paid for language models",
}

_LABELS = {"evaluations": "evaluations", "seconds": "seconds of search", "money": "US dollars paid to models"}

COLUMN_INCHES = {1: 3.35, 2: 7.0}  # widths of figures: one of two columns (85 mm), and both (178 mm)

FEWEST = 5  # with fewer runs of a side there is no interval of their mean

POINTS = 200  # the most points of a mean over several runs

_STYLE: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # TrueType: publishers refuse Type 3, and text stays searchable.
    "pdf.fonttype": 42,
    "svg.hashsalt": "mctskernel",
    # Names are untrusted text, in which a dollar is a dollar.
    "text.parse_math": False,
}
UNDATED: Mapping[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Metadata without the time, by suffix: files of the same figure are equal."""


def draw(name: str, runs: Sequence[ComparedRun], path: Path | None, columns: int = 1) -> Figure:
    """Draw runs of one task and device, 1 or 2 columns of a paper wide, into a file if there is a path.

    Its suffix is the format; the same runs give the same bytes. Raises RunError for runs that can't share an axis or
    lack what the figure shows, and OSError.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    _check(name, runs)
    sides: dict[str, list[Sequence[Moment]]] = {}
    for run in runs:
        sides.setdefault(run.side, []).append(run.moments)
    names = short_names(list(sides))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(COLUMN_INCHES[columns], 2.4), layout="constrained")
        axes = figure.subplots()
        for side, found in sides.items():
            grid, logs = _curves(name, found)
            label = names[side] if len(found) == 1 else f"{names[side]} ({len(found)} runs)"
            (line,) = axes.plot(grid, np.exp(logs.mean(axis=0)), drawstyle="steps-post", label=label)
            if len(found) >= FEWEST:
                band = [estimate([column]) for column in logs.T]
                low, high = (np.exp([getattr(each, end) for each in band]) for end in ("low", "high"))
                axes.fill_between(grid, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:.4g}\u00d7"))
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.set(xlabel=_LABELS[name], ylabel="best speed-up so far", title=runs[0].task)
        if name == "evaluations":
            axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        axes.legend(frameon=False)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=300, metadata=UNDATED.get(path.suffix))
    return figure


def _check(name: str, runs: Sequence[ComparedRun]) -> None:
    if len({(run.task_and_device, run.starting_kernel) for run in runs}) > 1:
        raise RunError("A figure shows runs of one task, starting kernel and device.")
    if name == "money" and not any(moment.dollars for run in runs for moment in run.moments):
        raise RunError(
            "No language model was paid for in any of these runs, so there are no dollars to draw against."
        )
    for run in runs:
        if not any(moment.best_speedup for moment in run.moments):
            raise RunError(f"{run.name} has no valid kernel yet.")


def _curves(name: str, found: Sequence[Sequence[Moment]]) -> tuple[Array, Array]:
    """Points of the axis from which every run has a valid kernel, and the logarithm of each run's best there."""
    spent_by = attrgetter("dollars" if name == "money" else name)
    spent = [np.array([spent_by(moment) for moment in each]) for each in found]
    end = min(each[-1] for each in spent)
    grid = np.unique(spent[0]) if len(found) == 1 else np.linspace(0, end, POINTS)
    curves = []
    for moments, at in zip(found, spent, strict=True):
        best = np.log([moment.best_speedup or np.nan for moment in moments])
        place = np.searchsorted(at, grid, side="right") - 1
        curves.append(np.where(place >= 0, best[np.maximum(place, 0)], np.nan))
    logs = np.array(curves)
    known = ~np.isnan(logs).any(axis=0)
    return grid[known], logs[:, known]
