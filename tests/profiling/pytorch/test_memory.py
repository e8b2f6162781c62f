"""Memory that a worker shares with the module evaluator, and what the worker can't do with it."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from mctskernel.core.task import Array
from mctskernel.profiling.pytorch.memory import HostMemory
from mctskernel.profiling.pytorch.protocol import TensorSpec, places

SLOTS = (TensorSpec("float32", (1000,)), TensorSpec("int64", (3,)))
CONTENT = np.arange(4096, dtype=np.uint8)


def mappings(memory: HostMemory) -> list[mmap.mmap]:
    return [mmap.mmap(each, size) for each, size in zip(memory.descriptors, memory.sizes, strict=True)]


def contents(mapped: list[mmap.mmap]) -> list[Array]:
    return [np.frombuffer(each, np.uint8) for each in mapped]


def test_a_worker_sees_the_inputs_when_the_clock_runs_and_those_of_the_last_call_stay() -> None:
    memory = HostMemory(SLOTS, CONTENT.nbytes)
    _, *inputs = contents(mappings(memory))
    for number in range(1, 4):
        fresh = np.full(4096, number, np.uint8)
        memory.prepare(fresh, np.random.default_rng(0))
        assert not any(np.array_equal(each, fresh) for each in inputs)
        memory.publish()
        assert np.array_equal(inputs[memory.inputs], fresh)
        assert set(inputs[1 - memory.inputs]) == {number - 1}
        memory.probe()
        assert np.array_equal(memory.collect().inputs, fresh)
    memory.close()


@pytest.mark.parametrize(
    "late", [0, 4096 + 16, None], ids=["the large output", "the small output", "nothing"]
)
def test_what_is_written_after_the_clock_has_stopped_is_seen(late: int | None) -> None:
    memory = HostMemory(SLOTS, CONTENT.nbytes)
    outputs = mappings(memory)[0]
    assert len(outputs) == places(SLOTS)[1]
    memory.prepare(CONTENT, np.random.default_rng(0))
    outputs[:] = bytes(len(outputs))
    memory.publish()
    memory.probe()
    if late is not None:
        outputs[late : late + 2000] = b"\1" * len(outputs[late : late + 2000])
    snapshot = memory.collect()
    assert snapshot.settled is (late is None)
    assert snapshot.outputs.any() == (late is not None)
    memory.close()
