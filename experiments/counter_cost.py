"""What each set of counters costs to read, on one GPU and on several of one machine at the same time.

    python -m mctskernel.experiments.counter_cost --gpus 1,2 --out FILE

Every GPU has a process of its own, which counts one launch of a copying kernel again and again; all begin together, and
nobody waits for a turn. Where more GPUs take longer the driver serves one at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing.synchronize import Barrier
from pathlib import Path
from uuid import UUID

import click
import msgspec

from mctskernel.core.executor import CounterSet
from mctskernel.experiments.compare_counters import opened_workbench
from mctskernel.experiments.records.documents import Document, Section, Table, Text, markdown
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.counter_sets import METRICS
from mctskernel.profiling.gpu.choice import chosen_gpus
from mctskernel.profiling.gpu.cupti import RangeProfiler

STARTING_SECONDS = 60.0
"""How long processes may take until all of them can count."""


class Cost(msgspec.Struct, frozen=True):
    """What a measurement of a set takes with so many GPUs at it, in seconds: the median, and what 19 of 20 stay below.

    `passes` are runs of the kernel for one of them.
    """

    counters: CounterSet
    gpus: int
    metrics: int
    passes: int
    measurements: int
    median_seconds: float
    tail_seconds: float


class Report(msgspec.Struct, frozen=True):
    """What was measured on a machine's GPUs."""

    gpu: str
    costs: list[Cost]


@click.command()
@click.option("--gpus", default="1", show_default=True, help="Numbers of GPUs.")
@click.option(
    "--seconds", type=float, default=2.0, show_default=True, help="Of counting, of each set and number."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A file; FILE.md is beside it.")
def main(*, gpus: str, seconds: float, out: Path) -> None:
    """Measure, print the table, and write it with its numbers."""
    choice = chosen_gpus(())
    costs = [
        measure(choice.uuids[:number], counters, seconds)
        for counters in CounterSet
        for number in map(int, gpus.split(","))
    ]
    report = Report(choice.gpus[0].name, costs)
    write_result(out, report)
    text = page(report)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    click.echo(text)


def measure(uuids: Sequence[str], counters: CounterSet, seconds: float) -> Cost:
    """Count on several GPUs at once."""
    spawned = multiprocessing.get_context("spawn")
    together = spawned.Barrier(len(uuids), timeout=STARTING_SECONDS)
    with ProcessPoolExecutor(len(uuids), spawned, _meet, (together,)) as processes:
        found = list(processes.map(_count, uuids, repeat(counters), repeat(seconds)))
    return summary(counters, len(uuids), found[0][0], [each for _, costs in found for each in costs])


def summary(counters: CounterSet, gpus: int, passes: int, seconds: Sequence[float]) -> Cost:
    """The cost by the seconds of each measurement, two at least."""
    tail = statistics.quantiles(seconds, n=20)[-1]
    return Cost(
        counters, gpus, len(METRICS[counters]), passes, len(seconds), statistics.median(seconds), tail
    )


def page(report: Report) -> str:
    """The table as Markdown."""
    rows = [
        [
            cost.counters,
            str(cost.metrics),
            str(cost.passes),
            str(cost.gpus),
            f"{1e3 * cost.median_seconds:.1f}",
            f"{1e3 * cost.tail_seconds:.1f}",
        ]
        for cost in report.costs
    ]
    columns = ["counters", "metrics", "passes", "GPUs", "ms, median", "19 of 20 take less than"]
    document = Document(
        f"What counters cost: {report.gpu}",
        [Section("Milliseconds a kernel", [Table(columns, rows), _READING])],
    )
    return markdown(document) + "\n"


_READING = Text(
    "One launch of a kernel that copies 128 MiB, counted again and again, on each GPU by a process of its own, which "
    "waits for no turn."
)


_TOGETHER: list[Barrier] = []
"""Where a process waits for the others, which its first function is given."""


def _meet(together: Barrier) -> None:
    _TOGETHER.append(together)


def _count(uuid: str, counters: CounterSet, seconds: float) -> tuple[int, list[float]]:
    """Count in this process, which has touched no GPU yet, from when all others can."""
    os.environ["CUDA_VISIBLE_DEVICES"] = f"GPU-{UUID(uuid)}"
    with opened_workbench() as bench:
        profiler = RangeProfiler(METRICS[counters])
        launch = bench.launches["copy"]
        profiler.measure(launch, 1)
        _TOGETHER[0].wait()
        costs: list[float] = []
        while sum(costs) < seconds:
            began = time.perf_counter()
            profiler.measure(launch, 1)
            costs.append(time.perf_counter() - began)
        profiler.close()
        return profiler.passes, costs


if __name__ == "__main__":
    main()
