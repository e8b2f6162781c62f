"""Runs side by side, a row each: how their evaluations ended, and their speed-ups with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mctskernel.report.comparison import RunRow, compare_runs
from mctskernel.report.figures.style import (
    BLUE,
    GREEN,
    MARKS,
    ORANGE,
    PlottedRun,
    by_ground,
    legend_columns,
    plain,
    start_factors,
    times_axis,
)
from mctskernel.run import RunError

ROW_INCHES = 0.26


def draw_outcomes(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """A bar for each run, of its evaluations by outcome. Raises RunError where nothing was evaluated."""
    counts = [Counter(node.state for node in run.document.nodes if node.state) for run in runs]
    if not any(counts):
        raise RunError("None of these runs has an evaluation yet.")
    figure.set_figheight(0.75 + ROW_INCHES * len(runs))
    axes = figure.subplots()
    found = [name for name in MARKS if any(name in each for each in counts)]
    total, left = max(sum(each.values()) for each in counts), np.zeros(len(runs))
    for name in found:
        width = np.array([each[name] for each in counts], dtype=float)
        look: dict[str, Any] = {"color": MARKS[name].colour, "hatch": MARKS[name].hatch}
        bars = axes.barh(range(len(runs)), width, left=left, height=0.72, edgecolor="white", **look)
        labels = [f"{int(each)}" if each > 0.05 * total else "" for each in width]
        axes.bar_label(bars, labels, label_type="center", color="white", fontsize=6.5)
        left += width
    _rows(axes, runs)
    axes.set_xlabel("evaluations")
    handles = [
        Patch(facecolor=MARKS[name].colour, hatch=MARKS[name].hatch, edgecolor="white", label=name)
        for name in found
    ]
    columns = legend_columns(figure, found)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handleheight=1.0)


def draw_comparison(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """The speed-up of each run's best kernel, with its interval. Raises RunError where there is none."""
    rows = {row.path: row for row in compare_runs([run.run for run in runs]).runs}
    for _, ground in by_ground(runs):
        factors = start_factors(ground)
        rows |= {run.run.name: _scaled(rows[run.run.name], factors[run.name]) for run in ground}
    devices: dict[str, list[PlottedRun]] = {}
    for run in runs:
        if rows[run.run.name].speedup:
            devices.setdefault(run.run.device, []).append(run)
    if not devices:
        raise RunError("None of these runs has a valid kernel yet.")
    heights = [len(found) + 1.2 for found in devices.values()]
    figure.set_figheight(0.55 + ROW_INCHES * sum(heights) + 0.25 * len(devices))
    panels = figure.subplots(len(devices), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (device, found) in zip(panels, devices.items(), strict=True):
        _speedups(axes, [rows[run.run.name] for run in found])
        _rows(axes, found)
        if len(devices) > 1:
            axes.set_title(plain(device, int(figure.get_figwidth() * 9)), loc="left")
    differ = len({run.run.starting_kernel for run in runs}) > len(by_ground(runs))
    panels[-1].set_xlabel(f"speed-up over the starting kernel{' of the first run' if differ else ''}")
    handles = {
        label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = legend_columns(figure, handles)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=columns)


def _scaled(row: RunRow, factor: float) -> RunRow:
    """The row relative to another starting kernel, whose time at held-out shapes is unknown."""
    if factor == 1 or not (row.speedup and row.low and row.high and row.speedup_at):
        return row
    return replace(
        row,
        speedup=factor * row.speedup,
        low=factor * row.low,
        high=factor * row.high,
        speedup_at=factor * row.speedup_at,
        held_out_speedup=None,
    )


def _speedups(axes: Axes, rows: Sequence[RunRow]) -> None:
    shown: list[float] = []
    same = {row.at for row in rows}
    after = f"best after {min(same)}" if len(same) == 1 else "best after equally many evaluations"
    for place, row in enumerate(rows):
        speedup = row.speedup or 1.0
        low, high = row.low or speedup, row.high or speedup
        axes.plot([low, high], [place, place], color=BLUE, linewidth=1.2)
        axes.plot([speedup], [place], "o", color=BLUE, label="best kernel", zorder=4)
        if row.speedup_at:
            axes.plot([row.speedup_at], [place], "|", color=ORANGE, markersize=8, label=after)
        if row.held_out_speedup:
            hollow: dict[str, Any] = {"markerfacecolor": "none", "color": GREEN}
            axes.plot([row.held_out_speedup], [place], "D", label="held-out shapes", **hollow)
        shown += [low, high, *filter(None, (row.speedup_at, row.held_out_speedup))]
    low, high = min(shown), max(shown)
    margin = max((high / low) ** 0.08, 1.03)
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin)
    times_axis(axes.xaxis, low / margin, high * margin)


def _rows(axes: Axes, runs: Sequence[PlottedRun]) -> None:
    axes.set_yticks(range(len(runs)), [plain(run.name, 32) for run in runs])
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
