"""Cache traffic of the whole chip from the traces of a few blocks."""

import numpy as np
import pytest

from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.emulator import AccessCounts, Counts, Trace
from mctskernel.profiling.model.traffic import (
    Range,
    Residency,
    Sample,
    dram_traffic,
)

H100 = load_architecture("H100")


def counted(block: int, sectors: list[int], kind: str = "load") -> Counts:
    access = AccessCounts(
        f"{kind}.global", kind, "global", 7, 0, 4, requests=max(len(sectors) // 4, 1), sectors=len(sectors)
    )
    trace = Trace(block, np.array(sectors), np.zeros(len(sectors), dtype=np.int32))
    return Counts((block,), (access,), (), (trace,), 0, (), (), 0.0)


def test_a_large_buffer_that_every_wave_reads_is_fetched_by_each() -> None:
    size = H100.memory.l2_bytes // 32
    middle = counted(0, list(range(0, size, 64)))
    far = counted(1, list(range(1, size, 64)))
    found = dram_traffic(
        [Sample(0, middle, 6400.0)],
        [Range("x", 0, size - 1)],
        Residency((6400, 1, 1), 640),
        H100,
        neighbour=lambda _: far,
        l1_sectors=0.0,
    )
    assert found.read_bytes == pytest.approx(10 * size * 32)
    assert found.unique_bytes == size * 32


def test_l2_keeps_what_few_blocks_touch_again_and_loses_what_many_do() -> None:
    """Rows of 16 kB that are read twice, as in a softmax of three passes."""
    row = [*range(512), *range(512)]
    lost = [
        dram_traffic(
            [Sample(0, counted(0, row), 8192.0)],
            [Range("x", 0, 8192 * 512 - 1)],
            Residency((8192, 1, 1), at_once),
            H100,
            neighbour=lambda _: None,
            l1_sectors=0.0,
        ).read_bytes
        / (8192 * 512 * 32)
        - 1.0
        for at_once in (264, 1056, 2112, 8448)
    ]
    assert lost[0] < 0.01
    assert 0.1 < lost[1] < 0.5
    assert 0.7 < lost[2] < 0.95
    assert lost[3] > 0.99
