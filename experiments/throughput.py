"""How many evaluations a second an executor makes of a fixed list of kernels, in a process of its own.

    python -m mctskernel.experiments.throughput softmax --engine local --out FILE

What it may use is what the process sees: `CUDA_VISIBLE_DEVICES` says which GPUs there are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.disk import write_whole
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import ENGINES, CounterSet, Executor, ExecutorOptions
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.executors import open_executor
from mctskernel.profiling.stages import Stages
from mctskernel.tasks import find_task

WARMING = 4
"""Evaluations for each that can be in flight before anything is counted: processes start, caches fill."""

SETTLING_SECONDS = 8.0
"""How long that lasts at least: in a cluster GPUs join one after the other."""


class Throughput(msgspec.Struct, frozen=True):
    """Evaluations in so many seconds, with `in_flight` at a time; `latencies` are seconds of kernels one at a time.

    `failures` are those of the evaluations that weren't ok, `opening_seconds` what passed before the first could begin.
    `stage_seconds` are means over the evaluations: a stage that grows with the number of GPUs is where they wait for
    each other.
    """

    evaluations: int
    seconds: float
    failures: int
    in_flight: int
    latencies: list[float]
    opening_seconds: float
    fingerprint: dict[str, str]
    remarks: list[str]
    stage_seconds: dict[str, float] = {}

    @property
    def rate(self) -> float:
        """Evaluations a second."""
        return self.evaluations / self.seconds


def distinct_kernels(task: Task, count: int) -> list[Kernel]:
    """The starting kernel, what the rules make of it, what they make of that, and so on, up to `count`."""
    found = {task.starting_kernel.identity: task.starting_kernel}
    waiting = deque(found.values())
    while waiting and len(found) < count:
        kernel = waiting.popleft()
        request = ProposalRequest(task, kernel, Evaluation(Outcome.OK, Source.MEASURED))
        for edit in RuleProposer().propose(request).edits:
            try:
                made = apply(kernel, edit)
            except PatchError:
                continue
            if made.identity not in found:
                found[made.identity] = made
                waiting.append(made)
    return list(found.values())[:count]


def measured(
    executor: Executor,
    kernels: Sequence[Kernel],
    *,
    rounds: int,
    alone: int,
    settling_seconds: float = SETTLING_SECONDS,
) -> Throughput:
    """Evaluate the kernels in their order, again and again, with as many in flight as there can be.

    Counted are as many as `rounds` of all, in the middle, where nothing starts and nothing ends. Then `alone` of them
    are evaluated one at a time. No text is evaluated twice: a comment tells the rounds apart.
    """
    evaluations = rounds * len(kernels)
    first, submitted, began = 0, 0, time.perf_counter()
    came: list[tuple[float, Evaluation]] = []
    while not first or len(came) <= first + evaluations:
        while submitted - len(came) < executor.capacity:
            executor.submit(submitted, _again(kernels, submitted))
            submitted += 1
        came += [(time.perf_counter(), evaluation) for _, evaluation in executor.wait()]
        settled = time.perf_counter() - began >= settling_seconds and len(came) > WARMING * executor.capacity
        first = first or (len(came) - 1 if settled else 0)
    counted = [evaluation for _, evaluation in came[first : first + evaluations]]
    in_flight = executor.capacity
    while executor.wait():
        pass
    return Throughput(
        evaluations=evaluations,
        seconds=came[first + evaluations][0] - came[first][0],
        failures=sum(not evaluation.ok for evaluation in counted),
        in_flight=in_flight,
        latencies=list(
            _one_at_a_time(executor, [_again(kernels, submitted + each) for each in range(alone)])
        ),
        opening_seconds=0.0,
        fingerprint=executor.fingerprint(),
        remarks=list(executor.remarks),
        stage_seconds=_mean_stages(counted),
    )


def _mean_stages(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    total = Stages()
    for evaluation in evaluations:
        total.add(evaluation.stage_seconds)
    return {stage: seconds / len(evaluations) for stage, seconds in total.seconds.items()}


def _one_at_a_time(executor: Executor, kernels: Sequence[Kernel]) -> Iterator[float]:
    for ticket, kernel in enumerate(kernels):
        began = time.perf_counter()
        executor.submit(ticket, kernel)
        while not executor.wait():
            pass
        yield time.perf_counter() - began


def _again(kernels: Sequence[Kernel], number: int) -> Kernel:
    kernel = kernels[number % len(kernels)]
    comment = "#" if kernel.language is Language.TRITON else "//"
    return replace(kernel, source=f"{kernel.source}{comment} {number // len(kernels)}\n")


@click.command()
@click.argument("task")
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--language", type=click.Choice([each.value for each in SOURCE_LANGUAGES]), default="cuda")
@click.option("--workers", type=click.IntRange(min=0), default=0, help="0 for as many as there is room for.")
@click.option("--counters", type=click.Choice([each.value for each in CounterSet]), help="Of a GPU.")
@click.option("--kernels", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--alone", type=click.IntRange(min=0), default=10, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    *,
    task: str,
    engine: str,
    device: str,
    language: str,
    workers: int,
    counters: str | None,
    kernels: int,
    rounds: int,
    alone: int,
    out: Path,
) -> None:
    """Measure, and write what came of it as JSON."""
    folder = find_task(task)
    loaded = load_task(folder, Language(language))
    list_of_kernels = distinct_kernels(loaded, kernels)
    spec = DeviceSpec(device, folder, language=loaded.starting_kernel.language)
    began = time.perf_counter()
    options = ExecutorOptions(engine, counters=CounterSet(counters) if counters else None)
    with open_executor(spec, workers, options) as executor:
        opened = time.perf_counter() - began
        found = measured(executor, list_of_kernels, rounds=rounds, alone=alone)
    found = msgspec.structs.replace(found, opening_seconds=opened)
    write_whole(out, msgspec.json.encode(found))


if __name__ == "__main__":
    main()
