"""How evaluations ended, and what became of each kind of edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mctskernel.core.evaluation import Outcome
from mctskernel.report.document import NodeRow
from mctskernel.report.edit_success import EditSuccess, edit_success
from mctskernel.report.failures import QUARANTINED
from mctskernel.report.figures.plotted import PlottedRun
from mctskernel.report.figures.style import (
    BLUE,
    GREY,
    MARKS,
    ORANGE,
    legend_columns,
    plain,
    times_axis,
    whole_grid,
)
from mctskernel.report.resampling import share_interval
from mctskernel.run import RunError

ROW_INCHES = 0.26


def draw_outcomes(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """A bar for each run, of its evaluations by outcome. Raises RunError where nothing was evaluated."""
    counts = [_outcomes(run.document.nodes) for run in runs]
    if not any(counts):
        raise RunError("Nothing was evaluated yet in any of these runs.")
    figure.set_figheight(0.75 + ROW_INCHES * len(runs))
    axes = figure.subplots()
    found = [name for name in MARKS if any(name in each for each in counts)]
    left = np.zeros(len(runs))
    for name in found:
        width = np.array([each[name] for each in counts], dtype=float)
        bars = axes.barh(
            range(len(runs)),
            width,
            left=left,
            height=0.72,
            color=MARKS[name].colour,
            hatch=MARKS[name].hatch,
            edgecolor="white",
            linewidth=0.5,
        )
        total = max(sum(each.values()) for each in counts)
        axes.bar_label(
            bars,
            [f"{int(each)}" if each > 0.05 * total else "" for each in width],
            label_type="center",
            color="white",
            fontsize=6.5,
        )
        left += width
    _names(axes, [plain(run.name, 32) for run in runs])
    axes.set_xlabel("evaluations")
    whole_grid(axes, y=False)
    handles = [
        Patch(facecolor=MARKS[name].colour, hatch=MARKS[name].hatch, edgecolor="white", label=name)
        for name in found
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=legend_columns(figure, found),
        handleheight=1.0,
    )


def draw_edits(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """Of each kind of edit, the share that made a kernel faster and by how much; the runs are taken together.

    Raises RunError where no edit was tried.
    """
    nodes = [node for run in runs for node in run.document.nodes]
    rows = edit_success(nodes)
    if not rows:
        raise RunError("No edit was tried yet in any of these runs.")
    figure.set_figheight(0.85 + ROW_INCHES * len(rows))
    shares, gains = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.25))
    _shares(shares, rows)
    _gains(gains, rows, nodes)
    several = len({row.proposer for row in rows}) > 1
    _names(shares, [plain(f"{row.category}{f' ({row.proposer})' if several else ''}", 34) for row in rows])


def _shares(axes: Axes, rows: Sequence[EditSuccess]) -> None:
    for place, row in enumerate(rows):
        low, high = share_interval(row.gained, row.tried)
        axes.plot([low, high], [place, place], color=BLUE, linewidth=1.0)
        axes.plot(row.gained / row.tried, place, "o", color=BLUE, zorder=3)
        axes.annotate(
            f"{row.gained}/{row.tried}",
            (high, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6,
        )
    axes.set_xlim(-0.04, 1.35)
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.set_xlabel("share faster")
    whole_grid(axes, y=False)


def _gains(axes: Axes, rows: Sequence[EditSuccess], nodes: Sequence[NodeRow]) -> None:
    everything = []
    for place, row in enumerate(rows):
        found = [
            node.gain
            for node in nodes
            if (node.category, node.proposer) == (row.category, row.proposer)
            and node.gain
            and not node.quarantine
        ]
        everything += found
        # A little apart, always the same way, so that equal gains can be told from one.
        spread = np.linspace(-0.22, 0.22, len(found)) if len(found) > 1 else np.zeros(len(found))
        axes.plot(found, place + spread, "o", color=BLUE, alpha=0.4, markersize=2.5, markeredgewidth=0)
        if row.median_gain is not None:
            axes.plot([row.median_gain] * 2, [place - 0.32, place + 0.32], color=ORANGE, linewidth=1.4)
    axes.axvline(1.0, color=GREY, linewidth=0.8, zorder=1)
    axes.set_xscale("log")
    if everything:
        times_axis(axes.xaxis, min(everything), max(everything))
    axes.set_xlabel("gain over parent")
    whole_grid(axes, y=False)


def _names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _outcomes(nodes: Sequence[NodeRow]) -> Counter[str]:
    return Counter(
        QUARANTINED if node.quarantine and node.outcome == Outcome.OK else node.outcome
        for node in nodes
        if node.outcome is not None
    )
