"""`mctskernel ablate CONFIG`: compare ways to search."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rich_click as click
from rich.table import Table

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import stopping
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.experiments.ablation.configuration import (
    DEVICES,
    Ablation,
    AblationError,
    Overrides,
    find_configuration,
    read_ablation,
    ready_configurations,
)
from mctskernel.experiments.ablation.sweep import Results, sweep
from mctskernel.experiments.ablation.tables import render, write_tables
from mctskernel.experiments.ablation.trials import Trial
from mctskernel.report.notes import counted
from mctskernel.run import new_path

INTERVAL = 10.0  # seconds between lines about progress


@click.command()
@click.argument("config", required=False)
@click.option(
    "--list", "wanted_list", is_flag=True, help="List the configurations that come with the package."
)
@click.option(
    "--out",
    type=options.FOLDER,
    help="The results folder; give it again to continue. [default: runs/ablation-NAME-DATE-TIME]",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Trials in parallel; those on a GPU take turns at evaluations.",
)
@click.option(
    "--spaces",
    multiple=True,
    metavar="PATH",
    help="Search these search-space caches in place of CONFIG's: a file, a folder, or synthetic:NAME; repeatable.",
)
@click.option(
    "--tasks",
    multiple=True,
    metavar="TASK",
    help="Search these tasks in place of CONFIG's; repeatable.",
)
@click.option("--device", type=click.Choice(DEVICES), help="The device, in place of CONFIG's.")
@click.option("--seeds", type=click.IntRange(min=1), help="Number of seeds, in place of CONFIG's.")
@click.option(
    "--budget",
    "evaluations",
    type=click.IntRange(min=1),
    help="Evaluations of a trial, in place of CONFIG's.",
)
@click.option("--model", metavar="NAME", help="The language model of all arms that use one.")
@click.option("--base-url", metavar="URL", help="Its OpenAI-compatible server.")
def ablate(
    *,
    config: str | None,
    wanted_list: bool,
    out: Path | None,
    jobs: int,
    spaces: tuple[str, ...],
    tasks: tuple[str, ...],
    device: str | None,
    seeds: int | None,
    evaluations: int | None,
    model: str | None,
    base_url: str | None,
) -> None:
    """Compare search configurations by paired trials, with intervals, tests and costs.

    CONFIG is a TOML file, or the name of a ready configuration (--list), of the arms, what they search, seeds and the
    budget (docs/ablations.md). Finished trials are kept: an interrupted ablation continues when it is given the same
    --out again.

        mctskernel ablate search --spaces synthetic:words --seeds 1 --budget 8

        mctskernel ablate my_ablation.toml --out runs/mine
    """
    if wanted_list:
        _print_list()
        return
    if config is None:
        raise click.UsageError("Give a CONFIG: a TOML file, or a name that --list lists.")
    llm = {name: value for name, value in (("model", model), ("base_url", base_url)) if value is not None}
    overrides = Overrides(spaces, tasks, seeds, evaluations, llm, device or "")
    ablation = read_ablation(find_configuration(config), overrides)
    path = out or new_path(f"ablation-{Path(config).stem}")
    results = _sweep(ablation, path, jobs)
    if not results.finished:
        echo(f"{len(results.trials)} of {results.planned} trials are finished and kept.")
        echo(f"To continue: the same command with --out {path}")
        sys.exit(INTERRUPTED)


def _sweep(ablation: Ablation, path: Path, jobs: int) -> Results:
    echo(
        f"{ablation.title}: {counted(len(ablation.arms), 'arm')}, {counted(len(ablation.seeds), 'seed')}, "
        f"{counted(ablation.budget.evaluations or 0, 'evaluation')} each, into {path}",
        err=True,
    )
    with stopping() as stop_requested:
        results = sweep(ablation, path, jobs, _Progress(), stop_requested)
    if results.trials:
        written = write_tables(path, results)
        deliver(f"{render(results)}\n")
        echo(f"Written: {', '.join(map(str, written))}", err=True)
    return results


def _print_list() -> None:
    table = Table("name", "question", "arms", "searches", box=None, pad_edge=False)
    for name, text in ready_configurations().items():
        try:
            ablation = read_ablation(text, Overrides(model={"model": "NAME"}))
        except AblationError as error:
            raise AblationError(f"{name}: {error}") from error
        arms = "; ".join(arm.name for arm in ablation.arms)
        table.add_row(name, ablation.question, arms, "; ".join((*ablation.spaces, *ablation.tasks)))
    PlainConsole().print(table)


class _Progress:
    """Prints from time to time how many trials are finished and how long the rest may take."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._found: int | None = None

    def __call__(self, done: int, planned: int, _trial: Trial | None) -> None:
        if self._found is None:
            self._found = done
        now = time.monotonic()
        if done > self._found and now - self._last >= INTERVAL:
            self._last = now
            left = (now - self._began) / (done - self._found) * (planned - done)
            echo(f"{done} of {planned} trials; about {left:.0f} s left", err=True)
