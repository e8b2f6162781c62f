"""The built-in tasks, searched on this machine, and their winners timed interleaved with PyTorch.

    python -m mctskernel.experiments.suite --tasks softmax,matmul --languages cuda,triton --seconds 60 --out FOLDER

The runs are in FOLDER/runs. FOLDER/rows.jsonl has the times of a task as soon as they are known, and nothing is
measured twice: the same command continues where it was interrupted, a search included. At the end of every call
FOLDER/suite.json and FOLDER/suite.md hold the tables. On `--device model` nothing is timed beside PyTorch.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import click
import msgspec
import numpy as np

from mctskernel.core.budget import Budget
from mctskernel.core.kernel import Language
from mctskernel.experiments.json_lines import append_line, read_lines
from mctskernel.experiments.results import page, table, write_result
from mctskernel.report.resampling import ratio_of_medians
from mctskernel.report.view import View, load_view
from mctskernel.run import spent_seconds
from mctskernel.tasks.builtin import builtin_tasks
from mctskernel.tree.journal import read_events

BEST, START = " best", " start"

GPU_STAGES = ("verify", "time", "counters")
"""The stages in which the GPU is held for one candidate; a build needs no GPU."""


class TaskTimes(msgspec.Struct, frozen=True):
    """Samples of each contender at each search shape, in seconds; `mctskernel.experiments.suite_timing` takes them.

    `floor_seconds` is the time of a copy of the compulsory bytes at the first shape, or of the arithmetic
    where that is longer. `problem` says in a sentence what could not be timed.
    """

    task: str
    seconds: dict[str, dict[str, tuple[float, ...]]] = {}
    floor_seconds: float = 0.0
    versions: dict[str, str] = {}
    problem: str = ""


class Searched(msgspec.Struct, frozen=True):
    """A search; times in seconds. `problem` says in a sentence why numbers are missing."""

    task: str
    language: Language
    start_seconds: float = 0.0
    best_seconds: float = 0.0
    speedup: float = 0.0
    cost: SearchCost | None = None
    problem: str = ""


class Report(msgspec.Struct, frozen=True):
    """All searches and times so far."""

    searches: list[Searched]
    times: list[TaskTimes]


@click.command()
@click.option("--tasks", help="Names or folders, with commas. [default: all built-in tasks]")
@click.option("--languages", default="cuda,triton", show_default=True, help="With commas.")
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="The GPU of --device model.")
@click.option("--budget", type=click.IntRange(min=1), default=200, show_default=True, help="Evaluations.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds a search, at most.")
@click.option("--workers", type=click.IntRange(min=1), help="As of `mctskernel search`.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A folder.")
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
    out: Path,
) -> None:
    """Search the tasks, time their winners beside PyTorch, and print the tables."""
    plan = Plan(device, architecture, workers, Budget(budget, seconds), seed, out / "runs")
    rows = out / "rows.jsonl"
    searches: list[Searched] = []
    for name in tasks.split(",") if tasks else builtin_tasks():
        for language in map(Language, languages.split(",")):
            searches.append(search_task(name, language, plan))
            click.echo(f"{name} in {language}: {searches[-1].problem or f'{searches[-1].speedup:.2f}x'}")
        if device == "gpu":
            runs = [plan.folder(name, each.language) for each in searches if each.task == name and each.cost]
            time_task(rows, name, runs)
    report = Report(searches, list(read_times(rows).values()))
    write_result(out / "suite.json", report)
    text = document(report) + "\n"
    (out / "suite.md").write_text(text, encoding="utf-8")
    click.echo(text)


def search_task(name: str, language: Language, plan: Plan) -> Searched:
    """Search one task, or continue an interrupted search."""
    folder = plan.folder(name, language)
    if not (folder / "best" / "answer.json").exists() and (problem := run_search(name, language, plan)):
        return Searched(name, language, problem=problem)
    view = load_view(folder)
    first, last = view.steps[0], view.steps[-1]
    cost = search_cost(view)
    return Searched(name, language, first.seconds or 0.0, last.seconds or 0.0, last.speedup, cost)


@dataclass(frozen=True)
class Plan:
    """How to search: the device, the budget of each search, and where the runs go.

    `workers` is None for the default of the device.
    """

    device: str
    architecture: str
    workers: int | None
    budget: Budget
    seed: int
    runs: Path

    def folder(self, task: str, language: Language) -> Path:
        """Where the run of one search is."""
        return self.runs / f"{Path(task).name}-{language}-{self.device}-{self.seed}"


def run_search(task: str, language: Language, plan: Plan) -> str:
    """Search a task, going on with a run that was cut off. Returns what went wrong in a sentence, or nothing."""
    folder = plan.folder(task, language)
    limits = ["--budget", str(plan.budget.evaluations)]
    limits += ["--seconds", str(plan.budget.seconds)] if plan.budget.seconds else []
    limits += ["--workers", str(plan.workers)] if plan.workers else []
    if (folder / "journal.jsonl").exists():
        words = ["resume", str(folder)]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["search", task, "--device", plan.device, "--architecture", plan.architecture]
        words += ["--language", language, "--seed", str(plan.seed), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "mctskernel", *words, *limits], check=False, stderr=subprocess.PIPE, text=True
    )
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if re.search(r"\w", line)]
    return said[-1].strip() if said else f"The search ended with status {done.returncode}."


class SearchCost(msgspec.Struct, frozen=True):
    """Seconds. `stages` and `candidate_seconds` are medians over the evaluations that had the stage, and over all.

    `wall_seconds` is the time of the search without pauses, `gpu_busy_share` the sum of the stages that hold the GPU
    over it.
    """

    evaluations: int
    stages: dict[str, float]
    candidate_seconds: float
    wall_seconds: float
    gpu_busy_share: float


def search_cost(run: View) -> SearchCost:
    """The cost of a run that holds at least one evaluation."""
    evaluations = [node.evaluation for node in run.tree.nodes if node.evaluation is not None]
    spent = [evaluation.stage_seconds for evaluation in evaluations]
    wall = spent_seconds(read_events(run.folder.journal))
    busy = sum(stages.get(stage, 0.0) for stages in spent for stage in GPU_STAGES)
    return SearchCost(
        evaluations=len(evaluations),
        stages=stage_medians(spent),
        candidate_seconds=statistics.median(evaluation.cost_seconds for evaluation in evaluations),
        wall_seconds=wall,
        gpu_busy_share=busy / wall if wall > 0 else 0.0,
    )


def stage_medians(spent: Iterable[dict[str, float]]) -> dict[str, float]:
    """The median of each stage over those that had it, in the order of their first appearance."""
    rows = list(spent)
    names = dict.fromkeys(name for stages in rows for name in stages)
    return {name: statistics.median(stages[name] for stages in rows if name in stages) for name in names}


def time_task(rows: Path, name: str, runs: Sequence[Path]) -> None:
    """Time the winners of a task's runs beside PyTorch in a process of its own, unless a row has their times."""
    known = read_times(rows).get(name)
    if not runs or (known is not None and known.seconds):
        return
    command = [sys.executable, "-m", "mctskernel.experiments.suite_timing", "--rows", str(rows), name]
    done = subprocess.run([*command, *map(str, runs)], check=False)
    if done.returncode:
        append_line(rows, TaskTimes(name, problem=f"Its timing ended with status {done.returncode}."))


def read_times(rows: Path) -> dict[str, TaskTimes]:
    """The times of each task; of several rows the last one holds. Raises LineError."""
    return {row.task: row for row in read_lines(rows, msgspec.json.Decoder(TaskTimes))}


def document(report: Report) -> str:
    """Make the page of tables."""
    columns = [
        "task",
        "language",
        "start, us",
        "best, us",
        "speed-up",
        "evaluations",
        "s a candidate",
        "GPU busy",
    ]
    searches = [_search_cells(each, each.cost) for each in report.searches if each.cost]
    timed = [times for times in report.times if best_of(times)]
    versions = next((each.versions for each in timed), {})
    blocks = [
        ", ".join(f"{name} {value}" for name, value in versions.items()),
        "## Searches",
        table(columns, searches),
    ]
    if timed:
        columns = [
            "task",
            "best",
            "us",
            "start / best",
            "eager / best",
            "torch.compile / best",
            "floor / best",
        ]
        blocks += ["## Beside PyTorch", table(columns, [_time_cells(each) for each in timed]), _means(timed)]
    reported: list[Searched | TaskTimes] = [*report.searches, *report.times]
    problems = [f"- {each.task}: {each.problem}" for each in reported if each.problem]
    if problems:
        blocks += ["## Problems", "\n".join(problems)]
    return page("The suite", *blocks)


def best_of(times: TaskTimes) -> str:
    """The fastest of a task's best kernels, by contender; empty where none was timed."""
    names = [name for name in _contenders(times) if name.endswith(BEST)]
    return min(names, key=lambda name: _median(times, name), default="")


def ratio(times: TaskTimes, contender: str) -> str:
    """How many times as long a contender takes as the best kernel, with its 95 % interval; empty where unknown."""
    if contender not in _contenders(times):
        return ""
    best = best_of(times)
    found = ratio_of_medians(
        [(np.array(shape[contender]), np.array(shape[best])) for shape in times.seconds.values()]
    )
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"


def compiled(times: TaskTimes) -> str:
    """The faster of torch.compile's modes, with CUDA graphs or without; empty where none was timed."""
    names = [name for name in _contenders(times) if name != "eager" and not name.endswith((BEST, START))]
    return min(names, key=lambda name: _median(times, name), default="")


def _contenders(times: TaskTimes) -> set[str]:
    return set.intersection(*map(set, times.seconds.values())) if times.seconds else set()


def _median(times: TaskTimes, contender: str) -> float:
    return geometric_mean(float(np.median(shape[contender])) for shape in times.seconds.values())


def _means(timed: Sequence[TaskTimes]) -> str:
    """Write the geometric means over the tasks as a sentence."""
    means = []
    for title, contender in (("eager", lambda _: "eager"), ("torch.compile", compiled)):
        ratios = [
            _median(each, contender(each)) / _median(each, best_of(each))
            for each in timed
            if contender(each) in _contenders(each)
        ]
        if ratios:
            means.append(f"{title} takes {geometric_mean(ratios):.3f} times as long over {len(ratios)} tasks")
    return "Geometric means: " + ", ".join(means) + "." if means else ""


def _search_cells(each: Searched, cost: SearchCost) -> list[str]:
    return [
        each.task,
        each.language,
        f"{each.start_seconds * 1e6:.1f}",
        f"{each.best_seconds * 1e6:.1f}",
        f"{each.speedup:.2f}x",
        str(cost.evaluations),
        f"{cost.candidate_seconds:.2f}",
        f"{cost.gpu_busy_share:.0%}",
    ]


def _time_cells(times: TaskTimes) -> list[str]:
    best = best_of(times)
    seconds = _median(times, best)
    return [
        times.task,
        best.removesuffix(BEST),
        f"{seconds * 1e6:.1f}",
        ratio(times, best.removesuffix(BEST) + START),
        ratio(times, "eager"),
        ratio(times, compiled(times)),
        f"{times.floor_seconds / seconds:.0%}",
    ]


if __name__ == "__main__":
    main()
