"""`mctskernel plot RUN...`: figures for papers."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import echo
from mctskernel.report.compared_run import find_runs
from mctskernel.report.figures import FIGURES

SUFFIXES = (".pdf", ".svg", ".png")


def _list(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's
    if wanted and not context.resilient_parsing:
        for name, shows in FIGURES.items():
            echo(f"{name:12} {shows}")
        context.exit()


@click.command()
@click.argument("sides", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--figure", required=True, type=click.Choice(list(FIGURES)), help="What to draw.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file, whose suffix says the format: .pdf, .svg or .png.",
)
@click.option(
    "--columns",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Columns of a two-column paper that it is to fill: 85 or 178 mm.",
)
@click.option("--font", default="DejaVu Sans", show_default=True, help="A font that matplotlib finds.")
@click.option(
    "--dpi", type=click.IntRange(72, 1200), default=300, show_default=True, help="Dots an inch of a PNG."
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="List the figures and stop.",
)
def plot(sides: tuple[Path, ...], *, figure: str, out: Path, columns: int, font: str, dpi: int) -> None:
    """Draw a figure of runs for a paper.

    Each RUN is a run, or a folder of runs, whose mean is drawn with its interval. Colours are told apart with any kind
    of colour blindness and lines differ in their dashes too; a PDF embeds its fonts as TrueType. Nothing but a run's
    folder is needed. Needs matplotlib: `pip install "mctskernel[plots]"`.

        mctskernel plot --list

        mctskernel plot RUN --figure tree --columns 2 -o tree.pdf

        mctskernel plot runs/edit-model runs/mcts --figure evaluations -o progress.pdf
    """
    if out.suffix not in SUFFIXES:
        raise click.BadParameter(f"'{out}' ends in none of {', '.join(SUFFIXES)}.", param_hint="-o")
    runs = [run for side in dict.fromkeys(sides) for run in find_runs(side)]
    try:
        from mctskernel.report.figures.drawing import Look, draw  # noqa: PLC0415 - an extra
        from mctskernel.report.figures.style import FontError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        echo(f'mctskernel: {error.name} is missing: pip install "mctskernel[plots]"', err=True)
        sys.exit(BAD_MACHINE)
    try:
        draw(figure, runs, out, Look(columns, dpi, font))
    except FontError as error:
        raise click.BadParameter(str(error), param_hint="--font") from error
    except OSError as error:
        raise click.BadParameter(f"{out} can't be written: {error.strerror}.", param_hint="-o") from error
