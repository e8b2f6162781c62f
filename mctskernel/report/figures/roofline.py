"""The roofline of a run with its best path: of arithmetic where the task gives its operations, or of instructions.

Sources: Williams, Waterman and Patterson, "Roofline", 2009; Ding and Williams, "An Instruction Roofline Model for
GPUs", 2019, on which every kernel has a place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mctskernel.core.task import Array
from mctskernel.profiling.architecture import Architecture
from mctskernel.profiling.ceilings import architecture_ceilings
from mctskernel.profiling.counters import DRAM_BYTES, INSTRUCTIONS
from mctskernel.profiling.diagnosis import SECTOR_BYTES
from mctskernel.report.figures.style import BLACK, BLUE, HALO, ORANGE, PlottedRun, powers_axis, the_only
from mctskernel.report.roofline import described_gpu
from mctskernel.report.view import View
from mctskernel.run import RunError

LABEL_INCHES = 0.11
"""The width of a node's label."""


@dataclass(frozen=True)
class _Point:
    """A kernel: FLOP per byte and TFLOP/s, or instructions per sector and 10^9 instructions per second."""

    node: int
    intensity: float
    rate: float


@dataclass(frozen=True)
class _Chart:
    """`slope` is the DRAM bandwidth in units of rate over intensity; `ceilings` are rates."""

    points: tuple[_Point, ...]
    slope: float
    slope_name: str
    ceilings: dict[str, float]
    x: str
    y: str


def draw_roofline(figure: Figure, runs: Sequence[PlottedRun]) -> None:
    """The kernels of one run under the ceilings of its GPU. Raises RunError without counters."""
    run = the_only(runs, "A roofline")
    chart = _chart(run)
    figure.set_figheight(max(2.6, 0.45 * figure.get_figwidth()))
    axes = figure.subplots()
    _roof(axes, chart)
    path = set(run.document.best_path)
    others = [point for point in chart.points if point.node not in path]
    axes.plot(
        [point.intensity for point in others],
        [point.rate for point in others],
        "o",
        color=BLUE,
        alpha=0.35,
        markeredgewidth=0,
        markersize=3,
        label="kernel",
        zorder=3,
    )
    _path(axes, [point for point in chart.points if point.node in path])
    axes.legend(loc="lower right", handlelength=1.4)


def _chart(run: PlottedRun) -> _Chart:
    gpu, name = _gpu(run.run.view), run.run.name
    memory = f"DRAM {gpu.memory.dram_bytes_per_second / 1e12:.3g} TB/s"
    found = run.document.roofline
    if found is not None and found.flops:
        ceilings = architecture_ceilings(gpu)
        flops = found.flops / 1e12
        return _Chart(
            tuple(
                _Point(each.node, 1e12 * flops / each.dram_bytes, flops / each.seconds)
                for each in found.points
            ),
            ceilings.copy_bytes_per_second / 1e12,
            memory,
            {
                "FP32 {rate:,.1f} TFLOP/s": ceilings.fp32_flops_per_second / 1e12,
                "tensor cores {rate:,.0f} TFLOP/s": ceilings.tensor_flops_per_second / 1e12,
            },
            "FLOP per byte of DRAM",
            "TFLOP/s",
        )
    points = tuple(_instructions(run.run.view))
    if not points:
        raise RunError(
            f"{name} has no counters: a roofline needs DRAM bytes and instructions of its kernels."
        )
    cycles = gpu.chip.sms * gpu.chip.clock_hz / 1e9
    return _Chart(
        points,
        gpu.memory.dram_bytes_per_second / SECTOR_BYTES / 1e9,
        memory,
        {"issue slots": gpu.chip.schedulers * cycles},
        "warp instructions per 32 B of DRAM",
        "10\u2079 warp instructions per second",
    )


def _instructions(view: View) -> list[_Point]:
    points = []
    for node in view.tree.nodes:
        evaluation = node.evaluation
        if evaluation is None or not evaluation.ok or evaluation.quarantine or not evaluation.timings:
            continue
        counters, seconds = evaluation.counters, evaluation.timings[0].seconds
        sectors, count = counters.get(DRAM_BYTES, 0.0) / SECTOR_BYTES, counters.get(INSTRUCTIONS, 0.0)
        if sectors and count:
            points.append(_Point(node.id, count / sectors, count / seconds / 1e9))
    return points


def _gpu(view: View) -> Architecture:
    gpu = described_gpu(view)
    if gpu is None:
        name = view.manifest.fingerprint.get("gpu", "an unknown GPU")
        raise RunError(f"{view.folder.path} was timed on {name}, which has no architecture description.")
    return gpu


def _roof(axes: Axes, chart: _Chart) -> None:
    x = np.array([point.intensity for point in chart.points])
    y = np.array([point.rate for point in chart.points])
    shown = [rate for rate in chart.ceilings.values() if rate < 60 * y.max()] or [
        min(chart.ceilings.values())
    ]
    left, right = x.min() / 3, max(x.max() * 3, 3 * min(chart.ceilings.values()) / chart.slope)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(y.min() / 3, max(shown) * 2.2)
    powers_axis(axes.xaxis)
    powers_axis(axes.yaxis)
    bend = min(right, max(shown) / chart.slope)
    axes.plot([left, bend], [left * chart.slope, bend * chart.slope], color=BLACK, linewidth=1.0, zorder=2)
    for name, rate in chart.ceilings.items():
        if rate in shown:
            axes.plot([rate / chart.slope, right], [rate, rate], color=BLACK, linewidth=1.0, zorder=2)
            axes.annotate(
                name.format(rate=rate),
                (right, rate),
                xytext=(-2, 2),
                textcoords="offset points",
                ha="right",
                fontsize=6.5,
            )
    _slope_label(axes, chart, left, bend)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)


def _slope_label(axes: Axes, chart: _Chart, left: float, bend: float) -> None:
    """Label the slanted line in the middle of its visible part."""
    low = max(left, axes.get_ylim()[0] / chart.slope)
    place = (low * bend) ** 0.5
    axes.text(
        place,
        place * chart.slope,
        chart.slope_name,
        rotation=math.degrees(math.atan(chart.slope)),
        rotation_mode="anchor",
        transform_rotates_text=True,
        ha="center",
        va="bottom",
        fontsize=6.5,
    )


def _path(axes: Axes, path: Sequence[_Point]) -> None:
    if not path:
        return
    x, y = [point.intensity for point in path], [point.rate for point in path]
    axes.plot(
        x,
        y,
        "-o",
        color=ORANGE,
        markeredgecolor="white",
        markeredgewidth=0.5,
        markersize=5,
        zorder=4,
        label="best path",
    )
    for point in _apart(axes, path):
        axes.annotate(
            str(point.node),
            (point.intensity, point.rate),
            xytext=(5, -7),
            textcoords="offset points",
            fontsize=6.5,
            color=BLACK,
            path_effects=HALO,
        )


def _apart(axes: Axes, path: Sequence[_Point]) -> list[_Point]:
    """Points whose labels don't overlap; the last and the first take precedence."""
    shown: dict[_Point, Array] = {}
    for point in (path[-1], *path[:-1]):
        place = axes.transData.transform((point.intensity, point.rate)) / axes.figure.dpi
        if all(abs(place - other).max() > LABEL_INCHES for other in shown.values()):
            shown[point] = place
    return list(shown)
