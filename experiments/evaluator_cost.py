"""Seconds per candidate by stage of a search, in CUDA C++ and in Triton.

    python -m mctskernel.experiments.evaluator_cost --out evaluator_cost.json

Numbers are medians over a search of `--budget` candidates; the build cache is off.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import click
import msgspec

from mctskernel.config import for_task, read_config
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.task_file import load_task
from mctskernel.experiments.results import page, table, write_result
from mctskernel.profiling import build_cache
from mctskernel.profiling.versions import package_versions
from mctskernel.run import read_manifest, spent_seconds
from mctskernel.run.search import begin
from mctskernel.tasks.builtin import find_task
from mctskernel.tree.journal import read_events

GPU_STAGES = ("verify", "time", "counters")
"""The stages in which the GPU is held for one candidate; a build needs no GPU."""


class Cost(msgspec.Struct, frozen=True):
    """A search; medians in seconds. `problem` says in a sentence why numbers are missing.

    `stages` are medians over the evaluations that had the stage. `total_seconds` is of one candidate, `wall_seconds`
    the time of the search over its candidates, which overlap. `metrics` is how many counters were read of a candidate,
    `machine` the fingerprint of the device.
    """

    language: Language
    candidates: int = 0
    stages: dict[str, float] = {}
    total_seconds: float | None = None
    wall_seconds: float | None = None
    gpu_busy_share: float | None = None
    metrics: int = 0
    machine: dict[str, str] = {}
    problem: str = ""


class Report(msgspec.Struct, frozen=True):
    """The cost of a search in each language, and the versions of the tools."""

    task: str
    searches: list[Cost]
    tools: dict[str, str]


@click.command()
@click.option("--task", default="softmax", show_default=True)
@click.option(
    "--budget", type=click.IntRange(min=1), default=50, show_default=True, help="Candidates a search."
)
@click.option("--language", type=click.Choice(["cuda", "triton", "both"]), default="both", show_default=True)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Write JSON there.")
def main(*, task: str, budget: int, language: str, device: str, out: Path) -> None:
    """Search a task in each language and print the table."""
    # Earlier builds would hide the cost of building.
    os.environ[build_cache.VARIABLE] = build_cache.OFF
    languages = list(SOURCE_LANGUAGES) if language == "both" else [Language(language)]
    with tempfile.TemporaryDirectory() as folder:
        searches = [measure_search(task, each, device, budget, Path(folder) / each) for each in languages]
    report = Report(task, searches, package_versions("torch", "triton", "cuda-bindings"))
    write_result(out, report)
    click.echo(document(report))


def measure_search(name: str, language: Language, device: str, budget: int, out: Path) -> Cost:
    """Search a task in a new run and take the medians of its evaluations."""
    folder = find_task(name)
    config = read_config({"language": language, "device": device, "budget": {"evaluations": budget}})
    result = begin(out, folder, for_task(config, load_task(folder, language)), lambda _: None, lambda: False)
    if result.problem:
        return Cost(language, problem=result.problem)
    found = [node.evaluation for node in result.tree.nodes if node.evaluation is not None]
    stages = dict.fromkeys(stage for each in found for stage in each.stage_seconds)
    busy = sum(each.stage_seconds.get(stage, 0.0) for each in found for stage in GPU_STAGES)
    wall = spent_seconds(read_events(result.folder.journal))
    return Cost(
        language,
        candidates=len(found),
        stages={
            stage: statistics.median(
                each.stage_seconds[stage] for each in found if stage in each.stage_seconds
            )
            for stage in stages
        },
        total_seconds=statistics.median(each.cost_seconds for each in found),
        wall_seconds=wall / len(found),
        gpu_busy_share=busy / wall if device == "gpu" else None,
        metrics=int(statistics.median(len(each.counters) for each in found if each.ok)),
        machine=read_manifest(result.folder).fingerprint,
    )


def document(report: Report) -> str:
    """Make the page: the table, problems, and the machine."""
    searches = report.searches
    stages = dict.fromkeys(stage for each in searches for stage in each.stages)
    rows = [[stage, *(_seconds(each.stages.get(stage)) for each in searches)] for stage in stages]
    rows += [
        ["all, median", *(_seconds(each.total_seconds) for each in searches)],
        ["wall time", *(_seconds(each.wall_seconds) for each in searches)],
        ["GPU busy", *(f"{s.gpu_busy_share:.0%}" if s.gpu_busy_share is not None else "" for s in searches)],
        ["counters", *(str(each.metrics or "") for each in searches)],
        ["candidates", *(str(each.candidates or "") for each in searches)],
    ]
    machine = next((each.machine for each in searches if each.machine), {}) | report.tools
    return page(
        f"Seconds per candidate: {report.task}",
        table(["stage", *(str(each.language) for each in searches)], rows),
        "\n".join(f"- {each.language}: {each.problem}" for each in searches if each.problem),
        ", ".join(f"{name} {value}" for name, value in machine.items()),
    )


def _seconds(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else ""


if __name__ == "__main__":
    main()
