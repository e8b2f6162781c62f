"""What is counted of an executor's evaluations, and the tables of it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import CounterSet
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.tickets import Tickets
from mctskernel.experiments import scaling
from mctskernel.experiments.records.documents import markdown
from mctskernel.experiments.throughput import Throughput, distinct_kernels, measured
from mctskernel.tasks import find_task


class Sleeping:
    """Evaluates so many at a time, each in 5 ms; the first ones, while it warms up, in 50 ms."""

    remarks = ()

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen: list[Kernel] = []
        self._tickets = Tickets()
        self._free = threading.Semaphore(capacity)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        self._tickets.begin(ticket)
        self.seen.append(kernel)
        slow = len(self.seen) <= self.capacity
        threading.Thread(target=self._tickets.run, args=(ticket, lambda: self._evaluate(slow))).start()

    def _evaluate(self, slow: bool) -> Evaluation:
        with self._free:
            time.sleep(0.05 if slow else 0.005)
        return Evaluation(Outcome.OK, Source.MEASURED)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        return self._tickets.wait(timeout)

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        raise NotImplementedError

    def fingerprint(self) -> dict[str, str]:
        return {"device": "gpu"}

    def close(self) -> None:
        pass


def test_what_is_counted_is_the_middle_of_a_sequence_without_repetitions() -> None:
    executor = Sleeping(2)
    kernels = [Kernel(f"kernel {number}\n") for number in range(5)]
    found = measured(executor, kernels, rounds=2, alone=3, settling_seconds=0.1)
    assert (found.evaluations, found.failures, found.in_flight, len(found.latencies)) == (10, 0, 2, 3)
    assert found.seconds < 0.5, "the slow first ones are left out"
    assert len(set(executor.seen)) == len(executor.seen)
    assert all(seconds >= 0.005 for seconds in found.latencies)


def test_the_rules_make_as_many_kernels_as_are_wanted_and_the_same_again() -> None:
    task = load_task(find_task("softmax"))
    kernels = distinct_kernels(task, 12)
    assert len({kernel.identity for kernel in kernels}) == 12
    assert kernels == distinct_kernels(task, 12)


def throughput(rate: float, latency: float) -> Throughput:
    return Throughput(30, 30 / rate, 0, 5, [latency] * 3, 1.0, {"gpu": "H200"}, [])


def test_the_tables_compare_with_one_gpu_and_with_the_local_engine() -> None:
    report = scaling.Report(
        "softmax",
        "gpu",
        [
            scaling.Arm("local", 1, throughput(5.0, 0.2)),
            scaling.Arm("local", 2, throughput(9.8, 0.2)),
            scaling.Arm("ray", 2, throughput(9.0, 0.21)),
            scaling.Arm("ray", 4, problem="There is no such cluster."),
            scaling.Arm("local", 1, throughput(8.0, 0.2), counters=CounterSet.FEW),
            scaling.Arm("local", 2, throughput(15.0, 0.2), counters=CounterSet.FEW),
        ],
        [scaling.Searched(1, 0, 60, 12.0, 4.0), scaling.Searched(2, 0, 60, 6.0, 3.9)],
        [scaling.InFlight(8, 4, {50: 0.8, 100: 0.9, 200: 0.95})],
    )
    rows = [
        [cell.strip() for cell in line.split("|")] for line in markdown(scaling.document(report)).splitlines()
    ]
    assert ["", "local", "all", "2", "5", "30", "9.80", "1.96", "1.0", "0.200", ""] in rows
    assert ["", "local", "few", "2", "5", "30", "15.00", "1.88", "1.0", "0.200", ""] in rows
    assert ["", "ray", "all", "2", "10.0", "18.1", ""] in rows
    assert ["", "2", "1", "60", "10.00", "3.900", "97.5", ""] in rows
    assert ["", "8", "4", "80.0", "90.0", "95.0", ""] in rows
    assert ["ray on 4: There is no such cluster."] in rows


def test_an_arm_sees_the_first_gpus_of_those_that_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    show = "import os, sys; sys.exit(os.environ['CUDA_VISIBLE_DEVICES'])"
    run: Callable[..., str] = scaling._run
    assert run([sys.executable, "-c", show], 2, "gpu") == "4,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert run([sys.executable, "-c", show], 2, "gpu") == "0,1"
    assert run([sys.executable, "-c", ""], 2, "gpu") == ""
