"""What counters cost: the table of its numbers."""

from __future__ import annotations

from mctskernel.core.executor import CounterSet
from mctskernel.experiments.counter_cost import Report, page, summary


def test_the_table_has_medians_and_what_most_stay_below() -> None:
    slow = summary(CounterSet.ALL, 2, 4, [0.1] * 30 + [0.4] * 2)
    once = summary(CounterSet.TIME, 1, 1, [0.0002] * 2)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page(Report("H200", [slow, once])).splitlines()
    ]
    assert ["all", "35", "4", "2", "100.0", "400.0"] in rows
    assert ["time", "1", "1", "1", "0.2", "0.2"] in rows
