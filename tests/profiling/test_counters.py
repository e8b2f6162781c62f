"""Names as Nsight Compute writes them, and how the counters of several launches combine."""

import pytest

from mctskernel.profiling import counters
from mctskernel.profiling.counters import combined_counters


def test_totals_add_up_and_ratios_are_weighted_by_time() -> None:
    first = {counters.TIME: 1.0, counters.DRAM_BYTES: 10.0, counters.WARPS_ACTIVE: 100.0}
    second = {counters.TIME: 3.0, counters.DRAM_BYTES: 5.0, counters.WARPS_ACTIVE: 20.0}
    combined = combined_counters([first, second])
    assert combined == pytest.approx(
        {counters.TIME: 4.0, counters.DRAM_BYTES: 15.0, counters.WARPS_ACTIVE: 40.0}
    )


def test_a_ratio_that_one_launch_lacks_comes_from_the_others() -> None:
    loads = {counters.TIME: 1.0, counters.SECTORS_PER_LOAD: 8.0}
    assert combined_counters([loads, {counters.TIME: 9.0}])[counters.SECTORS_PER_LOAD] == 8.0


def test_one_launch_is_itself() -> None:
    only = {counters.TIME: 1.0, counters.ISSUE_ACTIVE: 50.0}
    assert combined_counters([only]) == only
