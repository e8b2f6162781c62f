"""Cache traffic of the whole chip from the traces of a few blocks."""

import numpy as np
import pytest

from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.emulator import AccessCounts, Counts, Trace
from mctskernel.profiling.model.traffic import (
    FOLLOWED,
    Range,
    Residency,
    Sample,
    dram_traffic,
    l1_capacity,
    l1_traffic,
    sampling_rate,
)

H100 = load_architecture("H100")


def counted(block: int, sectors: list[int], kind: str = "load") -> Counts:
    access = AccessCounts(
        f"{kind}.global", kind, "global", 7, 0, 4, requests=max(len(sectors) // 4, 1), sectors=len(sectors)
    )
    trace = Trace(block, np.array(sectors), np.zeros(len(sectors), dtype=np.int32), truncated=False)
    return Counts((block,), (access,), (), (trace,), 0, (), (), 0.0)


def test_l1_serves_what_a_block_touches_again() -> None:
    found = l1_traffic([Sample(0, counted(0, [*range(100), *range(100)]), 10.0)], capacity=1000)
    assert found.read_sectors == 1000
    assert found.hit_rate == {7: pytest.approx(0.5)}
    assert found.sectors_per_request == {7: pytest.approx(4.0)}


def test_l1_serves_nothing_that_does_not_fit() -> None:
    found = l1_traffic([Sample(0, counted(0, [*range(100), *range(100)]), 10.0)], capacity=50)
    assert found.read_sectors == 2000


def test_stores_pass_l1() -> None:
    found = l1_traffic([Sample(0, counted(0, [1, 1, 1, 1], "store"), 3.0)], capacity=1000)
    assert (found.read_sectors, found.write_sectors) == (0, 12)


def test_shared_memory_takes_from_l1() -> None:
    assert l1_capacity(H100, 2, 64 * 1024) < l1_capacity(H100, 2, 0) / 2
    assert l1_capacity(H100, 1, 232448) > 0


def test_a_stream_is_fetched_once() -> None:
    sample = Sample(0, counted(0, list(range(64))), 1000.0)
    found = dram_traffic(
        [sample], [Range("x", 0, 63999)], Residency((1000, 1, 1), 1000), H100, lambda _: None
    )
    assert found.read_bytes == found.unique_bytes == 64000 * 32


def test_a_small_buffer_that_every_block_reads_is_fetched_once() -> None:
    sample = Sample(0, counted(0, list(range(64))), 1000.0)
    found = dram_traffic([sample], [Range("x", 0, 63)], Residency((1000, 1, 1), 100), H100, lambda _: None)
    assert found.read_bytes == 64 * 32


def test_a_large_buffer_that_every_wave_reads_is_fetched_by_each() -> None:
    size = H100.memory.l2_bytes // 32
    middle = counted(0, list(range(0, size, 64)))
    far = counted(1, list(range(1, size, 64)))
    found = dram_traffic(
        [Sample(0, middle, 6400.0)],
        [Range("x", 0, size - 1)],
        Residency((6400, 1, 1), 640),
        H100,
        lambda _: far,
    )
    assert found.read_bytes == pytest.approx(10 * size * 32)
    assert found.unique_bytes == size * 32


def test_a_sample_of_the_sectors_of_a_long_trace_tells_what_all_of_them_tell() -> None:
    n = 8 * FOLLOWED
    block = Sample(0, counted(0, [*range(n // 2), *range(n // 2)]), 1.0)
    assert sampling_rate(block.counts) == 8
    kept = l1_traffic([block], capacity=n)
    thrashed = l1_traffic([block], capacity=n // 8)
    assert kept.read_sectors == pytest.approx(n / 2, rel=0.02)
    assert thrashed.read_sectors == pytest.approx(n, rel=0.02)
    found = dram_traffic([block], [Range("x", 0, n - 1)], Residency((1, 1, 1), 1), H100, lambda _: None)
    assert found.read_bytes == pytest.approx(32 * n / 2, rel=0.02)
