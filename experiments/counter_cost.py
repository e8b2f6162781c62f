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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing.synchronize import Barrier
from pathlib import Path

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

DRIVER_NAME = "GPU-{}-{}-{}-{}-{}"


class Cost(msgspec.Struct, frozen=True):
    """Seconds of each measurement of a set, with so many GPUs at it; `passes` are runs of the kernel for one."""

    counters: CounterSet
    gpus: int
    metrics: int
    passes: int
    seconds: list[float]


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
    return Cost(
        counters,
        len(uuids),
        len(METRICS[counters]),
        found[0][0],
        [each for _, costs in found for each in costs],
    )


def page(report: Report) -> str:
    """The table as Markdown."""
    rows = list(_rows(report))
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


def _rows(report: Report) -> Iterator[list[str]]:
    for cost in report.costs:
        tail = statistics.quantiles(cost.seconds, n=20)[-1] if len(cost.seconds) > 1 else cost.seconds[0]
        middle = statistics.median(cost.seconds)
        yield [
            cost.counters,
            str(cost.metrics),
            str(cost.passes),
            str(cost.gpus),
            f"{1e3 * middle:.1f}",
            f"{1e3 * tail:.1f}",
        ]


_TOGETHER: list[Barrier] = []
"""Where a process waits for the others, which its first function is given."""


def _meet(together: Barrier) -> None:
    _TOGETHER.append(together)


def _count(uuid: str, counters: CounterSet, seconds: float) -> tuple[int, list[float]]:
    """Count in this process, which has touched no GPU yet, from when all others can."""
    parts = (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
    os.environ["CUDA_VISIBLE_DEVICES"] = DRIVER_NAME.format(*parts)
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
