"""Plots of what searches found; they need matplotlib, which is the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from mctskernel.core.task import Array
from mctskernel.experiments.strategies.tables import figures
from mctskernel.experiments.strategies.traces import Trace, by_space

PANEL = (3.4, 2.8)
"""Inches."""

POINTS = 60
"""Of a curve, at the most."""

TICKS = (1, 5, 10, 20, 50, 100, 200)

NORMAL_QUANTILE = 1.96
"""Of a band that covers the mean with 95 %."""


def plot_shares(traces: Sequence[Trace], out: Path) -> None:
    """The mean share over seeds by evaluations, with its 95 % band: a panel for each space, a line a contender."""
    spaces = list(by_space(traces))
    mpl.rcParams.update({"svg.hashsalt": "mctskernel", "svg.fonttype": "none", "font.size": 8})
    figure = Figure(figsize=(PANEL[0] * len(spaces), PANEL[1]), layout="constrained")
    axes = figure.subplots(1, len(spaces), sharey=True, squeeze=False)[0]
    for panel, space in zip(axes, spaces, strict=True):
        for contender, found in figures(traces).items():
            if space in found:
                _line(panel, contender, curves(found[space]))
        panel.set(title=space, xlabel="evaluations", xscale="log", xticks=TICKS, xticklabels=map(str, TICKS))
        panel.minorticks_off()
        panel.grid(visible=True, alpha=0.3)
    axes[0].set(ylabel="share of the optimum", ylim=(0.4, 1.0))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def curves(traces: Sequence[Trace]) -> Array:
    """A row for each trace: its share after 1, 2, ... evaluations."""
    length = max(trace.evaluations for trace in traces)
    rows = np.zeros((len(traces), length))
    for row, trace in zip(rows, traces, strict=True):
        for number, share in trace.improvements:
            row[number - 1 :] = share
    return rows


def _line(panel: mpl.axes.Axes, contender: str, rows: Array) -> None:
    count = np.unique(np.geomspace(1, rows.shape[1], POINTS).astype(int))
    shown = rows[:, count - 1]
    mean = shown.mean(axis=0)
    band = NORMAL_QUANTILE * shown.std(axis=0) / np.sqrt(len(shown))
    (line,) = panel.plot(count, mean, label=contender, linewidth=1.2)
    panel.fill_between(count, mean - band, mean + band, color=line.get_color(), alpha=0.15, linewidth=0)
