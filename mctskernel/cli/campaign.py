"""`mctskernel campaign CONFIG`: the kernels of a model searched under one budget."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from mctskernel.campaign.conduct import Moment, conduct
from mctskernel.campaign.configuration import Campaign, example, read_campaign
from mctskernel.campaign.report import FILE, markdown, read_report
from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import stopping
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.executors.room import workers_on
from mctskernel.profiling.devices import default_kind
from mctskernel.run import Budget
from mctskernel.search import Ending

PLAIN_INTERVAL = 10.0
"""Seconds between plain lines that report no improvement."""


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The campaign's folder; one that is there already goes on. [default: runs/campaign-CONFIG]",
)
@click.option(
    "--budget", type=click.IntRange(min=1), help="Evaluations of all tasks, in place of the CONFIG's."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds, in place of the CONFIG's."
)
@options.max_usd("Money for models, in place of the CONFIG's: US dollars.")
@click.option(
    "--table",
    "told",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Print the report of a campaign's folder, and search nothing.",
)
@click.option("--example", "wanted_example", is_flag=True, help="Print a CONFIG to begin with.")
def campaign(
    *,
    config: Path | None,
    out: Path | None,
    budget: int | None,
    seconds: float | None,
    dollars: float | None,
    told: Path | None,
    wanted_example: bool,
) -> None:
    """Search the kernels of one model, each evaluation where the whole model gains most by it.

    CONFIG is a TOML file with the tasks, what share of the model's time each takes, and one budget for all of them
    (docs/campaign.md). Every task is searched in a run of its own, `DIR/runs/NAME`, which all other commands read.
    The same command again goes on: after Ctrl-C, a crash, or with a larger budget.

        mctskernel campaign --example > block.toml

        mctskernel campaign block.toml --budget 300

        mctskernel campaign --table runs/campaign-block
    """
    if wanted_example:
        deliver(example())
        return
    if told is not None:
        deliver(markdown(read_report(told)))
        return
    if config is None:
        raise click.UsageError("Give a CONFIG; `mctskernel campaign --example` prints one to begin with.")
    wanted = _on_this_machine(read_campaign(config), Budget(budget, seconds, dollars))
    path = out or Path("runs") / f"campaign-{config.stem}"
    workers = f"{wanted.workers} worker(s)" if wanted.workers else "all its workers"
    echo(f"Searching {len(wanted.tasks)} tasks on {wanted.device} with {workers} into {path}", err=True)
    with stopping() as stop_requested, _following(PlainConsole(stderr=True)) as follow:
        report, remarks = conduct(wanted, path, follow, stop_requested)
    for remark in remarks:
        echo(f"mctskernel: {remark}", err=True)
    deliver(markdown(report))
    echo(f"Everything behind it:  {path / FILE}", err=True)
    if report.ending == Ending.INTERRUPTED:
        echo("To go on:              the same command", err=True)
        sys.exit(INTERRUPTED)


def _on_this_machine(wanted: Campaign, budget: Budget) -> Campaign:
    """The campaign with what was left open, and another budget where one is given."""
    device = default_kind() if wanted.device == "auto" else wanted.device
    changes = {name: value for name, value in msgspec.to_builtins(budget).items() if value is not None}
    room = max(workers_on(device, task.settings.language, wanted.executor) for task in wanted.tasks)
    return replace(
        wanted,
        device=device,
        workers=wanted.workers or room,
        budget=msgspec.structs.replace(wanted.budget, **changes),
    )


@contextmanager
def _following(console: Console) -> Iterator[Callable[[Moment], None]]:
    """A function to call after every evaluation: a bar in a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console) as progress:
        row = progress.add_task("searching", total=1000, state="")

        def follow(moment: Moment) -> None:
            progress.update(row, completed=1000 * moment.spent_fraction, state=_state(moment))
            if line := _news(moment):
                progress.console.print(Text(line))

        yield follow


class _PlainLines:
    """One line for every improvement, and one now and then in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line = 0.0

    def __call__(self, moment: Moment) -> None:
        if line := _news(moment):
            self._print(line)
        if (now := time.monotonic()) >= self._next_line:
            self._next_line = now + PLAIN_INTERVAL
            self._print(_state(moment))

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def _state(moment: Moment) -> str:
    of = f"/{moment.budget.evaluations}" if moment.budget.evaluations else ""
    share = moment.now / moment.before
    return f"{moment.evaluations}{of} evaluations, {moment.seconds:.0f} s, the model's time is {share:.1%}"


def _news(moment: Moment) -> str:
    """What is worth a line: what the search of a task says, or an improvement."""
    if moment.snapshot.remark:
        return f"{moment.task}: {moment.snapshot.remark}"
    return _improvement(moment) if moment.snapshot.improved_by else ""


def _improvement(moment: Moment) -> str:
    snapshot = moment.snapshot
    return (
        f"{moment.evaluations:5d}  {moment.task}: {snapshot.best_speedup:.2f}x {snapshot.source}  "
        f"node {snapshot.best_node}: {snapshot.improved_by}; the model's time is {moment.now / moment.before:.1%}"
    )
