"""`mctskernel memory`: what earlier runs taught: show it, and remember more runs."""

from __future__ import annotations

import math
from pathlib import Path

import rich_click as click
from rich.table import Table

from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.memory import Remembered, default_path, encode_snapshot, recall
from mctskernel.run import open_run
from mctskernel.run.search import remember as remember_run_folder

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=default_path,
    show_default="the user's own",
    help="The memory.",
)


@click.group()
def memory() -> None:
    """Manage what earlier runs taught about kinds of edits, for `mctskernel search --memory on`.

    A kind of edit is a category and a title without numbers and the task's own names. It is remembered with the
    language, architecture and bottleneck of the kernel; measured and modelled gains are kept apart. A memory is a
    folder with a file for each run: delete the file to forget the run.
    """


@memory.command()
@_folder
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which `search --memory FILE.json` takes.")
def show(*, folder: Path, as_json: bool) -> None:
    """List what is remembered, the most tried first."""
    found = recall(folder)
    if as_json:
        deliver(encode_snapshot(found))
    else:
        PlainConsole().print(_table_of_kinds(found) if found else f"Nothing is remembered in {folder}.")


@memory.command()
@_folder
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
def remember(folder: Path, runs: tuple[Path, ...]) -> None:
    """Add finished or interrupted RUNs, or replace what is remembered of them."""
    for run in runs:
        tried = remember_run_folder(folder, open_run(run))
        echo(f"{run}: {tried} edits" if tried else f"{run}: nothing that holds for other kernels")


def _table_of_kinds(found: tuple[Remembered, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("edit", "category", "bottleneck", "kernels", "numbers"):
        table.add_column(heading)
    for heading in ("tried", "improved", "failed", "mean gain"):
        table.add_column(heading, justify="right")
    for each in found:
        what = each.experience
        valid = what.tried > what.failed
        table.add_row(
            what.title,
            what.category,
            what.bottleneck or "unknown",
            f"{what.language}, {what.architecture}",
            each.source.value,
            str(what.tried),
            str(what.improved),
            str(what.failed),
            f"{math.exp(what.log_gain):.2f}x" if valid else "",
        )
    return table
