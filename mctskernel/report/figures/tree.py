"""The search tree: colour by speed-up, shape by outcome, size by visits, with the nodes of the best path numbered."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from mctskernel.core.evaluation import Outcome
from mctskernel.profiling.quantities import time_text
from mctskernel.report.document import Document, NodeRow
from mctskernel.report.figures.style import (
    BLACK,
    GREY,
    HALO,
    MARKS,
    ORANGE,
    SPEED_COLOURS,
    PlottedRun,
    legend_columns,
    plain,
    times_axis,
)
from mctskernel.run import RunError

LEVEL_INCHES, MOST_INCHES = 0.36, 3.0
SMALLEST, LARGEST = 6.0, 60.0
"""Areas of markers, in square points."""

_STROKES = ("x", "+")
"""Markers that are not filled."""


def draw_tree(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """The tree of one run, and the edits of the best path below it."""
    if len(runs) != 1:
        raise RunError(f"A tree shows one run, not {len(runs)}: name a single one.")
    (run,) = runs
    document = run.document
    if not document.nodes:
        raise RunError(f"{run.run.name} holds no evaluation yet.")
    width = figure.get_figwidth()
    legend = _path_lines(document, letters=int(width * 18.5))
    levels = max(node.depth for node in document.nodes) + 1
    text_inches = 0.135 * len(legend) + 0.1
    picture_inches = min(MOST_INCHES, max(1.2, LEVEL_INCHES * levels)) + 0.5
    figure.set_figheight(picture_inches + text_inches)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(picture_inches, text_inches))
    picture, caption = parts[:, 0]
    _draw(picture, document)
    caption.text(0.02, 1, "\n".join(legend), va="top", fontsize=6.5, linespacing=1.35)


def layout(nodes: Sequence[NodeRow]) -> Mapping[int, float]:
    """The horizontal position of each node: leaves one after another, parents in the middle of their children.

    Source: Wetherell and Shannon, "Tidy drawings of trees", 1979.
    """
    children: dict[int, list[int]] = {node.id: [] for node in nodes}
    for node in nodes:
        if node.parent is not None:
            children[node.parent].append(node.id)
    places: dict[int, float] = {}
    leaves = 0
    waiting = [(0, False)]
    while waiting:
        number, is_done = waiting.pop()
        if not children[number]:
            places[number] = float(leaves)
            leaves += 1
        elif is_done:
            places[number] = (places[children[number][0]] + places[children[number][-1]]) / 2
        else:
            waiting.append((number, True))
            waiting += [(child, False) for child in reversed(children[number])]
    return places


def _draw(figure: SubFigure, document: Document) -> None:
    axes = figure.subplots()
    nodes, places = document.nodes, layout(document.nodes)
    best = set(document.best_path)
    points = {node.id: (places[node.id], -node.depth) for node in nodes}
    edges = [(points[node.parent], points[node.id]) for node in nodes if node.parent is not None]
    axes.add_collection(LineCollection(edges, colors="#bdbdbd", linewidths=0.5, zorder=1))
    path = [points[number] for number in document.best_path]
    if path:
        axes.plot(*zip(*path, strict=True), color=ORANGE, linewidth=1.6, zorder=2)
    speedups = [node.speedup for node in nodes if node.speedup and _state(node) == Outcome.OK]
    # Most kernels are nearly as fast as the best, so the slowest tenth shares a colour.
    low, high = (float(np.quantile(speedups, 0.1)), max(speedups)) if speedups else (1.0, 1.0)
    norm = LogNorm(low, high if high > low else low * 1.01)
    colours = mpl.colormaps[SPEED_COLOURS]
    sizes = _sizes(nodes)
    timed = {node.id for node in nodes if node.speedup and _state(node) == Outcome.OK}
    for state, is_best in dict.fromkeys((_state(node), node.id in best) for node in nodes):
        mark = MARKS[state]
        shown = [node for node in nodes if (_state(node), node.id in best) == (state, is_best)]
        filled = mark.marker not in _STROKES
        axes.scatter(
            [places[node.id] for node in shown],
            [-node.depth for node in shown],
            s=[max(sizes[node.id], 16.0 * is_best) if node.id in timed else 9.0 for node in shown],
            marker=mark.marker,
            c=[colours(norm(node.speedup or low)) if node.id in timed else mark.colour for node in shown],
            edgecolors=(ORANGE if is_best else "white") if filled else None,
            linewidths=1.0 if is_best else 0.3 if filled else 0.7,
            zorder=4 if is_best else 3,
        )
    for number in document.best_path:
        axes.annotate(
            str(number),
            points[number],
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=6.5,
            color=BLACK,
            path_effects=HALO,
            zorder=5,
        )
    _finish(figure, axes, nodes, norm)


def _finish(figure: SubFigure, axes: Axes, nodes: Sequence[NodeRow], norm: LogNorm) -> None:
    axes.margins(0.02, 0.12)
    axes.grid(visible=False)
    axes.set_xticks([])
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)
    depth = max(node.depth for node in nodes)
    step = max(1, math.ceil(depth / 8))
    axes.set_yticks(
        [-level for level in range(0, depth + 1, step)], [str(level) for level in range(0, depth + 1, step)]
    )
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("edits from the start")
    bar = figure.colorbar(
        mpl.cm.ScalarMappable(norm, SPEED_COLOURS), ax=axes, shrink=0.8, aspect=18, pad=0.01, extend="min"
    )
    bar.outline.set_visible(False)
    bar.set_label("speed-up")
    times_axis(bar.ax.yaxis, norm.vmin or 1.0, norm.vmax or 1.0)
    states = dict.fromkeys(map(_state, nodes))
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=MARKS[state].marker,
            color=GREY if state == Outcome.OK else MARKS[state].colour,
            markersize=4,
            label=state,
        )
        for state in states
        if state in MARKS
    ]
    handles.append(Line2D([], [], color=ORANGE, linewidth=1.6, label="best path"))
    columns = legend_columns(figure.get_figure(root=True), [str(each.get_label()) for each in handles])
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def _state(node: NodeRow) -> str:
    """The outcome as it is drawn; a node in flight looks like a duplicate, which no node is."""
    return node.state or str(Outcome.DUPLICATE)


def _sizes(nodes: Sequence[NodeRow]) -> Mapping[int, float]:
    most = max((node.visits for node in nodes), default=1)
    crowding = min(1.0, 60 / len(nodes)) ** 0.5
    return {
        node.id: crowding * (SMALLEST + (LARGEST - SMALLEST) * math.sqrt(node.visits / max(most, 1)))
        for node in nodes
    }


def _path_lines(document: Document, letters: int) -> list[str]:
    """The best path in words, at most two lines per edit: node, time, gain and title."""
    rows = {node.id: node for node in document.nodes}
    lines: list[str] = []
    for number in document.best_path:
        row = rows[number]
        time = f"{time_text(row.seconds, 3)}, " if row.seconds else ""
        gain = f"{row.gain:.2f}\u00d7, " if row.gain else ""
        text = f"{number}: {time}{gain}{plain(row.title)}"
        lines += textwrap.wrap(text, letters, subsequent_indent="     ", max_lines=2, placeholder=" \u2026")
    return lines
