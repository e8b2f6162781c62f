"""How figures look: sizes of paper columns, colours that everybody tells apart, and fonts that a publisher takes."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from mctskernel.core.evaluation import Outcome
from mctskernel.report.failures import QUARANTINED

COLUMN_INCHES = {1: 3.35, 2: 7.0}
"""Widths of figures: one column of two (85 mm), and both (178 mm)."""

DPI = 300
FONT = "DejaVu Sans"
"""It comes with matplotlib, so that a figure looks the same everywhere."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, BLACK, GREY = "#56B4E9", "#E69F00", "#000000", "#8c8c8c"
"""Okabe and Ito, "Color Universal Design", 2008: told apart with any kind of colour blindness."""

SERIES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, BLACK)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
"""Lines differ in more than colour."""

SPEED_COLOURS = "viridis"
"""Of speed-ups: it grows lighter evenly, so that it can be read in grey."""


HALO = [withStroke(linewidth=1.6, foreground="white")]
"""Around small text, which stays readable over lines."""


class FontError(ValueError):
    """A font that isn't installed; the message is a sentence that names it."""


class Mark(NamedTuple):
    """How an outcome is drawn: marker, colour, and hatching of an area."""

    marker: str
    colour: str
    hatch: str


MARKS: Mapping[str, Mark] = {
    Outcome.OK: Mark("o", BLUE, ""),
    Outcome.BUILD_ERROR: Mark("x", ORANGE, "////"),
    Outcome.LAUNCH_ERROR: Mark("+", AMBER, "...."),
    Outcome.WRONG_RESULT: Mark("v", PURPLE, "xxxx"),
    Outcome.RACE: Mark("<", SKY, "||||"),
    Outcome.TIMEOUT: Mark("s", GREY, "----"),
    Outcome.CRASH: Mark("X", BLACK, "++++"),
    Outcome.REJECTED: Mark("D", GREEN, "oo"),
    Outcome.DUPLICATE: Mark(".", GREY, ""),
    QUARANTINED: Mark("*", AMBER, "**"),
}
"""By outcome, and of times that are not believed."""


@contextmanager
def paper_style(font: str = FONT) -> Iterator[None]:
    """What is drawn and saved within looks as a paper wants it. Raises FontError for a font that isn't installed."""
    try:
        findfont(font, fallback_to_default=False)
    except ValueError as error:
        raise FontError(f"matplotlib finds no font '{font}'.") from error
    settings: Any = _SETTINGS | {"font.family": font}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # Titles of edits may be in any language; what a font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


_SETTINGS: dict[str, Any] = {
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
    "hatch.linewidth": 0.5,
    # TrueType outlines: publishers refuse Type 3, and text can still be searched for.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    # Outlines, because whoever opens it may lack the font.
    "svg.fonttype": "path",
    "svg.hashsalt": "mctskernel",
    # Titles come from outside, and a dollar in one is a dollar.
    "text.parse_math": False,
    "text.usetex": False,
}


def save(figure: Figure, path: Path, dpi: int = DPI) -> None:
    """Write the figure in the format of the file's suffix; the same figure gives the same bytes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, metadata=_UNDATED.get(path.suffix, {}))


_UNDATED: Mapping[str, dict[str, Any]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
}


def plain(text: str, most: int = 0) -> str:
    """A text from outside on one line, with an ellipsis where it is longer than `most` letters, if that is given."""
    line = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split())
    )
    return f"{line[: most - 1].rstrip()}…" if most and len(line) > most else line


def times_axis(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis of ratios, as `2x`: few enough to read, and enough to tell what is between."""
    if high / low > 2.5:
        axis.set_major_locator(LogLocator(10, subs=_subs(high / low), numticks=12))
    else:
        axis.set_major_locator(MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}\u00d7"))


def _subs(ratio: float) -> tuple[float, ...]:
    """The multiples of powers of ten that have a tick."""
    return (1.0, 2.0, 5.0) if ratio < 30 else (1.0, 3.0) if ratio < 1000 else (1.0,)


def powers_axis(axis: Axis) -> None:
    """Ticks of a logarithmic axis whose limits are set, written out."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=_subs(high / low), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_columns(figure: Figure, labels: Collection[str]) -> int:
    """How many entries of a legend fit side by side."""
    entry_inches = 0.45 + 0.058 * max(map(len, labels))
    return max(1, min(len(labels), int(figure.get_figwidth() / entry_inches)))


def whole_grid(axes: Axes, *, x: bool = True, y: bool = True) -> None:
    """Lines across the plot for the axes that have numbers."""
    axes.grid(visible=False)
    for wanted, name in ((x, "x"), (y, "y")):
        if wanted:
            axes.grid(visible=True, axis=name)  # type: ignore[arg-type]
