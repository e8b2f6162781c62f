"""Memory that a worker shares with the module evaluator, and what the worker can't do with it."""

from __future__ import annotations

import gc
import mmap
import os

import numpy as np
import pytest

from mctskernel.profiling.pytorch.memory import HostMemory, window_of
from mctskernel.profiling.pytorch.protocol import TensorSpec, places

SLOTS = (TensorSpec("float32", (1000,)), TensorSpec("int64", (3,)))
CONTENT = np.arange(4096, dtype=np.uint8)


def test_a_worker_sees_the_inputs_with_the_request_to_run_and_not_before() -> None:
    memory = HostMemory(SLOTS)
    memory.prepare(CONTENT, np.random.default_rng(0))
    (inputs,) = memory.publish()
    assert inputs not in memory.descriptors
    assert np.array_equal(np.frombuffer(mmap.mmap(inputs, 0), np.uint8), CONTENT)
    memory.probe()
    memory.collect()
    memory.close()


@pytest.mark.parametrize("late", [0, 4096 + 16], ids=["the large output", "the small output"])
def test_what_is_written_after_the_clock_has_stopped_is_seen(late: int) -> None:
    memory = HostMemory(SLOTS)
    worker = mmap.mmap(memory.descriptors[0], places(SLOTS)[1])
    memory.prepare(CONTENT, np.random.default_rng(0))
    worker[:] = bytes(len(worker))
    memory.publish()
    memory.probe()
    worker[late : late + 2000] = b"\1" * len(worker[late : late + 2000])
    assert not memory.collect().settled
    memory.close()


def test_what_was_there_in_time_is_settled() -> None:
    memory = HostMemory(SLOTS)
    worker = mmap.mmap(memory.descriptors[0], places(SLOTS)[1])
    memory.prepare(CONTENT, np.random.default_rng(0))
    memory.publish()
    worker[:] = bytes(len(worker))
    memory.probe()
    snapshot = memory.collect()
    assert snapshot.settled
    assert not snapshot.outputs.any()
    memory.close()


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_the_size_of_a_window_is_sealed(size: int) -> None:
    window = window_of(CONTENT)
    with pytest.raises(PermissionError):
        os.ftruncate(window.descriptor, size)
    window.close()


def test_calls_that_end_badly_leave_no_descriptors_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path would open more
    memory = HostMemory(SLOTS)
    for _ in range(20):
        memory.prepare(CONTENT, np.random.default_rng(0))
        memory.publish()
    memory.close()
    del memory
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
