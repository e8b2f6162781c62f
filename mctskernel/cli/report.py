"""`mctskernel report RUN...`: a run as one HTML file, or a figure of runs for a paper."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import echo
from mctskernel.report.comparison import find_runs
from mctskernel.report.figures import FIGURES, draw
from mctskernel.report.page import report_page
from mctskernel.report.view import load_view
from mctskernel.run import write_text

SUFFIXES = (".pdf", ".svg", ".png")


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=options.PATH)
@click.option(
    "-o",
    "--out",
    type=options.FILE,
    help="The file to write; a figure's suffix is .pdf, .svg or .png. [default: best/report.html in RUN]",
)
@click.option(
    "--figure",
    type=click.Choice(list(FIGURES)),
    help=f"Draw a figure instead: {'; '.join(f'{name}, {shows}' for name, shows in FIGURES.items())}.",
)
@click.option(
    "--columns",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Width of a figure in columns of a two-column paper, 85 or 178 mm.",
)
def report(*, runs: tuple[Path, ...], out: Path | None, figure: str | None, columns: int) -> None:
    """Write RUN as one HTML file that needs nothing else, or draw a figure of runs.

    The file shows the tree, with everything about each node, and replays how it grew; the best path, the best so far,
    the roofline, failures, and which kinds of edit gained.

    With --figure each RUN is a run, or a folder of runs, whose mean is drawn with its interval; a PDF embeds its fonts.
    Needs matplotlib: `pip install "mctskernel[plots]"`.

        mctskernel report RUN

        mctskernel report runs/mcts runs/greedy --figure evaluations -o progress.pdf
    """
    if figure is not None:
        if out is None:
            raise click.UsageError("A figure needs -o FILE.")
        _draw(runs, figure, out, columns)
        return
    if len(runs) > 1:
        raise click.UsageError("A page shows one RUN; several are for --figure, or for `mctskernel compare`.")
    view = load_view(runs[0])
    path = out or view.folder.best / "report.html"
    write_text(path, report_page(view))
    echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


def _draw(sides: tuple[Path, ...], figure: str, out: Path, columns: int) -> None:
    if out.suffix not in SUFFIXES:
        raise click.BadParameter(f"'{out}' ends in none of {', '.join(SUFFIXES)}.", param_hint="-o")
    found = [run for side in dict.fromkeys(sides) for run in find_runs(side)]
    try:
        draw(figure, found, out, columns)
    except ModuleNotFoundError as error:
        echo(f'mctskernel: {error.name} is missing: pip install "mctskernel[plots]"', err=True)
        sys.exit(BAD_MACHINE)
    except OSError as error:
        raise click.BadParameter(f"{out} can't be written: {error.strerror}.", param_hint="-o") from error
