"""What Ray adds to an evaluation on one host: `python -m mctskernel.experiments.ray_overhead --out FILE`.

The device takes no time (`subjects.instant_device`), so all that passes is the executor's: from a kernel that is
submitted to the evaluation that comes back, one at a time. The two executors take turns, each with one worker process,
in a cluster that is started for this and ends with it.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.local import LocalExecutor
from mctskernel.executors.ray.cluster import OWN, connected
from mctskernel.executors.ray.executor import RayExecutor
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.subjects.instant_device import InstantDevice
from mctskernel.profiling.versions import package_versions
from mctskernel.tasks import find_task

TASK = "matmul"
ROUNDS = 10
PER_ROUND = 20
WARMING = 20
"""Evaluations before the first that counts."""


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds of an evaluation on one executor: the median, and what 19 of 20 stay below."""

    median: float
    most: float


class Report(msgspec.Struct, frozen=True):
    """The latencies of the executors, and how many milliseconds the second one's median is above the first one's."""

    evaluations: int
    local: Latency
    ray: Latency
    added: float
    ray_version: str


@click.command(help=__doc__)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where the figures go, as JSON.")
def main(out: Path | None) -> None:
    """Measure, print, and write down."""
    report = measure()
    click.echo(
        f"local {report.local.median:.2f} ms, Ray {report.ray.median:.2f} ms: {report.added:.2f} ms more"
    )
    if out is not None:
        write_result(out, report)


def measure() -> Report:
    """Evaluate the starting kernel of a built-in task on both executors, in turns."""
    task = load_task(find_task(TASK))
    spec = DeviceSpec("model", task.folder)
    samples: tuple[list[float], list[float]] = ([], [])
    with (
        LocalExecutor(spec, opener=InstantDevice) as local,
        connected(OWN, 1) as cluster,
        RayExecutor(spec, cluster, workers=1, opener=InstantDevice) as ray,
    ):
        executors: tuple[Executor, Executor] = (local, ray)
        for executor in executors:
            _seconds(executor, task.starting_kernel, WARMING)
        for _ in range(ROUNDS):
            for executor, found in zip(executors, samples, strict=True):
                found.extend(_seconds(executor, task.starting_kernel, PER_ROUND))
    first, second = map(_latency, samples)
    added = second.median - first.median
    return Report(ROUNDS * PER_ROUND, first, second, added, package_versions("ray")["ray"])


def _seconds(executor: Executor, kernel: Kernel, count: int) -> list[float]:
    found = []
    for ticket in range(count):
        began = time.perf_counter()
        executor.submit(ticket, kernel)
        executor.wait()
        found.append(time.perf_counter() - began)
    return found


def _latency(seconds: list[float]) -> Latency:
    return Latency(statistics.median(seconds) * 1e3, statistics.quantiles(seconds, n=20)[-1] * 1e3)


if __name__ == "__main__":
    main()
