"""The plot of an ablation; it needs matplotlib, the extra `plots`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mctskernel.core.resampling import estimate
from mctskernel.experiments.ablation.statistics import grouped, statistics
from mctskernel.experiments.ablation.sweep import Results
from mctskernel.experiments.ablation.tables import words_of
from mctskernel.report.figures import UNDATED

SIZE = (9.0, 3.6)  # inches
POINTS = 30  # of a curve, at the most


def plot(results: Results, *files: Path) -> None:
    """Draw mean scores with bootstrap bands, and differences from the baseline; SVGs are reproducible byte for byte."""
    with mpl.rc_context({"svg.hashsalt": "mctskernel", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=SIZE, layout="constrained")
        curves, effects = figure.subplots(1, 2, width_ratios=(3, 2))
        _curves(curves, results)
        _effects(effects, results)
        figure.suptitle(results.title)
        for file in files:
            figure.savefig(file, metadata=UNDATED.get(file.suffix))


def _curves(panel: Axes, results: Results) -> None:
    longest, words = results.checkpoints[-1], words_of(results)
    counts = np.unique(np.geomspace(1, longest, POINTS).astype(int))
    for arm in results.arms:
        found = grouped(trial for trial in results.trials if trial.arm == arm.name)
        if not found:
            continue
        known = [
            estimate([np.array([trial.after(at) for trial in each]) for each in found.values()])
            for at in counts.tolist()
        ]
        mean, low, high = (
            [words.value(getattr(each, name)) for each in known] for name in ("mean", "low", "high")
        )
        (line,) = panel.plot(counts, mean, label=arm.name, linewidth=1.2)
        panel.fill_between(counts, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    panel.set(xlabel="evaluations", ylabel=words.mean, xlim=(1, max(longest, 2)))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(visible=True, alpha=0.3)
    panel.legend(frameon=False)


def _effects(panel: Axes, results: Results) -> None:
    """Draw the differences after the last checkpoint, the first arm on top, with their intervals."""
    words, last = words_of(results), results.checkpoints[-1]
    shown = [each for each in statistics(results).comparisons if each.at == last][::-1]
    for place, each in enumerate(shown):
        if each.low is not None and each.high is not None:
            ends = words.difference_value(each.low), words.difference_value(each.high)
            panel.plot(ends, (place, place), color="C0", linewidth=1.5)
        panel.plot(words.difference_value(each.difference), place, "o", color="C0", markersize=4)
    panel.axvline(words.difference_value(0.0), color="grey", linewidth=0.8)
    panel.set_yticks(range(len(shown)), [each.arm for each in shown])
    panel.set_xlabel(f"{words.difference} from {results.baseline} after {last}")
    panel.margins(y=0.15)
    panel.grid(visible=True, axis="x", alpha=0.3)
