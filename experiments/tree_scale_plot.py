"""The plot of what the engine costs; it needs matplotlib, which is the extra `plots`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from mctskernel.experiments.tree_scale import Report


def draw(report: Report, out: Path) -> None:
    """Cost of an iteration against size, a line for each tree."""
    mpl.rcParams.update({"svg.hashsalt": "mctskernel", "svg.fonttype": "none", "font.size": 8})
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for scale in report.scales:
        sizes = [cost.nodes for cost in scale.costs]
        axes.plot(sizes, [cost.asking_and_telling for cost in scale.costs], marker=".", label=scale.tree)
    axes.axhline(0.2, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="evaluated nodes", ylabel="ms an iteration, without storing")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
