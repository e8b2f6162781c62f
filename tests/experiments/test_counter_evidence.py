"""Counters as evidence: what is planted in steps is found, and what isn't there is not."""

from __future__ import annotations

import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Outcome, Source
from mctskernel.experiments import counter_evidence
from mctskernel.experiments.counter_evidence import AHEAD, SPILLS, Step, document, evidence, steps_of
from mctskernel.report.view import load_view

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "notebooks" / "recorded" / "matmul_puct_h100.tar.xz"
TASKS = 12


def test_steps_of_a_run_know_the_best_of_their_descendants(tmp_path: Path) -> None:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    (run,) = tmp_path.iterdir()
    steps = list(steps_of(tmp_path))
    tree = load_view(run).tree
    assert len(steps) == sum(node.parent is not None and node.outcome is Outcome.OK for node in tree.nodes)
    assert all(step.task == "matmul" for step in steps)
    below = {node.id: [node.id] for node in tree.nodes}
    for node in tree.nodes:
        for above in tree.lineage(node.id)[:-1]:
            below[above].append(node.id)
    made = [node for node in tree.nodes if node.parent is not None and node.outcome is Outcome.OK]
    counts = [
        len([each for each in below[node.id] if tree.nodes[each].outcome is Outcome.OK]) - 1 for node in made
    ]
    assert [step.after for step in steps] == counts
    # A step's child gains nothing more than the best of the run has over it.
    best = min(step.seconds for step in steps)
    ahead = [step for step in steps if step.after]
    assert ahead
    assert all(step.ahead <= math.log(step.seconds / best) + 1e-4 for step in ahead)
    assert any(step.ahead == pytest.approx(math.log(step.seconds / best), abs=1e-4) for step in ahead)


def planted(weight: float) -> list[Step]:
    """Steps after which more is gained the more of the tail was relieved, by so much; spills say nothing."""
    rng = np.random.default_rng(3)
    steps = []
    for task in range(TASKS):
        for _ in range(40):
            tail, spills, noise = (float(each) for each in rng.standard_normal(3))
            steps.append(
                Step(
                    search=f"search {task}",
                    task=f"task {task}",
                    source=Source.MODELLED,
                    category=Category.LAUNCH,
                    seconds=math.exp(float(rng.standard_normal())),
                    gain=float(rng.standard_normal()),
                    ahead=weight * tail + noise,
                    after=int(rng.integers(2, 9)),
                    reliefs={"tail": tail, SPILLS: spills},
                    moves={"DRAM bytes": math.log(0.5)},
                )
            )
    return steps


def test_what_was_planted_is_supported_and_nothing_else() -> None:
    supported = [(each.question, each.proxy) for each in evidence(planted(0.7)) if each.supported]
    assert supported == [(AHEAD.text, "tail")]
    assert not any(each.supported for weight in (0.0, -0.7) for each in evidence(planted(weight)))
    (row,) = (line for line in document(planted(0.7)).splitlines() if "launch configuration" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["launch configuration", str(40 * TASKS), str(TASKS)]
    assert cells[6] == "0.50"


def test_a_folder_without_steps_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    arguments = [str(tmp_path / "empty"), "--out", str(tmp_path / "o.md")]
    assert "there is no step" in CliRunner().invoke(counter_evidence.main, arguments).output
