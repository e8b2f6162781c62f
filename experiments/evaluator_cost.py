"""What judging a candidate costs: this evaluator beside the usual route, stage by stage, on one GPU in one run.

    python -m mctskernel.experiments.evaluator_cost --out evaluator_cost.json

The evaluator's numbers are medians over a search of `--budget` candidates, once in CUDA C++ and once in Triton. The
usual route is an extension compiled by `load_inline`, compared by `torch.allclose`, timed by `do_bench`, and profiled
by `ncu` with the same metrics (`mctskernel.experiments.extension_route`).
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.experiments.extension_route import Judged
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.suites.search_cost import search_cost, stage_medians
from mctskernel.experiments.suites.searches import Plan, run_search
from mctskernel.profiling.counter_sets import DEFAULT_METRICS
from mctskernel.profiling.versions import package_versions
from mctskernel.report.view import load_view
from mctskernel.run import Budget

TOOLS = (("nvcc", "--version"), ("ncu", "--version"), ("nvidia-smi", "--query-gpu=name,driver_version"))
"""What the usual route needs beside PyTorch, and how it says its version."""


class Route(msgspec.Struct, frozen=True):
    """A way to judge candidates; medians in seconds. `problem` says in a sentence why numbers are missing.

    `metrics` is how many counters were read of a candidate, `machine` the fingerprint of the device. `wall_seconds`,
    of a candidate, and `gpu_busy_share` are None for a route that judges one candidate at a time.
    """

    name: str
    candidates: int = 0
    stages: dict[str, float] = {}
    total_seconds: float | None = None
    wall_seconds: float | None = None
    gpu_busy_share: float | None = None
    metrics: int = 0
    machine: dict[str, str] = {}
    problem: str = ""


class Report(msgspec.Struct, frozen=True):
    """Every route, the usual one last, and the versions of the tools."""

    task: str
    routes: list[Route]
    tools: dict[str, str]


@click.command()
@click.option("--task", default="softmax", show_default=True)
@click.option(
    "--budget", type=click.IntRange(min=1), default=50, show_default=True, help="Candidates a search."
)
@click.option("--language", type=click.Choice(["cuda", "triton", "both"]), default="both", show_default=True)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option(
    "--variants", type=click.IntRange(min=0), default=1, show_default=True, help="By the usual route."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Write JSON there.")
def main(*, task: str, budget: int, language: str, device: str, variants: int, out: Path) -> None:
    """Measure both routes and print the table."""
    languages = list(SOURCE_LANGUAGES) if language == "both" else [Language(language)]
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(device, "H100", None, Budget(budget), seed=0, runs=Path(folder))
        routes = [measure_search(task, each, plan) for each in languages]
        routes += [measure_extension(task, variants, Path(folder) / "extension.json")] if variants else []
    tools = package_versions("torch", "triton", "cuda-bindings") | _tool_versions()
    report = Report(task, routes, tools)
    write_result(out, report)
    print_report(Console(), report)


def measure_search(task: str, language: Language, plan: Plan) -> Route:
    """This evaluator over a search."""
    name = f"mctskernel, {language}"
    if problem := run_search(task, language, plan):
        return Route(name, problem=problem)
    run = load_view(plan.folder(task, language))
    cost = search_cost(run)
    counted = [
        len(node.evaluation.counters) for node in run.tree.nodes if node.evaluation and node.evaluation.ok
    ]
    return Route(
        name=name,
        candidates=cost.evaluations,
        stages=cost.stages,
        total_seconds=cost.candidate_seconds,
        wall_seconds=cost.wall_seconds_per_candidate,
        gpu_busy_share=cost.gpu_busy_share if plan.device == "gpu" else None,
        metrics=int(statistics.median(counted)),
        machine=run.manifest.fingerprint,
    )


def measure_extension(task: str, variants: int, file: Path) -> Route:
    """The usual route, in a process of its own."""
    name = "load_inline + ncu"
    command = [sys.executable, "-m", "mctskernel.experiments.extension_route", "judge", task]
    options = ["--variants", str(variants), "--out", str(file)]
    done = subprocess.run([*command, *options], check=False, stderr=subprocess.PIPE, text=True)
    if not file.exists():
        said = done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"]
        return Route(name, problem=said[-1])
    return summarise(name, msgspec.json.decode(file.read_bytes(), type=list[Judged]))


def summarise(name: str, judged: Sequence[Judged]) -> Route:
    """Medians of the variants; no total where one of them missed a stage."""
    stages = stage_medians(each.stage_seconds for each in judged)
    problems = [each.problem for each in judged if each.problem]
    whole = [sum(each.stage_seconds.values()) for each in judged if not each.problem]
    return Route(
        name=name,
        candidates=len(judged),
        stages=stages,
        total_seconds=statistics.median(whole) if whole else None,
        metrics=len(DEFAULT_METRICS) if whole else 0,
        problem=problems[0] if problems else "",
    )


def print_report(console: Console, report: Report) -> None:
    """The table, then what went wrong, then the machine."""
    usual = report.routes[-1]
    table = Table(title=f"Seconds per candidate: {report.task}")
    table.add_column("stage")
    for route in report.routes:
        table.add_column(route.name, justify="right")
    for stage in dict.fromkeys(stage for route in report.routes for stage in route.stages):
        table.add_row(stage, *(_seconds(route.stages.get(stage)) for route in report.routes))
    table.add_row("all, median", *(_seconds(route.total_seconds) for route in report.routes))
    ratios = [_times(usual.total_seconds, route.total_seconds) for route in report.routes]
    table.add_row(f"{usual.name} over it", *ratios, end_section=True)
    table.add_row("wall time", *(_seconds(route.wall_seconds) for route in report.routes))
    table.add_row("GPU busy", *(_percent(route.gpu_busy_share) for route in report.routes))
    table.add_row("counters", *(str(route.metrics or "") for route in report.routes))
    table.add_row("candidates", *(str(route.candidates or "") for route in report.routes))
    console.print(table)
    for route in report.routes:
        if route.problem:
            console.print(f"{route.name}: {route.problem}", markup=False)
    machine = next((route.machine for route in report.routes if route.machine), {}) | report.tools
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), markup=False)


def _seconds(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else ""


def _times(usual: float | None, ours: float | None) -> str:
    return f"{usual / ours:.0f}x" if usual and ours else ""


def _percent(share: float | None) -> str:
    return f"{share:.0%}" if share is not None else ""


def _tool_versions() -> dict[str, str]:
    found = {}
    for tool, flag in TOOLS:
        path = shutil.which(tool)
        options = [flag, "--format=csv,noheader"] if tool == "nvidia-smi" else [flag]
        done = subprocess.run([path, *options], capture_output=True, text=True, check=False) if path else None
        lines = done.stdout.strip().splitlines() if done else []
        found[tool] = lines[-1] if lines else "not on the PATH"
    return found


if __name__ == "__main__":
    main()
