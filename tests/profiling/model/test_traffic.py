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
    found = l1_traffic([Sample(0, counted(0, [*range(100), *range(100)]), 10.0)], capacity=140)
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
        [sample],
        [Range("x", 0, 63999)],
        Residency((1000, 1, 1), 1000),
        H100,
        neighbour=lambda _: None,
        l1_sectors=0.0,
    )
    assert found.read_bytes == found.unique_bytes == 64000 * 32


def test_a_small_buffer_that_every_block_reads_is_fetched_once() -> None:
    sample = Sample(0, counted(0, list(range(64))), 1000.0)
    found = dram_traffic(
        [sample],
        [Range("x", 0, 63)],
        Residency((1000, 1, 1), 100),
        H100,
        neighbour=lambda _: None,
        l1_sectors=0.0,
    )
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
        neighbour=lambda _: far,
        l1_sectors=0.0,
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
    found = dram_traffic(
        [block],
        [Range("x", 0, n - 1)],
        Residency((1, 1, 1), 1),
        H100,
        neighbour=lambda _: None,
        l1_sectors=2.0 * n,
    )
    assert found.read_bytes == pytest.approx(32 * n / 2, rel=0.02)


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


def test_l1_combines_stores_of_one_warp_to_one_sector_and_not_those_of_different_warps() -> None:
    def stores(accesses: list[int]) -> Counts:
        one = counted(0, [0, 1] * (len(accesses) // 2), "store")
        trace = Trace(0, one.traces[0].sectors, np.array(accesses, dtype=np.int32), truncated=False)
        return Counts((0,), one.accesses * 4, (), (trace,), 0, (), (), 0.0)

    after_each_other = l1_traffic([Sample(0, stores([0, 0, 1, 1, 2, 2, 3, 3]), 1.0)], capacity=1000)
    at_once = l1_traffic([Sample(0, stores([0] * 8), 1.0)], capacity=1000)
    assert after_each_other.write_sectors < 0.5 * at_once.write_sectors


def test_runs_of_consecutive_sectors_are_counted_for_every_block() -> None:
    tile = [row * 1024 + column for row in range(32) for column in range(4)]
    found = dram_traffic(
        [Sample(0, counted(0, tile), 100.0)],
        [Range("x", 0, 1 << 20)],
        Residency((100, 1, 1), 100),
        H100,
        neighbour=lambda _: None,
        l1_sectors=0.0,
    )
    assert found.runs == 32 * 100
