"""`mctskernel report RUN`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import echo
from mctskernel.report.page import report_page
from mctskernel.report.view import load_view
from mctskernel.run import write_text


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write. [default: best/report.html in RUN]",
)
def report(*, run: Path, out: Path | None) -> None:
    """Write RUN as one HTML file that needs nothing else.

    The file shows the tree, with everything about each node, and replays how it grew; the best path, the best so far,
    the roofline, failures, and which kinds of edit gained.

        mctskernel report RUN
    """
    view = load_view(run)
    path = out or view.folder.best / "report.html"
    write_text(path, report_page(view))
    echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
