"""`kill -9` at random moments, then resume: what was reported finished is still there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mctskernel.tree.journal import read_tree

SCRIPT = Path(__file__).with_name("searching.py")
KILLS = 20
BUDGET = 400


@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
@pytest.mark.parametrize(
    ("kills", "budget", "kind"),
    [(KILLS, BUDGET, "walk"), (6, 120, "guided"), (4, 60, "default")],
    ids=["alone", "with a surrogate", "by the model of edits"],
)
def test_killed_at_random_moments_nothing_reported_is_lost(
    tmp_path: Path, kills: int, budget: int, kind: str
) -> None:
    arguments = (str(budget), kind)
    moments = np.random.default_rng(20261121)
    reported: dict[int, float] = {}
    for _ in range(kills):
        reported |= killed_search(tmp_path, arguments, after=float(moments.uniform(0.0, 0.25)))
        tree = read_tree(tmp_path / "journal.jsonl")
        rewards = {node.id: node.score.reward for node in tree.nodes if node.score}
        assert reported.items() <= rewards.items()
    assert len(reported) > kills, "the kills came too early to mean anything"

    subprocess.run([sys.executable, SCRIPT, tmp_path, *arguments], check=True, capture_output=True)
    straight = tmp_path / "straight"
    straight.mkdir()
    subprocess.run([sys.executable, SCRIPT, straight, *arguments], check=True, capture_output=True)
    resumed, whole = read_tree(tmp_path / "journal.jsonl"), read_tree(straight / "journal.jsonl")
    assert [n.kernel.identity for n in resumed.nodes] == [n.kernel.identity for n in whole.nodes]
    assert list(resumed.node_statistics.visits.view) == list(whole.node_statistics.visits.view)


def killed_search(run: Path, arguments: tuple[str, ...], after: float) -> dict[int, float]:
    """What a search reported until it was killed, `after` seconds from its first report."""
    command = [sys.executable, SCRIPT, run, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(after)
        process.kill()
        lines = [first, *process.stdout.read().splitlines(keepends=True)]
    whole = [line.split() for line in lines if line.endswith("\n")]
    return {int(node): float(reward) for _, node, reward in whole}
