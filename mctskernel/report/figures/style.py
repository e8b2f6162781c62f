"""The runs of a figure, and its look: paper columns, colours for any colour vision, fonts that publishers accept."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mctskernel.core.evaluation import Outcome
from mctskernel.report.comparison import ComparedRun, Ground
from mctskernel.report.document import QUARANTINED, Document, view_document
from mctskernel.tree.trajectory import run_seconds


@dataclass(frozen=True)
class PlottedRun:
    """A run with a short name, and the name of its side where several runs share a line."""

    run: ComparedRun
    name: str
    side: str

    @cached_property
    def document(self) -> Document:
        """The view model of the run. Raises JournalError."""
        return view_document(self.run.view)


def by_ground(runs: Sequence[PlottedRun]) -> list[tuple[str, list[PlottedRun]]]:
    """Groups of runs whose times may be compared, each with a title; a group shares a panel."""
    found: dict[Ground, list[PlottedRun]] = {}
    for run in runs:
        found.setdefault(run.run.ground, []).append(run)
    devices = len({ground.device for ground in found})
    return [
        (f"{each[0].run.task}\n{each[0].run.device}" if devices > 1 else each[0].run.task, each)
        for each in found.values()
    ]


def start_factors(runs: Sequence[PlottedRun]) -> dict[str, float]:
    """Factors, by name, that turn speed-ups into speed-ups over the first run's starting kernel."""
    first = runs[0].run
    start = run_seconds(first.start) if first.start else None
    factors = {}
    for each in runs:
        own = run_seconds(each.run.start) if each.run.start else None
        same = each.run.starting_kernel == first.starting_kernel
        factors[each.name] = start / own if start and own and not same else 1.0
    return factors


COLUMN_INCHES = {1: 3.35, 2: 7.0}
"""Widths of figures: one of two columns (85 mm), and both (178 mm)."""

DPI = 300
"""Of a PNG."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, BLACK, GREY = "#56B4E9", "#E69F00", "#000000", "#8c8c8c"
"""Okabe and Ito, "Color Universal Design", 2008: distinct with any kind of colour blindness."""

SERIES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, BLACK)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
"""Dash patterns, so that lines differ in more than colour."""

SPEED_COLOURS = "viridis"
"""The colour map of speed-ups, which is also readable in grey."""

HALO = [withStroke(linewidth=1.6, foreground="white")]
"""A white outline, which keeps small text readable over lines."""


class Mark(NamedTuple):
    """How an outcome is drawn: marker and colour."""

    marker: str
    colour: str


MARKS: Mapping[str, Mark] = {
    Outcome.OK: Mark("o", BLUE),
    Outcome.BUILD_ERROR: Mark("x", ORANGE),
    Outcome.LAUNCH_ERROR: Mark("+", AMBER),
    Outcome.WRONG_RESULT: Mark("v", PURPLE),
    Outcome.RACE: Mark("<", SKY),
    Outcome.TIMEOUT: Mark("s", GREY),
    Outcome.CRASH: Mark("X", BLACK),
    Outcome.REJECTED: Mark("D", GREEN),
    Outcome.UNVERIFIABLE: Mark("d", GREY),
    Outcome.DUPLICATE: Mark(".", GREY),
    QUARANTINED: Mark("*", AMBER),
}
"""Marks by outcome."""


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw and save in the style of a paper within the block."""
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # Titles of edits may be in any script; missing glyphs are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


_SETTINGS: Any = {
    # It comes with matplotlib, so a figure looks the same everywhere.
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#d9d9d9",
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    # TrueType: publishers refuse Type 3, and text stays searchable.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    # Outlines, because the reader may lack the font.
    "svg.fonttype": "path",
    "svg.hashsalt": "mctskernel",
    # Titles are untrusted text, in which a dollar is a dollar.
    "text.parse_math": False,
    "text.usetex": False,
}


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file's suffix; the same figure gives the same bytes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata=_UNDATED.get(path.suffix, {}))


_UNDATED: Mapping[str, dict[str, Any]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
}


def plain(text: str, most: int = 0) -> str:
    """Untrusted text on one line, cut with an ellipsis after `most` characters if that is given."""
    line = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split())
    )
    return f"{line[: most - 1].rstrip()}…" if most and len(line) > most else line


def times_axis(axis: Axis, low: float, high: float) -> None:
    """Ticks such as `2x` on a logarithmic axis of ratios."""
    if high / low > 2.5:
        # The multiples of powers of ten that get a tick.
        subs = (1.0, 2.0, 5.0) if high / low < 30 else (1.0, 3.0) if high / low < 1000 else (1.0,)
        axis.set_major_locator(LogLocator(10, subs=subs, numticks=12))
    else:
        axis.set_major_locator(MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}\u00d7"))


def legend_columns(figure: Figure, labels: Collection[str]) -> int:
    """The number of legend entries that fit side by side."""
    entry_inches = 0.45 + 0.058 * max(map(len, labels))
    return max(1, min(len(labels), int(figure.get_figwidth() / entry_inches)))
