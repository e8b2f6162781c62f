"""A search's side of a cluster, whose processes are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray._private.state import actors
from ray.cluster_utils import Cluster

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.ray.cluster import connected
from mctskernel.executors.ray.executor import RayExecutor
from tests.processes import wait_for

pytestmark = pytest.mark.slow

OPENER = "assorted_gpus:open_fake"


@pytest.fixture(scope="module")
def executor(nodes: Cluster, small_task: Path) -> Iterator[RayExecutor]:
    """Two actors, whose kernels say what they do."""
    spec = DeviceSpec("model", small_task, seed=5)
    with connected(nodes.address) as cluster:
        with RayExecutor(spec, cluster, opener=OPENER) as opened:
            yield opened
        wait_for(lambda: not alive())


def drain(executor: RayExecutor, count: int) -> dict[int, Evaluation]:
    """The next results by ticket, each of which comes once."""
    results: dict[int, Evaluation] = {}
    while len(results) < count:
        finished = executor.wait(120)
        assert finished
        assert not results.keys() & dict(finished).keys(), "it came back twice"
        results.update(finished)
    return results


def alive() -> list[int]:
    """The processes of the actors that Ray knows."""
    return [each["Pid"] for each in actors().values() if each["State"] == "ALIVE"]


def test_results_are_those_of_one_machine(executor: RayExecutor) -> None:
    assert executor.capacity == 2
    sources = ["ok a", "abort", "raise c", "exit 2", "flood 3000000", "report spec"]
    for ticket, source in enumerate(sources):
        executor.submit(ticket, Kernel(source))
    with pytest.raises(ValueError, match="in flight"):
        executor.submit(0, Kernel("ok"))
    found = drain(executor, len(sources))
    assert [found[i].outcome for i in (0, 4)] == [Outcome.OK] * 2
    assert found[1].message == "The process that evaluated the kernel was killed by SIGABRT."
    assert found[3].log == "the last words\n"
    assert len(found[4].log) == 3_000_000
    assert "seed=5" in found[5].message
    assert executor.fingerprint() == {"seed": "5"}
    final = executor.final_validation(Kernel("report spec"), Kernel("ok"))
    assert "seed=5," not in final.message
    (timing,) = executor.final_validation(Kernel("ok 0"), Kernel("sleep 0")).timings
    assert timing.baseline_seconds == 1.0


def test_a_kernel_whose_process_is_lost_is_tried_again_and_in_the_end_blamed(executor: RayExecutor) -> None:
    executor.submit(1, Kernel("sleep 1"))
    executor.submit(2, Kernel("sleep 1"))
    for pid in alive():
        os.kill(pid, signal.SIGKILL)
    assert all(each.ok for each in drain(executor, 2).values())
    executor.submit(3, Kernel("sleep 19"))
    lost: list[tuple[int, Evaluation]] = []
    while not lost:
        wait_for(lambda: len(alive()) == 2)
        for pid in alive():
            os.kill(pid, signal.SIGKILL)
        lost = executor.wait(1.0)
    ((_, evaluation),) = lost
    assert (evaluation.outcome, evaluation.guard) == (Outcome.CRASH, Guard.SEPARATE_PROCESS)
    assert "lost 3 times" in evaluation.message


def test_gpus_of_one_kind_are_used_and_one_that_breaks_is_left_out(
    nodes: Cluster, executor: RayExecutor, small_task: Path
) -> None:
    def kernel(name: str) -> Kernel:
        return Kernel(load_task(small_task).starting_kernel.source.replace("twice", name))

    folder = Path(os.environ["CUDA_TEST_FOLDER"])
    (folder / "broken-gpu").touch()
    node = nodes.add_node(num_cpus=0, num_gpus=3)
    spec = DeviceSpec("gpu", small_task)
    with connected(nodes.address) as cluster, RayExecutor(spec, cluster, workers=1, opener=OPENER) as gpus:
        assert gpus.capacity == 4
        names = ("faster", "wrong", "die", "twice", "faster", "twice", "faster", "faster")
        for ticket, name in enumerate(names):
            gpus.submit(ticket, kernel(name))
        found = drain(gpus, len(names))
        ok, wrong, crash = Outcome.OK, Outcome.WRONG_RESULT, Outcome.CRASH
        assert [found[ticket].outcome for ticket in range(8)] == [ok, wrong, crash, ok, ok, ok, ok, ok]
        assert {each.gpu for each in found.values() if each.ok} == {"fake0", "fake1"}
        assert gpus.fingerprint()["gpu"] == "Fake GPU"
        assert "uuid" not in gpus.fingerprint()
        assert any("its gpu is Other GPU, theirs Fake GPU" in each for each in gpus.notes)
        (folder / "broken-gpu").write_text("0")
        for ticket in range(6):
            gpus.submit(ticket, kernel("faster"))
        assert all(each.ok for each in drain(gpus, 6).values())
        assert any("fallen off the bus" in each for each in gpus.notes)
    nodes.remove_node(node)
