"""GPUs of a cluster's nodes, and CPUs that build for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.ray.cluster import connected
from mctskernel.executors.ray.executor import Patience, RayExecutor
from mctskernel.profiling.gpu.turn import Turn
from tests.executors.ray.waiting import drain, until

SERVICE = "assorted_gpus:AssortedGpu"
PATIENCE = Patience(silence=8.0, pulse=0.2, news=0.1)


@pytest.fixture(scope="module")
def executor(nodes: Cluster, small_task: Path) -> Iterator[RayExecutor]:
    """Two GPUs that are alike, of three, and two processes that build for them."""
    folder = Path(os.environ["CUDA_TEST_FOLDER"])
    (folder / "broken-gpu").touch()
    node = nodes.add_node(num_cpus=0, num_gpus=3)
    spec = DeviceSpec("gpu", small_task)
    with (
        connected(nodes.address, 1) as cluster,
        RayExecutor(spec, cluster, workers=2, patience=PATIENCE, service=SERVICE) as opened,
    ):
        until(lambda: opened.capacity == 4)
        (folder / "late-gpu").touch()
        yield opened
    nodes.remove_node(node)


def kernel(name: str, task: Path) -> Kernel:
    return Kernel(load_task(task).starting_kernel.source.replace("twice", name))


def test_kernels_are_built_on_cpus_and_judged_on_every_gpu_of_the_first_ones_kind(
    executor: RayExecutor, small_task: Path
) -> None:
    names = ("faster", "wrong", "no_such", "die", "twice", "faster", "twice", "faster")
    kernels = [kernel(name, small_task) for name in names]
    kernels[2] = Kernel("no kernel at all")
    for ticket, each in enumerate(kernels):
        executor.submit(ticket, each)
    found = drain(executor, len(kernels))
    outcomes = [found[ticket].outcome for ticket in range(len(kernels))]
    ok, wrong, crash = Outcome.OK, Outcome.WRONG_RESULT, Outcome.CRASH
    assert outcomes == [ok, wrong, Outcome.REJECTED, crash, ok, ok, ok, ok]
    assert {each.gpu for each in found.values() if each.ok} == {"fake0", "fake1"}
    assert found[0].timings[0].baseline_seconds == pytest.approx(100e-6, rel=1e-3)
    assert next(iter(found[0].stage_seconds)) == "build"
    assert executor.fingerprint()["gpu"] == "Fake GPU"
    assert "uuid" not in executor.fingerprint()
    until(lambda: any("its gpu is Other GPU, theirs Fake GPU" in remark for remark in executor.remarks))
    assert any("Few counters were read" in remark for remark in executor.remarks), "of three GPUs of a node"


def test_the_last_gate_is_passed_on_one_of_them(executor: RayExecutor, small_task: Path) -> None:
    found = executor.last_gate(kernel("faster", small_task), kernel("twice", small_task))
    assert found.ok, found.message
    assert {check.shape for check in found.checks} == {"n=77", "n=5000"}
    assert (
        executor.last_gate(kernel("wrong", small_task), kernel("twice", small_task)).outcome
        is Outcome.WRONG_RESULT
    )


def test_who_waits_for_a_gpus_turn_is_not_lost_however_long_it_takes(
    executor: RayExecutor, small_task: Path
) -> None:
    with ExitStack() as stack:
        for uuid in ("fake0", "fake1"):
            turn = stack.enter_context(closing(Turn(uuid)))
            stack.enter_context(turn.held())
        for ticket in range(2):
            executor.submit(ticket, kernel("faster", small_task))
        assert executor.wait(PATIENCE.silence + 1.0) == []
        assert executor.capacity == 4
    assert all(each.ok for each in drain(executor, 2).values())


def test_a_gpu_that_breaks_is_left_out_and_what_it_judged_goes_to_another(
    executor: RayExecutor, small_task: Path
) -> None:
    Path(os.environ["CUDA_TEST_FOLDER"], "broken-gpu").write_text("0")
    for ticket in range(4):
        executor.submit(ticket, kernel("faster", small_task))
    found = drain(executor, 4)
    assert all(each.ok for each in found.values())
    until(lambda: any("left out after 3 failures" in remark for remark in executor.remarks))
    assert executor.capacity == 3
