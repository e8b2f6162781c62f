"""`kill -9` at random moments, then resume: what was reported finished is still there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mctskernel.experiments.fault_injection.subjects import Running, Starter, start, wait_until, walk
from mctskernel.tree.journal import read_tree

KILLS = 20
BUDGET = 300


@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
@pytest.mark.parametrize(
    ("kills", "budget", "kind"),
    [(KILLS, BUDGET, "walk"), (6, 120, "guided"), (4, 60, "default")],
    ids=["alone", "with a surrogate", "by the model of edits"],
)
def test_killed_at_random_moments_nothing_reported_is_lost(
    tmp_path: Path, starter: Starter, kills: int, budget: int, kind: str
) -> None:
    moments = np.random.default_rng(20261121)
    reported: dict[int, float] = {}
    for _ in range(kills):
        reported |= killed_search(starter, tmp_path, budget, kind, after=float(moments.uniform(0.0, 0.25)))
        tree = read_tree(tmp_path / "journal.jsonl")
        rewards = {node.id: node.score.reward for node in tree.nodes if node.score}
        assert reported.items() <= rewards.items()
    assert len(reported) > kills, "the kills came too early to mean anything"

    whole_search(starter, tmp_path, budget, kind)
    straight = tmp_path / "straight"
    straight.mkdir()
    whole_search(starter, straight, budget, kind)
    resumed, whole = read_tree(tmp_path / "journal.jsonl"), read_tree(straight / "journal.jsonl")
    assert [n.kernel.identity for n in resumed.nodes] == [n.kernel.identity for n in whole.nodes]
    assert list(resumed.node_statistics.visits.view) == list(whole.node_statistics.visits.view)


def killed_search(starter: Starter, run: Path, budget: int, kind: str, after: float) -> dict[int, float]:
    """What a search reported until it was killed, `after` seconds from its first report."""
    running = searched(starter, run, budget, kind)
    assert wait_until(lambda: bool(running.said) or running.ended(), 60.0)
    time.sleep(after)
    if not running.ended():
        os.kill(running.process.pid, signal.SIGKILL)
    assert wait_until(running.ended, 30.0)
    running.words()
    return running.reported


def whole_search(starter: Starter, run: Path, budget: int, kind: str) -> None:
    """A search to its end."""
    running = searched(starter, run, budget, kind)
    assert wait_until(running.ended, 120.0)
    assert running.process.returncode == 0, running.words()


def searched(starter: Starter, run: Path, budget: int, kind: str) -> Running:
    """A search that has just been started."""
    subject = walk(kind)
    return start(starter, subject.words(run, budget), {})
