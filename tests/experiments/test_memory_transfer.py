"""The comparison counts pairs of edits of one node as it says."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.evaluation import Source
from mctskernel.core.experience import Experience
from mctskernel.experiments.memory_transfer import (
    Comparison,
    best_after,
    concordance_table,
    concordances,
    table,
)
from mctskernel.memory import Remembered, encode_snapshot
from tests.told_run import ToldRun, failed, timed


def test_pairs_of_one_node(tmp_path: Path, small_task: Path) -> None:
    run = ToldRun(tmp_path / "double-0-5", small_task)
    run.edits(0, ("good", timed(50)), ("fair", timed(60)), ("bad", failed()), ("known as bad", timed(100)))
    known = Experience("tuning", "known as bad", "DRAM bandwidth", "cuda", "sm_90", 20, 20, 0, 0.0)
    others = Experience("tuning", "good", "DRAM bandwidth", "cuda", "sm_90", 20, 0, 20, 0.5)
    remembered = (Remembered(Source.MODELLED, each) for each in (known, others))
    (tmp_path / "without-double-0.json").write_text(encode_snapshot(remembered))
    (found,) = concordances(tmp_path, ["double"], [0], 5)
    # All priors are alike, and the memory knows nothing of two that were tried.
    assert (found.pairs, found.prior, found.factor, found.both) == (4, 2.0, 3.5, 3.5)
    assert concordance_table([found, found]).endswith("| all | 8 | 4 | 7 | 7 |")
    assert best_after(run.folder.path, (1, 2, 5)) == (1.0, 2.0, 2.0)


def test_the_last_row_has_geometric_means() -> None:
    text = table([Comparison("one", 0, (1.0,), (2.0,)), Comparison("two", 0, (4.0,), (8.0,))], [20])
    assert text.splitlines()[-1] == "| geometric mean | | 2.00 | 4.00 |"
