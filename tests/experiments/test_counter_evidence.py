"""Counters as evidence: what is planted in steps is found, and what isn't there is not."""

from __future__ import annotations

import math
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Evaluation, Outcome, Resources, Source
from mctskernel.experiments import counter_evidence
from mctskernel.experiments.counter_evidence import (
    AHEAD,
    GAIN,
    Group,
    Report,
    document,
    held_out_gains,
    partial_rank_correlation,
    weigh,
)
from mctskernel.experiments.counter_steps import BOTTLENECK, SPILLS, Step, moves, reliefs, steps_of
from mctskernel.profiling import counters as names
from mctskernel.report.view import load_view

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "notebooks" / "recorded" / "matmul_mcts_h100.tar.xz"
TASKS = 12


def group(cluster: str, proxy: np.ndarray, outcome: np.ndarray, known: np.ndarray) -> Group:
    return Group(cluster, proxy, outcome, known.reshape(-1, 1))


def drawn(seed: int, proxy_weight: float) -> Group:
    """Both the proxy and the outcome depend on what is known; the outcome on the proxy as told."""
    rng = np.random.default_rng(seed)
    known = rng.standard_normal(80)
    proxy = known + rng.standard_normal(80)
    outcome = known + proxy_weight * proxy + rng.standard_normal(80)
    return group(f"task {seed}", proxy, outcome, known)


def test_what_another_quantity_explains_is_no_evidence() -> None:
    without = [partial_rank_correlation(drawn(seed, 0.0)) or 0.0 for seed in range(20)]
    assert abs(np.mean(without)) < 0.08
    bare = drawn(0, 0.0)
    confounded = partial_rank_correlation(replace(bare, given=np.empty((80, 0))))
    assert confounded is not None
    assert confounded > 0.3
    with_proxy = [partial_rank_correlation(drawn(seed, 1.0)) or 0.0 for seed in range(20)]
    assert min(with_proxy) > 0.3


def test_a_proxy_takes_error_away_only_where_it_says_something() -> None:
    assert min(held_out_gains([drawn(seed, 1.0) for seed in range(8)]).values()) > 0.2
    assert np.mean(list(held_out_gains([drawn(seed, 0.0) for seed in range(8)]).values())) < 0.02


def test_too_few_or_equal_observations_say_nothing() -> None:
    rng = np.random.default_rng(0)
    few = rng.standard_normal(5)
    assert partial_rank_correlation(group("", few, few, few)) is None
    many = rng.standard_normal(30)
    assert partial_rank_correlation(group("", np.zeros(30), many, many)) is None
    # What is known says all of the outcome.
    assert partial_rank_correlation(group("", rng.standard_normal(30), many, many)) is None


def evaluation(spills: int = 0, **counters: float) -> Evaluation:
    return Evaluation(
        Outcome.OK,
        Source.MEASURED,
        counters={getattr(names, name): value for name, value in counters.items()},
        resources=(Resources("k", 32, 0, spill_store_bytes=spills),),
    )


def test_reliefs_are_what_fell() -> None:
    before = evaluation(DRAM_BYTES=400.0, LOAD_SECTORS=320.0, LOAD_REQUESTS=10.0, SM_ACTIVE=80.0, spills=8)
    after = evaluation(DRAM_BYTES=50.0, LOAD_SECTORS=40.0, LOAD_REQUESTS=10.0, SM_ACTIVE=90.0)
    found = reliefs(before, after, 100)
    assert found["DRAM traffic above the compulsory"] == pytest.approx(math.log(4.0))  # none is above it now
    assert found["sectors a request"] == pytest.approx(math.log(8.0))
    assert found["tail"] == pytest.approx(0.1)
    assert found[SPILLS] == 1.0
    assert "idle tensor pipes" not in found
    back = reliefs(after, before, 100)
    assert all(back[name] == pytest.approx(-value) for name, value in found.items() if name != BOTTLENECK)
    assert moves(before, after)["DRAM bytes"] == pytest.approx(math.log(1 / 8))


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
    ahead = [step for step in steps if step.ahead is not None]
    assert ahead
    assert all(step.ahead <= math.log(step.seconds / best) + 1e-4 for step in ahead if step.ahead is not None)
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


@pytest.fixture(scope="module")
def report() -> Report:
    return weigh(planted(0.7))


def test_what_was_planted_is_supported_and_nothing_else(report: Report) -> None:
    supported = [(each.question, each.proxy) for each in report.evidence if each.supported]
    assert supported == [(AHEAD.text, "tail")]
    assert not any(each.supported for each in weigh(planted(0.0)).evidence)
    assert not any(each.supported for each in weigh(planted(-0.7)).evidence)
    (row,) = report.categories
    assert (row.category, row.steps, row.tasks) == ("launch configuration", 40 * TASKS, TASKS)
    assert row.moves["DRAM bytes"].mean == pytest.approx(0.5)


def test_the_page_says_so(report: Report) -> None:
    text = document(report)
    assert f"- Supported as a predictor of {AHEAD.text}: the relief of tail." in text
    assert f"- Supported as a predictor of {GAIN.text}: the relief of none." in text
    assert "| launch configuration |" in text
    assert "The numbers are modelled." in text


def test_a_folder_without_steps_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    arguments = [str(tmp_path / "empty"), "--out", str(tmp_path / "o.json")]
    assert "there is no step" in CliRunner().invoke(counter_evidence.main, arguments).output
