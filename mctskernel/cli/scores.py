"""`mctskernel scores RUN...`: runs of benchmark problems, scored as KernelBench does."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.cli.plain_console import PlainConsole, deliver_json, echo
from mctskernel.problems.pytorch_timing import PytorchTimer, time_baselines
from mctskernel.problems.registry import benchmark_of
from mctskernel.problems.scores import (
    START,
    BaselineScores,
    RunScore,
    Scores,
    score_runs,
)
from mctskernel.profiling.quantities import time_text
from mctskernel.report.baselines import COMPILED, EAGER
from mctskernel.report.comparison import find_runs
from mctskernel.report.view import View


@click.command()
@click.argument("sides", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--time-pytorch",
    "time",
    is_flag=True,
    help="First time the problems' PyTorch on this machine's GPU, eager and compiled, beside the start and the answer "
    "of each run, as a search does at its end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
def scores(sides: tuple[Path, ...], *, time: bool, as_json: bool) -> None:
    """Score runs of benchmark problems as KernelBench does: correct or not, speed-ups, fast_p and geometric mean.

    Each RUN is a run of a problem, or a folder of runs. A run is correct if its answer passed final validation. fast_p
    is the share of all runs that are correct and more than p times as fast as the baseline; the geometric mean is of
    correct ones only. The baselines are PyTorch's times on the run's GPU, where they are known, and the starting
    kernel, which is no benchmark's baseline.
    """
    views = [view for side in dict.fromkeys(sides) for view in _runs_of_problems(side)]
    with PytorchTimer() if time and views else nullcontext() as timer:
        for view in views if time else ():
            baselines = time_baselines(view, partial(echo, err=True), timer)
            echo(f"{view.folder.path}: {baselines.sentence}.", err=True)
    found = score_runs(views)
    if as_json:
        deliver_json(found)
    else:
        _print(PlainConsole(), found)


def _runs_of_problems(side: Path) -> list[View]:
    """The runs of one side. Where none of them is of a problem these are all, and are refused for it."""
    views = [run.view for run in find_runs(side)]
    of_problems = [view for view in views if benchmark_of(view.folder.load_task()) is not None]
    if 0 < len(of_problems) < len(views):
        others = len(views) - len(of_problems)
        echo(
            f"{side}: {others} of {len(views)} runs are not of a benchmark's problem; they are left out.",
            err=True,
        )
    return of_problems or views


def _print(console: Console, found: Scores) -> None:
    baselines = [each.baseline for each in found.against]
    table = Table(box=None, pad_edge=False)
    for heading in ("problem", "benchmark", "correct", "time"):
        table.add_column(heading, justify="right" if heading == "time" else "left")
    for baseline in baselines:
        table.add_column(f"over {_SHORT[baseline]}", justify="right")
    for run in found.runs:
        table.add_row(*(Text(cell) for cell in _cells(run, baselines)))
    console.print(table)
    console.print(Text(f"{found.correct} of {len(found.runs)} correct."))
    for each in found.against:
        console.print(Text(_in_words(each)), soft_wrap=True)
    for note in dict.fromkeys(run.note for run in found.runs if run.note):
        console.print(Text(note, "yellow"), soft_wrap=True)


def _in_words(score: BaselineScores) -> str:
    shares = ", ".join(f"fast_{share.threshold:g} {share.share:.2f}" for share in score.fast)
    mean = f"; geometric mean {score.geomean:.2f}x of {score.known}" if score.geomean is not None else ""
    whose = " (no benchmark's baseline)" if score.baseline == START else ""
    return f"Over {score.baseline}{whose}: {shares}{mean}."


_SHORT = {EAGER: "eager", COMPILED: "compile", START: "start"}


def _cells(run: RunScore, baselines: list[str]) -> list[str]:
    time = time_text(run.seconds) if run.seconds is not None else ""
    speedups = [f"{run.speedups[name]:.2f}x" if name in run.speedups else "" for name in baselines]
    return [run.problem, run.benchmark, "yes" if run.correct else "no", time, *speedups]
