"""`mctskernel ablate CONFIG`: what the choices of a search are worth."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import rich_click as click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from mctskernel.cli.errors import INTERRUPTED, LET_THROUGH
from mctskernel.cli.following import stopping
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.experiments.ablation.configuration import (
    PAPER,
    SIZES,
    Ablation,
    Changes,
    find_configuration,
    read_ablation,
    ready_configurations,
)
from mctskernel.experiments.ablation.manifest import FILE
from mctskernel.experiments.ablation.names import AblationError
from mctskernel.experiments.ablation.repeating import repetition
from mctskernel.experiments.ablation.results import Trial, read_results
from mctskernel.experiments.ablation.sweep import Follower, Swept, is_deterministic, sweep
from mctskernel.experiments.ablation.tables import render
from mctskernel.experiments.ablation.writing import write_tables

MANIFEST = FILE

TABLE = "table"

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines about progress."""

FORMS = {"md": "markdown", "tex": "latex", "csv": "csv"}


class _Ablate(click.RichGroup):
    """What isn't the name of a command is a configuration to `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's name before the words of a sweep."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Ablate)
def ablate() -> None:
    """Compare ways to search: what a choice is worth, with intervals, tests and costs.

    A configuration says which arms are compared, on what, with which seeds and budget (docs/ablations.md).

        mctskernel ablate --list

        mctskernel ablate search --size small

        mctskernel ablate my_ablation.toml --out runs/mine

        mctskernel ablate table runs/mine --format tex

    `mctskernel ablate CONFIG` is short for `mctskernel ablate run CONFIG`.
    """


@ablate.command()
@click.argument("config", required=False)
@click.option(
    "--list", "wanted_list", is_flag=True, help="List the configurations that come with the package."
)
@click.option(
    "--repeat",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="OUT",
    help="Make the sweep of this folder again, and say whether it came out the same.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the sweep; one that was cut off goes on. [default: runs/ablation-NAME-DATE-TIME]",
)
@click.option(
    "--size",
    type=click.Choice(SIZES),
    default=PAPER,
    show_default=True,
    help="As much as it takes to tell arms apart, or just enough to see that everything works.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Trials beside each other; on a GPU there is always one.",
)
@click.option(
    "--spaces",
    multiple=True,
    metavar="PATH",
    help="Search these recorded spaces instead: files, folders, or made:NAME; again for more.",
)
@click.option("--tasks", multiple=True, metavar="TASK", help="Search these tasks instead; again for more.")
@click.option("--seeds", type=click.IntRange(min=1), help="So many seeds instead, from 0 on.")
@click.option("--budget", "evaluations", type=click.IntRange(min=1), help="So many evaluations instead.")
@click.option("--model", metavar="NAME", help="The language model of all arms that ask one.")
@click.option("--base-url", metavar="URL", help="Its OpenAI-compatible server.")
def run(
    *,
    config: str | None,
    wanted_list: bool,
    repeat: Path | None,
    out: Path | None,
    size: str,
    jobs: int,
    spaces: tuple[str, ...],
    tasks: tuple[str, ...],
    seeds: int | None,
    evaluations: int | None,
    model: str | None,
    base_url: str | None,
) -> None:
    """Make every trial of CONFIG, then tables and plots.

    CONFIG is a TOML file, the name of a ready configuration, or the manifest.json of a sweep. Trials that are finished
    are kept: a sweep that was cut off goes on when it is given the same --out again.
    """
    if wanted_list:
        _print_list()
        return
    if repeat is not None:
        _repeat(repeat, out, jobs)
        return
    if config is None:
        raise click.UsageError("Give a CONFIG: a TOML file, or a name that --list lists.")
    told = {name: value for name, value in (("model", model), ("base_url", base_url)) if value is not None}
    changes = Changes(size, spaces, tasks, seeds, evaluations, told)
    ablation = read_ablation(find_configuration(config), changes)
    path = out or Path("runs") / f"ablation-{Path(config).stem}-{_now()}"
    swept = _sweep(ablation, path, jobs)
    if not swept.finished:
        echo(f"{len(swept.results.trials)} of {swept.results.planned} trials are made and kept.")
        echo(f"To go on: the same command with --out {path}")
        sys.exit(INTERRUPTED)


@ablate.command(TABLE)
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--format", "form", type=click.Choice(list(FORMS)), default="md", show_default=True)
def table_command(out: Path, form: str) -> None:
    """Print the tables of a sweep, made again of its results.json alone."""
    deliver(getattr(render(read_results(out)), FORMS[form]))


def _sweep(ablation: Ablation, path: Path, jobs: int) -> Swept:
    echo(
        f"{ablation.title}: {len(ablation.arms)} arms, {len(ablation.seeds)} seeds, {ablation.budget.evaluations} "
        f"evaluations each, into {path}"
    )
    with stopping() as stop_requested, _progress() as follow:
        swept = sweep(ablation, path, jobs, follow, stop_requested)
    if swept.results.trials:
        for written in write_tables(path, swept.results):
            echo(f"{written}")
    return swept


def _repeat(folder: Path, out: Path | None, jobs: int) -> None:
    then = read_results(folder)
    ablation = read_ablation(find_configuration(str(folder / MANIFEST)))
    path = out or folder.with_name(f"{folder.name}-again-{_now()}")
    swept = _sweep(ablation, path, jobs)
    found = repetition(then, swept.results)
    for sentence in found.differing:
        echo(sentence)
    echo(found.sentence)
    if not swept.finished:
        sys.exit(INTERRUPTED)
    if found.differing and not is_deterministic(ablation):
        echo(
            "Nothing promised otherwise: its times are measured, or something else of it isn't the same twice."
        )
    elif found.differing:
        sys.exit(LET_THROUGH)


def _print_list() -> None:
    table = Table("name", "question", "arms", "searches")
    for name, text in ready_configurations().items():
        try:
            ablation = read_ablation(text, Changes(model={"model": "NAME"}))
        except AblationError as error:
            raise AblationError(f"{name}: {error}") from error
        arms = "; ".join(arm.name for arm in ablation.arms)
        table.add_row(name, ablation.question, arms, "; ".join((*ablation.spaces, *ablation.tasks)))
    PlainConsole().print(table)


@contextmanager
def _progress() -> Iterator[Follower]:
    """A bar with what is left by the pace of this process; elsewhere than in a terminal a line now and then."""
    console = PlainConsole(stderr=True)
    if not console.is_terminal:
        yield _PlainLines()
        return
    columns = (
        TextColumn("trials"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=console) as progress:
        row = progress.add_task("trials", total=None, last="")

        def follow(done: int, planned: int, trial: Trial | None) -> None:
            last = f"{trial.arm} on {trial.subject}, seed {trial.seed}" if trial else ""
            progress.update(row, completed=done, total=planned, last=last)

        yield follow


class _PlainLines:
    """How many trials are done, and how long the rest takes at the pace so far."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._found: int | None = None

    def __call__(self, done: int, planned: int, _trial: Trial | None) -> None:
        if self._found is None:
            self._found = done
        now = time.monotonic()
        if done > self._found and now - self._last >= PLAIN_INTERVAL:
            self._last = now
            left = (now - self._began) / (done - self._found) * (planned - done)
            echo(f"{done} of {planned} trials; about {left:.0f} s left", err=True)


def _now() -> str:
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
