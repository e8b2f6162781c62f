"""`mctskernel memory`: what earlier runs taught: list, add, forget, export."""

from __future__ import annotations

import math
from pathlib import Path

import rich_click as click
from rich.table import Table

from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.core.evaluation import Source
from mctskernel.memory import Memory, Remembered, default_path, encode_snapshot, open_memory
from mctskernel.run import open_run
from mctskernel.run import remember as remember_run_folder

_file = click.option(
    "--file",
    type=click.Path(path_type=Path),
    default=default_path,
    show_default="the user's own",
    help="The memory.",
)


@click.group()
def memory() -> None:
    """Manage what earlier runs taught about kinds of edits, for `mctskernel search --memory on`.

    A kind of edit is a category and a title without numbers and the task's own names. It is remembered with the
    language, architecture and bottleneck of the kernel; measured and modelled gains are kept apart.
    """


@memory.command()
@_file
@click.option("--runs", is_flag=True, help="List the runs instead of what they taught.")
@click.option("--source", type=click.Choice([Source.MEASURED.value, Source.MODELLED.value]))
@click.option("--language", metavar="[cuda|triton]")
@click.option("--architecture", metavar="sm_90")
def show(
    *, file: Path, runs: bool, source: str | None, language: str | None, architecture: str | None
) -> None:
    """List what is remembered, the most tried first."""
    with open_memory(file) as opened:
        if runs:
            table = _table_of_runs(opened)
        else:
            found = opened.everything(language, architecture, Source(source) if source else None)
            table = _table_of_kinds(found)
    PlainConsole().print(table if table.row_count else f"Nothing is remembered in {file}.")


@memory.command()
@_file
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
def remember(file: Path, runs: tuple[Path, ...]) -> None:
    """Add finished or interrupted RUNs, or replace what is remembered of them."""
    with open_memory(file) as opened:
        for run in runs:
            tried = remember_run_folder(opened, open_run(run))
            echo(f"{run}: {tried} edits" if tried else f"{run}: nothing that holds for other kernels")


@memory.command()
@_file
@click.option("--run", "ids", multiple=True, metavar="ID", help="A run that `memory show --runs` lists.")
@click.option("--task", "tasks", multiple=True, help="All runs of a task.")
@click.option("--all", "everything", is_flag=True, help="All runs.")
def forget(*, file: Path, ids: tuple[str, ...], tasks: tuple[str, ...], everything: bool) -> None:
    """Forget runs, and what they taught."""
    if not (ids or tasks or everything):
        raise click.UsageError("Say what to forget: --run ID, --task NAME or --all.")
    with open_memory(file) as opened:
        known = opened.runs()
        count = opened.forget(run.id for run in known if everything or run.id in ids or run.task in tasks)
    echo(f"Forgot {count} of {len(known)} run(s).")


@memory.command()
@_file
def export(file: Path) -> None:
    """Write what is remembered to standard output as JSON, which `--memory FILE.json` takes.

    The same file and the same seed give the same search, however much is remembered meanwhile.
    """
    with open_memory(file) as opened:
        deliver(encode_snapshot(opened.everything()))


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


def _table_of_runs(opened: Memory) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "task", "kernels", "numbers", "remembered"):
        table.add_column(heading)
    table.add_column("edits", justify="right")
    for run in opened.runs():
        kernels = f"{run.language}, {run.architecture}"
        table.add_row(run.id, run.task, kernels, run.source, run.remembered, str(run.tried))
    return table
