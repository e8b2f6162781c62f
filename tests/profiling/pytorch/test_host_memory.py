"""Memory that a host and its referee share, and what a host can't do with it."""

from __future__ import annotations

import gc
import mmap
import os

import numpy as np
import pytest

from mctskernel.profiling.pytorch.memory import HostMemory, lent
from mctskernel.profiling.pytorch.structures import Slot, places

SLOTS = (Slot("float32", (1000,)), Slot("int64", (3,)))
CONTENT = np.arange(4096, dtype=np.uint8)


def test_a_host_sees_the_inputs_with_the_word_go_and_not_before() -> None:
    memory = HostMemory(SLOTS)
    memory.prepare(CONTENT, np.random.default_rng(0))
    (go,) = memory.lend()
    assert go not in memory.descriptors
    assert np.array_equal(np.frombuffer(mmap.mmap(go, 0), np.uint8), CONTENT)
    memory.probe()
    memory.collect()
    memory.close()


@pytest.mark.parametrize("late", [0, 4096 + 16], ids=["the large output", "the small output"])
def test_what_is_written_after_the_clock_has_stopped_is_seen(late: int) -> None:
    memory = HostMemory(SLOTS)
    host = mmap.mmap(memory.descriptors[0], places(SLOTS)[1])
    memory.prepare(CONTENT, np.random.default_rng(0))
    host[:] = bytes(len(host))
    memory.lend()
    memory.probe()
    host[late : late + 2000] = b"\1" * len(host[late : late + 2000])
    assert not memory.collect().settled
    memory.close()


def test_what_was_there_in_time_is_settled() -> None:
    memory = HostMemory(SLOTS)
    host = mmap.mmap(memory.descriptors[0], places(SLOTS)[1])
    memory.prepare(CONTENT, np.random.default_rng(0))
    memory.lend()
    host[:] = bytes(len(host))
    memory.probe()
    left = memory.collect()
    assert left.settled
    assert not left.outputs.any()
    memory.close()


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_nobody_changes_the_size_of_a_window(size: int) -> None:
    window = lent(CONTENT)
    with pytest.raises(PermissionError):
        os.ftruncate(window.descriptor, size)
    window.close()


def test_calls_that_end_badly_leave_no_descriptors_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path would open more
    memory = HostMemory(SLOTS)
    for _ in range(20):
        memory.prepare(CONTENT, np.random.default_rng(0))
        memory.lend()
    memory.close()
    del memory
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above
