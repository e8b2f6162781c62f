"""The suite: every built-in task searched on this machine's GPU, beside PyTorch and the floor.

    python -m mctskernel.experiments.suite --tasks softmax,matmul --languages cuda,triton --seconds 60 --out FOLDER
    python -m mctskernel.experiments.suite --in-turns --minutes 8 --runs RUNS --out FOLDER

Each row is in FOLDER/rows.jsonl as soon as it is known, and is not measured again: started once more, the same command
goes on where it was cut off, a search in the middle included. At the end of every call FOLDER/suite.json and
FOLDER/suite.md hold the table. The runs are in --runs.

With --in-turns nothing is searched: the winners of the runs that are there are timed in turns with PyTorch
(`mctskernel.experiments.suite_timing`), and FOLDER/ratios.json and FOLDER/ratios.md hold the ratios with intervals.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.experiments.records.documents import markdown
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.suites.ratios import document, ratio_rows
from mctskernel.experiments.suites.rows import (
    CeilingsRow,
    Row,
    SearchRow,
    TimesRow,
    TorchRow,
    arithmetic,
    read_rows,
    uses_tensor_cores,
)
from mctskernel.experiments.suites.search_cost import search_cost
from mctskernel.experiments.suites.searches import Plan, run_search
from mctskernel.experiments.suites.table import markdown_table, table_rows
from mctskernel.experiments.summarise_runs import summarise
from mctskernel.report.view import load_view
from mctskernel.run import Budget, RunError
from mctskernel.tasks import builtin_tasks, find_task
from mctskernel.tree.journal import JournalError

Key = tuple[str, Language]

TIMING_SECONDS = 75.0
"""Allowed for the timing of one task in turns: most of it is torch.compile's."""

STARTING_SECONDS = 25.0
"""Allowed for what a search takes besides its budget: inputs drawn, a GPU opened, the last gate."""


@click.command()
@click.option("--tasks", help="Names or folders, with commas. [default: all built-in tasks]")
@click.option("--languages", default="cuda,triton", show_default=True, help="With commas.")
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="What --device model stands for.")
@click.option(
    "--budget", type=click.IntRange(min=1), default=200, show_default=True, help="Evaluations a search."
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds a search, at the most.")
@click.option("--workers", type=click.IntRange(min=1), help="As of `mctskernel search`.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Begin nothing that wouldn't be over by then; the next call goes on.",
)
@click.option("--skip-torch", is_flag=True, help="Search alone.")
@click.option("--only-torch", is_flag=True, help="Time PyTorch alone.")
@click.option(
    "--in-turns", is_flag=True, help="Search nothing: time the winners of --runs in turns with PyTorch."
)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/suite"), show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The folder of the rows and the table."
)
def main(
    *,
    tasks: str | None,
    languages: str,
    device: str,
    architecture: str,
    budget: int,
    seconds: float | None,
    workers: int | None,
    seed: int,
    minutes: float | None,
    skip_torch: bool,
    only_torch: bool,
    in_turns: bool,
    runs: Path,
    out: Path,
) -> None:
    """Search the suite's tasks and print the table."""
    if skip_torch and only_torch:
        raise click.UsageError("--skip-torch and --only-torch leave nothing to do.")
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    names = tasks.split(",") if tasks else list(builtin_tasks())
    plan = Plan(device, architecture, workers, Budget(budget, seconds), seed, runs)
    rows = out / "rows.jsonl"
    if in_turns:
        measure_ceilings(rows)
        time_in_turns(rows, {name: plan.finished(name) for name in names}, end)
        write_ratios(out, read_rows(rows))
        return
    if device == "gpu":
        measure_ceilings(rows)
        if not skip_torch:
            time_torch(rows, names)
    if not only_torch:
        wanted = [(name, Language(word)) for name in names for word in languages.split(",")]
        search_missing(rows, wanted, plan, end)
    write_tables(out, read_rows(rows))


def measure_ceilings(rows: Path) -> None:
    """Measure what the GPU can do at most, if no row says so yet."""
    if not any(isinstance(row, CeilingsRow) for row in read_rows(rows)):
        _run_module("floors", rows)


def time_torch(rows: Path, tasks: Sequence[str]) -> None:
    """Time PyTorch's operators of the tasks that have no such row yet. One that kills its process has a gap."""
    missing = [name for name in tasks if name not in _timed(rows)]
    while missing and (status := _run_module("torch_baselines", rows, *missing)) < 0:
        known = {row.task for row in read_rows(rows) if isinstance(row, TorchRow)}
        missing = [name for name in missing if name not in known]
        if missing:
            append_line(
                rows, TorchRow(task=missing.pop(0), problem=f"It ended PyTorch's process ({status}).")
            )


def time_in_turns(rows: Path, runs: Mapping[str, Sequence[Path]], end: float = float("inf")) -> None:
    """Time the winners of each task's runs beside PyTorch, unless a row has their times or `end` is near.

    `end` is a time of `time.monotonic`.
    """
    known = {row.task for row in read_rows(rows) if isinstance(row, TimesRow) and row.seconds}
    for name, folders in runs.items():
        if name in known or not folders:
            continue
        if time.monotonic() + TIMING_SECONDS > end:
            click.echo(f"No time is left for {name} and what follows.")
            return
        if status := _run_module("suite_timing", rows, name, *map(str, folders)):
            append_line(rows, TimesRow(task=name, problem=f"Its timing ended with status {status}."))


def search_missing(rows: Path, wanted: Sequence[Key], plan: Plan, end: float = float("inf")) -> None:
    """Search each task in each language that has no finished search yet, as long as it would be over by `end`.

    `end` is a time of `time.monotonic`.
    """
    takes = (plan.budget.seconds or 0.0) + STARTING_SECONDS
    known = {
        (row.task, row.language)
        for row in read_rows(rows)
        if isinstance(row, SearchRow) and row.device == plan.device and row.summary
    }
    for number, (name, language) in enumerate(wanted, 1):
        if (name, language) in known:
            continue
        if time.monotonic() + takes > end:
            click.echo(f"No time is left for {name} in {language} and what follows.")
            return
        click.echo(f"{number}/{len(wanted)}: {name} in {language}")
        row = search_task(name, language, plan)
        append_line(rows, row)
        click.echo(f"  {_remark(row)}")


def search_task(name: str, language: Language, plan: Plan) -> SearchRow:
    """Search one task, going on with a run that was cut off. What goes wrong is the row's problem."""
    row = SearchRow(task=name, language=language, device=plan.device)
    try:
        task = load_task(find_task(name), language)
        if problem := run_search(name, language, plan):
            return msgspec.structs.replace(row, problem=problem)
        view = load_view(plan.folder(name, language))
    except (TaskError, RunError, JournalError) as error:
        return msgspec.structs.replace(row, problem=str(error))
    return msgspec.structs.replace(
        row,
        compulsory_bytes=task.compulsory_bytes(task.search_shapes[0]),
        flops=arithmetic(task),
        tensor_cores=uses_tensor_cores(task),
        summary=summarise(view),
        cost=search_cost(view),
    )


def write_tables(out: Path, rows: Sequence[Row]) -> None:
    """Write suite.json and suite.md, and print the table."""
    table = table_rows(rows)
    text = markdown_table(table)
    write_result(out / "suite.json", table)
    (out / "suite.md").write_text(text)
    click.echo(text)


def write_ratios(out: Path, rows: Sequence[Row]) -> None:
    """Write ratios.json and ratios.md, and print the page."""
    found = ratio_rows(rows)
    text = markdown(document(found))
    write_result(out / "ratios.json", found)
    (out / "ratios.md").write_text(text + "\n")
    click.echo(text)


def _remark(row: SearchRow) -> str:
    if row.summary is None or row.cost is None:
        return row.problem
    return (
        f"{row.summary.speedup:.2f}x in {row.cost.evaluations} evaluations and {row.cost.wall_seconds:.0f} s, "
        f"{row.cost.candidate_seconds:.2f} s a candidate"
    )


def _timed(rows: Path) -> set[str]:
    return {row.task for row in read_rows(rows) if isinstance(row, TorchRow) and row.eager_seconds}


def _run_module(name: str, rows: Path, *words: str) -> int:
    """Run another experiment, which adds to the rows, in a process of its own: nothing else holds the GPU meanwhile."""
    command = [sys.executable, "-m", f"mctskernel.experiments.{name}", "--rows", str(rows), *words]
    done = subprocess.run(command, check=False)
    if done.returncode:
        click.echo(f"{name} ended with status {done.returncode}: its columns have gaps.", err=True)
    return done.returncode


if __name__ == "__main__":
    main()
