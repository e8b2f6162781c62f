"""What a cluster does to a search: processes and nodes that come, are lost, or don't answer any more."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._private.state import actors
from ray.cluster_utils import Cluster

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.executors.ray.cluster import connected
from mctskernel.executors.ray.executor import Patience, RayExecutor
from mctskernel.executors.task_files import PREFIX
from tests.executors.ray.waiting import drain, until

PATIENCE = Patience(silence=8.0, pulse=0.2, news=0.1)


@pytest.fixture(scope="module")
def executor(nodes: Cluster, small_task: Path) -> Iterator[RayExecutor]:
    """Two evaluators, whose kernels say what they do; every test leaves it as it was."""
    fake = importlib.import_module("fake_devices").Fake
    spec = DeviceSpec("model", small_task, seed=5)
    with connected(nodes.address, 1) as cluster:
        with RayExecutor(spec, cluster, patience=PATIENCE, opener=fake) as opened:
            yield opened
        until(lambda: not alive() and ray.available_resources().get("CPU") == 2)
        assert not list(Path(os.environ["TMPDIR"]).glob(f"{PREFIX}*")), "a task was left on a node"


@pytest.fixture(autouse=True)
def settled(executor: RayExecutor) -> Iterator[None]:
    """Both evaluators are there before a test and after it."""
    until(lambda: executor.capacity == 2)
    yield
    until(lambda: executor.capacity == 2)


def alive() -> list[int]:
    """The processes of the evaluators that Ray knows, the oldest first."""
    found = [each for each in actors().values() if each["State"] == "ALIVE"]
    return [each["Pid"] for each in sorted(found, key=lambda each: each["StartTime"])]


def test_results_are_those_of_one_machine(executor: RayExecutor) -> None:
    sources = ["ok a", "abort", "sleep 0.05", "raise c", "exit 2", "flood 3000000", "report spec"]
    for ticket, source in enumerate(sources):
        executor.submit(ticket, Kernel(source))
    with pytest.raises(ValueError, match="in flight"):
        executor.submit(0, Kernel("ok"))
    found = drain(executor, len(sources))
    assert [found[i].outcome for i in (0, 2, 5)] == [Outcome.OK] * 3
    assert found[1].message == "The process that judged the kernel was killed by SIGABRT."
    assert found[4].log == "the last words\n"
    assert len(found[5].log) == 3_000_000
    assert "seed=5" in found[6].message
    assert executor.wait(0.01) == []
    assert executor.fingerprint() == {"seed": "5"}


def test_the_last_gate_is_passed_there_with_a_seed_of_its_own(executor: RayExecutor) -> None:
    executor.submit(1, Kernel("sleep 0.3"))
    found = executor.last_gate(Kernel("report spec"), Kernel("ok"))
    assert "last gate" in found.message
    assert "seed=5," not in found.message
    (timing,) = executor.last_gate(Kernel("ok 0"), Kernel("sleep 0")).timings
    assert timing.baseline_seconds == 1.0
    assert drain(executor, 1)[1].ok


def test_an_evaluator_that_is_lost_while_idle_costs_nothing(executor: RayExecutor) -> None:
    for pid in alive():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive())
    executor.submit(1, Kernel("ok"))
    assert drain(executor, 1)[1].ok


def test_a_kernel_that_nobody_had_begun_to_judge_is_not_blamed(executor: RayExecutor) -> None:
    stopped = alive()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    executor.submit(1, Kernel("ok"))
    for pid in stopped:
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        until(lambda: executor.capacity == 1)
    assert drain(executor, 1)[1].ok


def test_a_kernel_that_was_being_judged_is_tried_once_more_and_then_it_is_the_kernel(
    executor: RayExecutor,
) -> None:
    executor.submit(1, Kernel("sleep 2"))
    executor.submit(2, Kernel("sleep 2"))
    time.sleep(0.5)
    for pid in alive():
        os.kill(pid, signal.SIGKILL)
    assert all(each.ok for each in drain(executor, 2).values())
    until(lambda: executor.capacity == 2)
    executor.submit(3, Kernel("sleep 7"))
    for _ in range(2):
        until(lambda: executor.capacity == 2)
        time.sleep(0.5)
        for pid in alive():
            os.kill(pid, signal.SIGKILL)
        until(lambda: executor.capacity == 1)
    lost = drain(executor, 1)[3]
    assert (lost.outcome, lost.guard) == (Outcome.CRASH, Guard.SEPARATE_PROCESS)
    assert "lost 2 times" in lost.message


def test_an_evaluator_that_is_not_heard_of_counts_as_lost(executor: RayExecutor) -> None:
    stopped = alive()[0]
    os.kill(stopped, signal.SIGSTOP)
    for ticket in range(2):
        executor.submit(ticket, Kernel(f"sleep 0.{ticket + 1}"))
    began = time.monotonic()
    found = drain(executor, 2)
    os.kill(stopped, signal.SIGCONT)
    assert all(each.ok for each in found.values())
    assert time.monotonic() - began > PATIENCE.silence
    assert executor.wait(0.3) == []


def test_a_cluster_that_has_no_gpu_and_gets_none_is_told_in_a_sentence(
    nodes: Cluster, executor: RayExecutor, small_task: Path
) -> None:
    patience = Patience(arrival=0.3, news=0.1)
    with connected(nodes.address, 1) as cluster, pytest.raises(DeviceError, match="no GPU of it is free"):
        RayExecutor(DeviceSpec("gpu", small_task), cluster, patience=patience)


def test_nodes_come_and_go_while_kernels_are_judged(nodes: Cluster, executor: RayExecutor) -> None:
    node = nodes.add_node(num_cpus=1)
    until(lambda: executor.capacity == 3)
    for ticket in range(3):
        executor.submit(ticket, Kernel("sleep 1"))
    time.sleep(0.3)
    nodes.remove_node(node, allow_graceful=False)
    found = drain(executor, 3)
    assert all(each.ok for each in found.values())
