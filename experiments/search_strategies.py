"""How much of the optimum strategies find in recorded spaces, by evaluations: searched, tabulated, plotted.

    python -m mctskernel.experiments.search_strategies run --spaces FOLDER --strategies all --seeds 100 --out FILE
    python -m mctskernel.experiments.search_strategies check FILE --spaces FOLDER
    python -m mctskernel.experiments.search_strategies table FILE...
    python -m mctskernel.experiments.search_strategies asynchrony FILE --in-flight 8
    python -m mctskernel.experiments.search_strategies leave-one-out FILE
    python -m mctskernel.experiments.search_strategies plot FILE... --out FILE.svg

FOLDER holds cache files of Kernel Tuner or T4 results (docs/strategies.md). A search is this project's own loop with
its own tree, nothing is run, and its clock is the recording's. FILE has one search a line, and `run` goes on where
it was cut off. What Kernel Tuner finds in the same spaces comes from `mctskernel.experiments.kernel_tuner_baseline`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import numpy as np

from mctskernel.core.space import SpaceError
from mctskernel.experiments.records.json_lines import LineError
from mctskernel.experiments.strategies.contenders import GROUPS, contenders
from mctskernel.experiments.strategies.jobs import Job, jobs_of, run_jobs, search_one, space_files
from mctskernel.experiments.strategies.model_variations import VariationError
from mctskernel.experiments.strategies.tables import asynchrony_table, leave_one_out_table, shares_table
from mctskernel.experiments.strategies.traces import CHECKPOINTS, Trace, TraceLog, read_traces
from mctskernel.profiling.spaces import space_name
from mctskernel.tree.policy import PolicyError

files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)

at_option = click.option(
    "--at",
    default=",".join(map(str, CHECKPOINTS)),
    show_default=True,
    help="Evaluations to tell shares after.",
)

strategies_option = click.option(
    "--strategies",
    "names",
    multiple=True,
    help=f"A strategy, with other settings after a colon ('mcts:value=mean,exploration=0.5'), or one of the groups "
    f"{', '.join(GROUPS)}; more than once.",
)

spaces_option = click.option("--only", multiple=True, help="A space; more than once. [default: all]")


@click.group()
def main() -> None:
    """Compare strategies on recorded search spaces."""


@main.command("run")
@click.option(
    "--spaces",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Files or folders.",
)
@strategies_option
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--budget", type=click.IntRange(min=1), default=max(CHECKPOINTS), show_default=True)
@click.option("--in-flight", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=os.cpu_count(), show_default=True, help="Processes."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def run_command(
    *,
    spaces: tuple[Path, ...],
    names: tuple[str, ...],
    seeds: int,
    first_seed: int,
    budget: int,
    in_flight: int,
    jobs: int,
    out: Path,
) -> None:
    """Search every space with every strategy and seed."""
    try:
        wanted = range(first_seed, first_seed + seeds)
        run_jobs(jobs_of(spaces, contenders(names), wanted, in_flight, budget), jobs, TraceLog(out))
    except (PolicyError, SpaceError, LineError, VariationError) as error:
        raise click.ClickException(str(error)) from error


@main.command("check")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--spaces", required=True, multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--count", type=click.IntRange(min=1), default=20, show_default=True, help="Searches, drawn.")
def check_command(*, file: Path, spaces: tuple[Path, ...], count: int) -> None:
    """Make some searches of FILE again, and say whether this version of the code still finds the same."""
    paths = {space_name(path): path for path in space_files(spaces)}
    known = [trace for trace in _read([file]) if trace.space in paths]
    drawn = np.random.default_rng(0).permutation(len(known))[:count]
    other = 0
    for trace in (known[place] for place in drawn):
        job = Job(paths[trace.space], trace.contender, trace.seed, trace.in_flight, trace.evaluations)
        if search_one(job).improvements != trace.improvements:
            other += 1
            click.echo(f"{', '.join(map(str, trace.key))}: finds something else")
    click.echo(f"{len(drawn) - other} of {len(drawn)} find the same.")
    if other:
        raise SystemExit(1)


@main.command("table")
@files_argument
@strategies_option
@spaces_option
@at_option
@click.option("--in-flight", type=click.IntRange(min=1), default=1, show_default=True)
def table_command(
    *, files: tuple[Path, ...], names: tuple[str, ...], only: tuple[str, ...], at: str, in_flight: int
) -> None:
    """Shares of the optimum as Markdown, the best strategy first."""
    traces = _chosen(_read(files), contenders(names) if names else (), only)
    click.echo(shares_table([each for each in traces if each.in_flight == in_flight], _numbers(at)))


@main.command("asynchrony")
@files_argument
@strategies_option
@spaces_option
@at_option
@click.option("--in-flight", type=click.IntRange(min=2), default=8, show_default=True)
def asynchrony_command(
    *, files: tuple[Path, ...], names: tuple[str, ...], only: tuple[str, ...], at: str, in_flight: int
) -> None:
    """What several evaluations in flight lose against one at a time, in percentage points, as Markdown."""
    traces = _chosen(_read(files), contenders(names) if names else (), only)
    click.echo(asynchrony_table(traces, in_flight, _numbers(at)))


@main.command("leave-one-out")
@files_argument
@strategies_option
@spaces_option
@at_option
def leave_one_out_command(
    *, files: tuple[Path, ...], names: tuple[str, ...], only: tuple[str, ...], at: str
) -> None:
    """The share in each space of what did best in all others, as Markdown."""
    traces = _chosen(_read(files), contenders(names) if names else (), only)
    click.echo(leave_one_out_table([each for each in traces if each.in_flight == 1], _numbers(at)))


@main.command("plot")
@files_argument
@strategies_option
@spaces_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def plot_command(
    *, files: tuple[Path, ...], names: tuple[str, ...], only: tuple[str, ...], out: Path
) -> None:
    """Curves of the share over evaluations, a panel for each space."""
    # Imported here: matplotlib is an extra.
    from mctskernel.experiments.strategies.plots import plot_shares  # noqa: PLC0415 - as said above

    traces = _chosen(_read(files), contenders(names) if names else (), only)
    plot_shares([each for each in traces if each.in_flight == 1], out)


def _read(files: Iterable[Path]) -> list[Trace]:
    try:
        return [trace for file in files for trace in read_traces(file)]
    except LineError as error:
        raise click.ClickException(str(error)) from error


def _chosen(traces: Iterable[Trace], names: Sequence[str], spaces: Sequence[str]) -> list[Trace]:
    return [
        each
        for each in traces
        if (not names or each.contender in names) and (not spaces or each.space in spaces)
    ]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"'{text}' is no list of numbers such as 50,100,200.") from error


if __name__ == "__main__":
    sys.exit(main())
