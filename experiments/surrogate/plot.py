"""The surrogate study as a picture; it needs matplotlib, which is the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mctskernel.experiments.surrogate.accuracy import LEVELS, pooled
from mctskernel.experiments.surrogate.document import Study
from mctskernel.experiments.surrogate.worth import worth

SIZE = (10.5, 3.4)
"""Inches."""


def draw(study: Study, out: Path) -> None:
    """Modelled against measured times; stated against observed coverage; evaluations saved by each way to search."""
    mpl.rcParams.update({"svg.hashsalt": "mctskernel", "svg.fonttype": "none", "font.size": 8})
    figure = Figure(figsize=SIZE, layout="constrained")
    times, reliability, saved = figure.subplots(1, 3)
    _times(times, study)
    _reliability(reliability, study)
    _saved(saved, study)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def _times(panel: Axes, study: Study) -> None:
    for each in study.accuracy:
        measured, modelled = zip(*each.points, strict=True)
        panel.plot(measured, modelled, ".", markersize=2, alpha=0.5)
    _diagonal(panel, [value for each in study.accuracy for point in each.points for value in point])
    panel.set(xscale="log", yscale="log", xlabel="measured, us", ylabel="modelled, us", title="times")


def _reliability(panel: Axes, study: Study) -> None:
    coverage = pooled(study.accuracy).coverage
    panel.plot(LEVELS, [each.mean for each in coverage], linewidth=1.2)
    panel.fill_between(LEVELS, [each.low for each in coverage], [each.high for each in coverage], alpha=0.2)
    _diagonal(panel, (0, 1))
    panel.set(xlabel="stated probability", ylabel="pairs in the interval", title="intervals of ratios")


def _saved(panel: Axes, study: Study) -> None:
    found = [each for each in worth(study.replays, {}) if each.contender != "off"] if study.replays else []
    places = np.arange(len(found))
    for place, each in zip(places, found, strict=True):
        ratio = each.saved[0].ratio
        panel.plot([ratio.low, ratio.high], [place, place], color="C0", linewidth=1.2)
        panel.plot(ratio.mean, place, "o", color="C0", markersize=4)
    panel.axvline(1, color="0.6", linewidth=0.8)
    panel.set(
        yticks=places,
        yticklabels=[each.contender for each in found],
        xlabel="times fewer evaluations to within 5 %",
        title="searches",
    )
    panel.invert_yaxis()


def _diagonal(panel: Axes, values: Sequence[float]) -> None:
    ends = [min(values), max(values)]
    panel.plot(ends, ends, color="0.6", linewidth=0.8)
