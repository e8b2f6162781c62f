"""The plot of an ablation; it needs matplotlib, the extra `plots`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mctskernel.experiments.ablation.statistics import grouped, statistics
from mctskernel.experiments.ablation.sweep import Results
from mctskernel.experiments.ablation.tables import words_of
from mctskernel.report.resampling import estimate

SIZE = (9.0, 3.6)
"""Inches."""

POINTS = 30
"""Of a curve, at the most."""


Effect: TypeAlias = tuple[str, float, float | None, float | None]
"""A name, a value, and the ends of its interval, where there is one."""


def plot(results: Results, *files: Path) -> None:
    """Draw curves of the mean score with bootstrap bands, and the differences from the baseline, as SVG, PDF or PNG.

    The same results make the same bytes of SVG.
    """
    with _saved(SIZE, *files) as figure:
        curves, effects = figure.subplots(1, 2, width_ratios=(3, 2))
        _curves(curves, results)
        _effects(effects, results)
        figure.suptitle(results.title)


def plot_effects(effects: Sequence[Effect], words: str, neutral: float, file: Path) -> None:
    """Draw a forest plot of effects with their intervals, the first on top, beside a line at `neutral`."""
    with _saved((5.0, 1.0 + 0.3 * len(effects)), file) as figure:
        _forest(figure.subplots(), effects, words, neutral)


@contextmanager
def _saved(size: tuple[float, float], *files: Path) -> Iterator[Figure]:
    with mpl.rc_context({"svg.hashsalt": "mctskernel", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        for file in files:
            figure.savefig(file, metadata=UNDATED.get(file.suffix))


UNDATED: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""What would make two files of the same plot differ."""


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
    """Draw the differences after the last checkpoint."""
    words, last = words_of(results), results.checkpoints[-1]
    shown = [
        (
            each.arm,
            words.difference_value(each.difference),
            None if each.low is None else words.difference_value(each.low),
            None if each.high is None else words.difference_value(each.high),
        )
        for each in statistics(results).comparisons
        if each.at == last
    ]
    title = f"{words.difference} from {results.baseline} after {last}"
    _forest(panel, shown, title, words.difference_value(0.0))


def _forest(panel: Axes, effects: Sequence[Effect], words: str, neutral: float) -> None:
    for place, (_, value, low, high) in enumerate(reversed(effects)):
        if low is not None and high is not None:
            panel.plot((low, high), (place, place), color="C0", linewidth=1.5)
        panel.plot(value, place, "o", color="C0", markersize=4)
    panel.axvline(neutral, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(effects)), [name for name, *_ in reversed(effects)])
    panel.set_xlabel(words)
    panel.margins(y=0.15)
    panel.grid(visible=True, axis="x", alpha=0.3)
