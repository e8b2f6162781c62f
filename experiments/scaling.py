"""Evaluations a second of a fixed list of kernels, by number of GPUs, engine and set of counters.

    python -m mctskernel.experiments.scaling --gpus 1,2,4 --engines local,ray --counters all,few,time --out FILE

Every arm is a process of its own, which sees the first GPUs of those that this one sees. On `--device model` a GPU is
a worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import ENGINES, CounterSet, Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.executors import open_executor
from mctskernel.experiments import results
from mctskernel.profiling import build_cache
from mctskernel.tasks.builtin import find_task

VISIBLE = "CUDA_VISIBLE_DEVICES"

SETTLING_SECONDS = 8.0
"""Evaluations that end before this aren't counted: processes start, caches fill, GPUs of a cluster join."""


class Arm(msgspec.Struct, frozen=True):
    """One engine on so many GPUs: evaluations in so many seconds. `problem` says why nothing was measured."""

    engine: str
    counters: CounterSet
    gpus: int
    in_flight: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    failures: int = 0
    fingerprint: dict[str, str] = {}
    problem: str = ""


@click.command()
@click.option("--task", default="softmax", show_default=True)
@click.option("--gpus", default="1,2", show_default=True, help="Numbers of GPUs.")
@click.option("--engines", default="local", show_default=True, help=f"Of {', '.join(ENGINES)}.")
@click.option("--counters", default="all", show_default=True, help=f"Of {', '.join(CounterSet)}.")
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--kernels", type=click.IntRange(min=1), default=30, show_default=True, help="In the list.")
@click.option("--rounds", type=click.IntRange(min=1), default=4, show_default=True, help="Of that list.")
@click.option("--settling", type=float, default=SETTLING_SECONDS, show_default=True, help="Seconds.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A JSON file.")
@click.option("--arm", is_flag=True, hidden=True, help="Measure one arm in this process.")
def main(
    *,
    task: str,
    gpus: str,
    engines: str,
    counters: str,
    device: str,
    kernels: int,
    rounds: int,
    settling: float,
    out: Path,
    arm: bool,
) -> None:
    """Measure every arm, print the table and write the numbers."""
    # Earlier builds would hide the cost of building.
    os.environ[build_cache.VARIABLE] = build_cache.OFF
    if arm:
        wanted = Arm(engines, CounterSet(counters), int(gpus))
        out.write_bytes(
            msgspec.json.encode(
                measure(wanted, task, device, kernels=kernels, rounds=rounds, settling=settling)
            )
        )
        return
    words = ["--task", task, "--device", device, "--kernels", str(kernels), "--rounds", str(rounds)]
    words += ["--settling", str(settling), "--out", str(out), "--arm"]
    arms = [
        _in_process(Arm(engine, CounterSet(each), int(number)), words, out)
        for each in counters.split(",")
        for engine in engines.split(",")
        for number in gpus.split(",")
    ]
    out.write_bytes(msgspec.json.encode(arms))
    click.echo(table(arms))


def measure(wanted: Arm, task: str, device: str, *, kernels: int, rounds: int, settling: float) -> Arm:
    """Evaluate the list again and again, as many at a time as there can be, and count once it has settled."""
    folder = find_task(task)
    spec = DeviceSpec(device, folder)
    options = ExecutorOptions(wanted.engine, counters=wanted.counters if device == "gpu" else None)
    with open_executor(spec, wanted.gpus if device == "model" else 0, options) as executor:
        found = distinct_kernels(load_task(folder), kernels)
        return _counted(wanted, executor, found, rounds * len(found), settling)


def _counted(wanted: Arm, executor: Executor, kernels: Sequence[Kernel], count: int, settling: float) -> Arm:
    began, submitted, came = time.perf_counter(), 0, 0
    counted: list[Evaluation] = []
    since = 0.0
    while len(counted) < count:
        while submitted - came < executor.capacity:
            # No text is evaluated twice: a comment tells the rounds apart.
            kernel = kernels[submitted % len(kernels)]
            executor.submit(submitted, replace(kernel, source=f"{kernel.source}// {submitted}\n"))
            submitted += 1
        for _, evaluation in executor.wait():
            came += 1
            if since:
                counted.append(evaluation)
        if not since and time.perf_counter() - began >= settling and came > executor.capacity:
            since = time.perf_counter()
    return msgspec.structs.replace(
        wanted,
        in_flight=executor.capacity,
        evaluations=len(counted),
        seconds=time.perf_counter() - since,
        failures=sum(not evaluation.ok for evaluation in counted),
        fingerprint=executor.fingerprint(),
    )


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


def table(arms: Sequence[Arm]) -> str:
    """The arms as Markdown, each beside one GPU with the same engine and counters."""
    one = {(arm.engine, arm.counters): _rate(arm) for arm in arms if arm.gpus == 1 and arm.seconds}
    rows = []
    for arm in arms:
        first = one.get((arm.engine, arm.counters))
        times = f"{_rate(arm) / first:.2f}" if first and arm.seconds else ""
        counts = map(str, (arm.gpus, arm.in_flight, arm.evaluations))
        rows.append([arm.engine, arm.counters, *counts, arm.problem or f"{_rate(arm):.2f}", times])
    columns = ["engine", "counters", "GPUs", "in flight", "evaluations", "a second", "times one GPU"]
    return results.table(columns, rows)


def _rate(arm: Arm) -> float:
    return arm.evaluations / arm.seconds if arm.seconds else 0.0


def _in_process(wanted: Arm, words: Sequence[str], out: Path) -> Arm:
    command = [sys.executable, "-m", "mctskernel.experiments.scaling", *words]
    command += ["--gpus", str(wanted.gpus), "--engines", wanted.engine, "--counters", wanted.counters]
    seen = os.environ.get(VISIBLE) or ",".join(map(str, range(wanted.gpus)))
    environment = os.environ | {VISIBLE: ",".join(seen.split(",")[: wanted.gpus])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return msgspec.json.decode(out.read_bytes(), type=Arm)
    last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    return msgspec.structs.replace(wanted, problem=last)


if __name__ == "__main__":
    main()
