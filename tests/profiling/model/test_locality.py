"""Footprints against counting every window, hits against an LRU cache that is really run."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.model.locality import distinct, footprints, hits, reuse_times

TRACES = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@given(TRACES)
def test_footprints_are_the_mean_over_all_windows(trace: list[int]) -> None:
    found = footprints(reuse_times(np.array(trace)))
    for length in range(1, len(trace) + 1):
        windows = [trace[at : at + length] for at in range(len(trace) - length + 1)]
        assert found[length] == pytest.approx(np.mean([len(set(window)) for window in windows]))


@given(TRACES)
def test_the_different_sectors_come_in_order(trace: list[int]) -> None:
    assert distinct(np.array(trace)).tolist() == sorted(set(trace))


@given(TRACES)
def test_a_cache_that_holds_everything_misses_each_sector_once(trace: list[int]) -> None:
    assert np.count_nonzero(~hits(np.array(trace), 100)) == len(set(trace))


def lru_hits(trace: list[int], capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    count = 0
    for sector in trace:
        count += sector in cache
        cache[sector] = None
        cache.move_to_end(sector)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return count


@pytest.mark.parametrize("capacity", [50, 200, 800])
def test_hits_follow_an_lru_cache_on_a_tiled_sweep(capacity: int) -> None:
    tile = [row * 1000 + column for row in range(20) for column in range(30)]
    trace = [sector + 30 * step for step in range(5) for _ in range(3) for sector in tile]
    assert np.count_nonzero(hits(np.array(trace), capacity)) == pytest.approx(
        lru_hits(trace, capacity), rel=0.05
    )


def test_no_accesses() -> None:
    assert hits(np.array([], dtype=np.int64), 10).size == 0
