"""Runs side by side: the speed-up of each with its interval, as `mctskernel compare` tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mctskernel.report.compared_run import RunRow
from mctskernel.report.figures.plotted import PlottedRun, by_device, by_ground, start_factors
from mctskernel.report.figures.style import BLUE, GREEN, ORANGE, legend_columns, plain, times_axis, whole_grid
from mctskernel.report.run_comparison import compare_runs
from mctskernel.run import RunError

ROW_INCHES = 0.24


def draw_comparison(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """The speed-up of each run's best kernel, with its interval. Raises RunError where there is none."""
    rows = {row.path: row for row in compare_runs([run.run for run in runs]).runs}
    for _, ground in by_ground(runs):
        factors = start_factors(ground)
        rows |= {run.run.name: _scaled(rows[run.run.name], factors[run.name]) for run in ground}
    devices = by_device([run for run in runs if rows[run.run.name].speedup])
    if not devices:
        raise RunError("None of these runs has a kernel whose time is believed.")
    heights = [len(found) + 1.2 for found in devices.values()]
    figure.set_figheight(0.55 + ROW_INCHES * sum(heights) + 0.25 * len(devices))
    panels = figure.subplots(len(devices), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (device, found) in zip(panels, devices.items(), strict=True):
        _panel(axes, found, [rows[run.run.name] for run in found])
        if len(devices) > 1:
            axes.set_title(plain(device, int(figure.get_figwidth() * 9)), loc="left")
    whose = (
        " of the first run" if len({run.run.starting_kernel for run in runs}) > len(by_ground(runs)) else ""
    )
    panels[-1].set_xlabel(f"speed-up over the starting kernel{whose}")
    handles = {
        label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=legend_columns(figure, handles)
    )


def _scaled(row: RunRow, factor: float) -> RunRow:
    """Over another starting kernel than its own, whose time at held-out shapes isn't known."""
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


def _panel(axes: Axes, runs: Sequence[PlottedRun], rows: Sequence[RunRow]) -> None:
    shown: list[float] = []
    same = {row.at for row in rows}
    after = f"best after {min(same)}" if len(same) == 1 else "best after as many evaluations"
    for place, row in enumerate(rows):
        speedup = row.speedup or 1.0
        low, high = row.low or speedup, row.high or speedup
        axes.plot([low, high], [place, place], color=BLUE, linewidth=1.2)
        axes.plot([speedup], [place], "o", color=BLUE, label="best kernel", zorder=4)
        if row.speedup_at:
            axes.plot(
                [row.speedup_at],
                [place],
                "|",
                color=ORANGE,
                markersize=8,
                label=after,
            )
        if row.held_out_speedup:
            axes.plot(
                [row.held_out_speedup],
                [place],
                "D",
                markerfacecolor="none",
                color=GREEN,
                label="held-out shapes",
            )
        shown += [low, high, *filter(None, (row.speedup_at, row.held_out_speedup))]
    axes.set_xscale("log")
    low, high = min(shown), max(shown)
    room = max((high / low) ** 0.08, 1.03)
    axes.set_xlim(low / room, high * room)
    times_axis(axes.xaxis, low / room, high * room)
    axes.set_yticks(range(len(rows)), [plain(run.name, 32) for run in runs])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    whole_grid(axes, y=False)
