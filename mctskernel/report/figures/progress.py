"""The best speed-up so far against evaluations, seconds or dollars: a line for each run, or for each side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mctskernel.core.task import Array
from mctskernel.report.figures.style import (
    DASHES,
    ORANGE,
    SERIES,
    PlottedRun,
    by_ground,
    legend_columns,
    plain,
    start_factors,
    times_axis,
)
from mctskernel.report.progress import Moment, over_start
from mctskernel.report.resampling import estimate
from mctskernel.run import RunError

FEWEST = 5
"""With fewer runs of a side there is no interval of their mean."""

PANEL_INCHES = 2.2
"""The smallest width of a panel."""

SLOWEST = 0.5
"""Speed-ups below this are left out of the picture."""

POINTS = 200
"""The most points of a mean over several runs."""


@dataclass(frozen=True)
class Spending:
    """The horizontal axis: what was spent by a moment, and its label."""

    of: Callable[[Moment], float]
    label: str


EVALUATIONS = Spending(attrgetter("evaluations"), "evaluations")
SECONDS = Spending(attrgetter("seconds"), "seconds of search")
MONEY = Spending(attrgetter("dollars"), "US dollars paid to models")


def draw_progress(figure: Figure, runs: Sequence[PlottedRun], spending: Spending) -> None:
    """The best speed-up so far. Raises RunError for a run without a valid kernel, and where nothing was spent."""
    if spending is MONEY and not any(moment.dollars for run in runs for moment in run.run.moments):
        raise RunError(
            "No language model was paid for in any of these runs, so there are no dollars to draw against."
        )
    for run in runs:
        if not any(moment.best_speedup for moment in run.run.moments):
            raise RunError(f"{run.run.name} has no valid kernel yet.")
    grounds = by_ground(runs)
    across = max(1, min(len(grounds), int(figure.get_figwidth() / PANEL_INCHES)))
    down = math.ceil(len(grounds) / across)
    figure.set_figheight(2.1 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    # A side looks the same in every panel.
    looks = {side: number for number, side in enumerate(dict.fromkeys(run.side for run in runs))}
    handles: dict[str, Artist] = {}
    for axes, (ground, found) in zip(panels, grounds, strict=False):
        handles |= _panel(axes, found, spending, looks)
        title = [ground] if len(grounds) > 1 else []
        if len({run.run.starting_kernel for run in found}) > 1:
            title.append(f"over the start of {found[0].name}")
        letters = int(16.5 * figure.get_figwidth() / across)
        lines = "\n".join(title).split("\n")
        axes.set_title("\n".join(plain(line, letters) for line in lines), fontsize=6.5)
    for axes in panels[len(grounds) :]:
        axes.set_visible(False)
    for axes in panels[::across]:
        axes.set_ylabel("best speed-up so far")
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=legend_columns(figure, handles),
        )


def _panel(
    axes: Axes, runs: Sequence[PlottedRun], spending: Spending, looks: Mapping[str, int]
) -> dict[str, Artist]:
    """Draw the runs of one task and device. Returns the lines for the legend by their labels."""
    sides: dict[str, list[PlottedRun]] = {}
    for run in runs:
        sides.setdefault(run.side, []).append(run)
    handles: dict[str, Artist] = {}
    factors = start_factors(runs)
    moments = {
        run.name: [over_start(each, 1 / factors[run.name]) for each in run.run.moments] for run in runs
    }
    for side, found in sides.items():
        number = looks[side] if len(sides) > 1 else 0
        label = f"{plain(side, 40)} ({len(found)} runs)" if len(found) > 1 else plain(side, 40)
        line = {
            "label": label,
            "color": SERIES[number % len(SERIES)],
            "linestyle": DASHES[number % len(DASHES)],
        }
        if len(found) > 1:
            _several(axes, [moments[run.name] for run in found], spending, line)
        else:
            x, y = _steps(moments[found[0].name], spending)
            axes.plot(x, y, drawstyle="steps-post", zorder=3, **line)
    if len(runs) == 1:
        handles = _tried(axes, moments[runs[0].name], spending, SERIES[0])
    elif len(sides) > 1:
        lines, labels = axes.get_legend_handles_labels()
        handles = dict(zip(labels, lines, strict=True))
    _scale(axes, [moment for each in moments.values() for moment in each])
    axes.set_xlim(left=0)
    axes.set_xlabel(spending.label)
    return handles


def _scale(axes: Axes, found: Sequence[Moment]) -> None:
    """Limit the axis to the fastest kernel and the slowest that is not far slower than the start."""
    high = max(moment.best_speedup for moment in found)
    low = max(SLOWEST, min(1.0, *(moment.speedup for moment in found if moment.speedup)))
    axes.set_yscale("log")
    axes.set_ylim(low / 1.06, high * (high / low) ** 0.06 * 1.02)
    times_axis(axes.yaxis, low, high)


def _tried(axes: Axes, found: Sequence[Moment], spending: Spending, colour: str) -> dict[str, Artist]:
    """Draw each evaluation of a single run as well."""
    tried = [moment for moment in found if moment.speedup]
    (best,) = axes.get_lines()
    (dots,) = axes.plot(
        [spending.of(moment) for moment in tried],
        [moment.speedup for moment in tried],
        "o",
        color=colour,
        alpha=0.35,
        markersize=2.4,
        markeredgewidth=0,
        zorder=2,
    )
    handles: dict[str, Artist] = {"best so far": best, "kernel": dots}
    if failed := [spending.of(moment) for moment in found if not moment.speedup]:
        (handles["failed"],) = axes.plot(
            failed,
            [0.02] * len(failed),
            "|",
            color=ORANGE,
            markersize=5,
            markeredgewidth=0.8,
            transform=axes.get_xaxis_transform(),
        )
    return handles


def _several(
    axes: Axes, found: Sequence[Sequence[Moment]], spending: Spending, line: Mapping[str, Any]
) -> None:
    """Each run thin, their geometric mean thick and, where there are enough, its 95 % bootstrap band."""
    for each in found:
        x, y = _steps(each, spending)
        axes.plot(x, y, drawstyle="steps-post", color=line["color"], linewidth=0.5, alpha=0.35, zorder=2)
    grid = _grid(found, spending)
    logs = np.array([_logs_at(each, spending, grid) for each in found])
    known = ~np.isnan(logs).any(axis=0)
    grid, logs = grid[known], logs[:, known]
    axes.plot(grid, np.exp(logs.mean(axis=0)), zorder=3, **line)
    if len(found) >= FEWEST:
        band = [estimate([column]) for column in logs.T]
        low, high = (np.exp([getattr(each, side) for each in band]) for side in ("low", "high"))
        axes.fill_between(grid, low, high, color=line["color"], alpha=0.18, linewidth=0, zorder=1)


def _steps(found: Sequence[Moment], spending: Spending) -> tuple[list[float], list[float]]:
    known = [moment for moment in found if moment.best_speedup]
    x, y = [spending.of(moment) for moment in known], [moment.best_speedup for moment in known]
    # Failures at the end extend the line.
    return [*x, spending.of(found[-1])], [*y, y[-1]]


def _grid(found: Sequence[Sequence[Moment]], spending: Spending) -> Array:
    """Points at which a mean is drawn, up to the end of the shortest run."""
    end = min(spending.of(each[-1]) for each in found)
    if spending is EVALUATIONS:
        return np.unique(np.linspace(1, end, min(POINTS, max(1, math.ceil(end)))).round())
    return np.linspace(0, end, POINTS)


def _logs_at(found: Sequence[Moment], spending: Spending, grid: Array) -> Array:
    spent = np.array([spending.of(moment) for moment in found])
    best = np.array([moment.best_speedup or np.nan for moment in found])
    places = np.searchsorted(spent, grid, side="right") - 1
    return np.asarray(np.where(places >= 0, np.log(best[np.maximum(places, 0)]), np.nan))
