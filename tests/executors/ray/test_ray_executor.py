"""The Ray executor on real clusters of this machine, with devices that behave as a kernel's source says."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.cluster_utils import Cluster

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.executors.ray.cluster import connected
from mctskernel.executors.ray.executor import Patience, RayExecutor

PATIENCE = Patience(news=0.1)


@contextmanager
def opened(nodes: Cluster, task: Path, **options: object) -> Iterator[RayExecutor]:
    spec = DeviceSpec("model", task, seed=5)
    given = {"patience": PATIENCE, "opener": importlib.import_module("fake_devices").Fake, **options}
    with connected(nodes.address, 1) as cluster, RayExecutor(spec, cluster, **given) as executor:
        yield executor


def drain(executor: RayExecutor, count: int) -> dict[int, Evaluation]:
    results: dict[int, Evaluation] = {}
    while len(results) < count:
        finished = executor.wait(60)
        assert finished
        results.update(finished)
    return results


def test_kernels_come_back_once_each(nodes: Cluster, small_task: Path) -> None:
    nodes.add_node(num_cpus=2)
    with opened(nodes, small_task) as executor:
        for i in range(5):
            executor.submit(i, Kernel(f"ok {i}"))
        print(drain(executor, 5))
