"""`mctskernel compare RUN RUN ...`: runs side by side."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.plain_console import PlainConsole, deliver_json
from mctskernel.report.comparison import compare_runs, find_runs, print_run_comparison


@click.command()
@click.argument("sides", metavar="RUN...", nargs=-1, required=True, type=options.PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
def compare(sides: tuple[Path, ...], *, as_json: bool) -> None:
    """Compare runs: the best of each, and whether the differences are significant.

    Each RUN is a run, or a folder of runs. The best kernels of all others are compared with that of the first, by a
    bootstrap interval of the ratio of their median times. Times of different tasks or devices are never compared. To
    compare ways to search, use `mctskernel ablate`.

        mctskernel compare runs/softmax-a runs/softmax-b

        mctskernel compare runs/* --json
    """
    runs = [run for side in dict.fromkeys(sides) for run in find_runs(side)]
    if len(runs) < 2:
        raise click.UsageError("One run can't be compared: name another, or a folder of several.")
    comparison = compare_runs(runs)
    if as_json:
        deliver_json(comparison)
    else:
        print_run_comparison(PlainConsole(), comparison)
