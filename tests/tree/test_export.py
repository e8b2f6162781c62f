"""Exports can be read by others, and trajectories tell the story of a kernel."""

import math
from dataclasses import replace

import pytest

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import (
    Bottleneck,
    Cause,
    Conditions,
    Diagnosis,
    Evaluation,
    GpuState,
    Outcome,
    Score,
    Source,
    Timing,
)
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Attempt
from mctskernel.tree.export import export, from_json, to_json
from mctskernel.tree.strategies.strategy import Step
from mctskernel.tree.trajectory import (
    KEPT,
    TrackRecord,
    edit_attempts,
    lineage_attempts,
    run_seconds,
    trajectory,
)
from tests.tree.grown import Grown, edit

LATENCY = Diagnosis((Cause(Bottleneck.GLOBAL_LATENCY, 0.8, "Limited by latency."),))
BANDWIDTH = Diagnosis((Cause(Bottleneck.DRAM_BANDWIDTH, 0.9, "Limited by DRAM."),))


def timed(speedup: float, diagnosis: Diagnosis) -> tuple[Evaluation, Score]:
    timings = tuple(
        Timing(shape, seconds / speedup, 0.0, 1.0) for shape, seconds in (("n=1", 4.0), ("n=2", 1.0))
    )
    evaluation = Evaluation(
        Outcome.OK, Source.MODELLED, timings=timings, diagnosis=diagnosis, flags=("spills",)
    )
    return evaluation, Score(speedup - 1, speedup, {"time": speedup - 1, "relief": 0.0})


@pytest.fixture
def story() -> Grown:
    """root -> tile (2x) -> vector, "loads" (6x, the best); beside them a failure, a duplicate, one pending."""
    story = Grown(reward=None, widening_factor=9.0, repair_depth=0)
    story.search.evaluate(0, *timed(1.0, LATENCY))
    story.propose("tile", "broken", "flying", "never", priors=(4.0, 3.0, 2.0, 1.0))
    story.search.evaluate(story.submit()[1], *timed(2.0, LATENCY))
    story.try_next(-1.0, Outcome.BUILD_ERROR)
    story.submit()
    title = 'vector, "loads"\n\x00=1'
    edits = [
        Edit(Category.VECTORIZATION, title, WholeSource("vector")),
        Edit(Category.TUNING, "t", WholeSource("root")),
    ]
    story.offer(1, *edits)
    story.search.evaluate(story.search.submit(Step(1, 0), Kernel("vector")), *timed(6.0, BANDWIDTH))
    story.search.submit(Step(1, 1), Kernel("root"))
    story.search.refuse(story.next_edit()[0], "The patch doesn't fit.")
    return story


def test_the_gpu_that_took_a_time_is_told_with_the_state_that_it_was_in() -> None:
    def at(shape: str, *states: GpuState, dropped: int) -> Timing:
        return Timing(shape, 1.0, 1.0, 1.0, conditions=Conditions(*states, dropped))

    cold, hot = GpuState(1980, 2619, 40, 300.0), GpuState(1755, 2619, 71, 650.0)
    timings = at("n=1", cold, hot, dropped=10), at("n=2", cold, GpuState(), dropped=3)
    story = Grown(reward=None)
    story.search.evaluate(
        0, Evaluation(Outcome.OK, Source.MEASURED, timings=timings, gpu="ab" * 16), Score(0, 1)
    )

    (node,) = export(story.tree).nodes
    assert (node.gpu, node.sm_mhz, node.celsius, node.dropped_runs) == ("ab" * 16, 1755, 71, 13)


def test_json_is_read_back(story: Grown) -> None:
    exported = export(story.tree)
    assert from_json(to_json(story.tree)) == exported
    assert [node.id for node in exported.nodes] == [0, 1, 2, 3, 4]
    assert [node.parent for node in exported.nodes] == [None, 0, 0, 0, 1]
    assert [node.outcome for node in exported.nodes] == ["ok", "ok", "build error", None, "ok"]
    assert [node.visits for node in exported.nodes] == [4, 2, 1, 0, 1]
    assert [node.value for node in exported.nodes] == [5.0, 5.0, -1.0, None, 5.0]
    assert [node.speedup for node in exported.nodes] == [1.0, 2.0, 0.0, None, 6.0]
    assert exported.nodes[0].seconds == pytest.approx(2.0)  # sqrt(4 * 1)
    assert exported.nodes[4].seconds == pytest.approx(2.0 / 6)
    assert exported.nodes[4].terms == {"time": 5.0, "relief": 0.0}
    assert exported.nodes[4].bottleneck == "DRAM bandwidth"
    assert [(again.parent, again.node) for again in exported.transpositions] == [(1, 0)]


def test_empty_tree_is_exported() -> None:
    tree = Grown(reward=None).tree
    assert export(tree).nodes[0].outcome is None


def test_trajectory_carries_the_evidence_of_every_edge(story: Grown) -> None:
    root, tile, vector = trajectory(story.tree, 4)
    assert [step.node for step in (root, tile, vector)] == [0, 1, 4]
    assert root.edit is None
    assert (root.gain, tile.gain, vector.gain) == (0.0, 2.0, 3.0)
    assert (tile.diagnosis, vector.diagnosis) == (LATENCY, BANDWIDTH)
    assert [attempt.title for attempt in lineage_attempts(story.tree, 4)] == ["tile", vector.edit.title]


def test_a_pending_node_ends_its_trajectory_before_it(story: Grown) -> None:
    assert [step.node for step in trajectory(story.tree, 3)] == [0]


def test_attempts_tell_failures_duplicates_and_refusals(story: Grown) -> None:
    assert edit_attempts(story.tree, 0) == (
        Attempt("tile", "tuning", Outcome.OK, 2.0, node=1),
        Attempt("broken", "tuning", Outcome.BUILD_ERROR, 0.0, node=2),
        Attempt("never", "tuning", Outcome.REJECTED, 0.0, "The patch doesn't fit."),
    )
    duplicate = edit_attempts(story.tree, 1)[1]
    assert (duplicate.outcome, duplicate.gain) == (Outcome.DUPLICATE, 0.5)
    assert "node 0" in duplicate.message


def test_run_seconds_of_what_was_not_timed() -> None:
    assert run_seconds(Evaluation(Outcome.CRASH, Source.MEASURED)) is None


def record_of(grown: Grown) -> TrackRecord:
    record = TrackRecord()
    record.update(grown.tree)
    return record


def by(proposer: str, title: str) -> Edit:
    return replace(edit(title), proposer=proposer)


def test_standings_are_the_log_gains_of_each_proposer_in_the_order_of_evaluation() -> None:
    grown = Grown(reward=1.0)
    grown.offer(0, by("rules", "a"), by("llm/memory", "b"), by("rules", "c"), by("rules", "d"))
    late = grown.begin(0, 0)
    grown.make(0, 1, 4.0)
    grown.make(0, 2, 0.5)
    grown.make(0, 3, 0.0, Outcome.BUILD_ERROR)
    grown.evaluate(late, 2.0)
    assert record_of(grown).standings() == {
        "llm/memory": (pytest.approx(math.log(4)),),
        "rules": (0.0, 0.0, pytest.approx(math.log(2))),
    }


def test_gains_are_over_the_parent_and_failed_parents_have_none() -> None:
    grown = Grown(reward=1.0)
    (first,) = grown.grow(0, 2.0)
    grown.grow(first, 3.0)
    (broken,) = grown.grow(0, 0.0, outcome=Outcome.BUILD_ERROR)
    grown.grow(broken, 5.0)
    assert record_of(grown).standings() == {
        "": (pytest.approx(math.log(2)), pytest.approx(math.log(1.5)), 0.0, 0.0)
    }


def test_what_worked_elsewhere_leaves_out_what_the_node_knows() -> None:
    grown = Grown(reward=1.0)
    good, better, worse = grown.grow(0, 2.0, 3.0, 0.5)
    (below,) = grown.grow(good, 2.5)
    record = record_of(grown)
    assert [each.gain for each in record.elsewhere(grown.tree, worse, 8)] == [
        pytest.approx(gain) for gain in (3.0, 2.0, 1.25)
    ]
    assert [each.gain for each in record.elsewhere(grown.tree, worse, 1)] == [pytest.approx(3.0)]
    assert [each.gain for each in record.elsewhere(grown.tree, below, 8)] == [pytest.approx(3.0)], (
        "not its own way"
    )
    assert [each.gain for each in record.elsewhere(grown.tree, good, 8)] == [pytest.approx(3.0)], (
        "nor its children"
    )
    assert record.best_speedup == 3.0
    assert better in grown.tree.evaluated


def test_a_quarantined_time_is_no_gain() -> None:
    grown = Grown(reward=1.0)
    grown.offer(0, edit("too good"))
    made = grown.begin(0, 0)
    quarantined = Evaluation(Outcome.OK, Source.MODELLED, quarantine="faster than the floor")
    grown.search.evaluate(made, quarantined, Score(9.0, 9.0))
    record = record_of(grown)
    assert record.standings() == {"": (0.0,)}
    assert record.elsewhere(grown.tree, 0, 8) == ()
    assert record.best_speedup == 1.0


def test_only_the_greatest_gains_are_kept_and_updating_at_once_or_bit_by_bit_is_the_same() -> None:
    grown, bit_by_bit = Grown(reward=1.0), TrackRecord()
    for number in range(2 * KEPT):
        grown.grow(0, 1.0 + (number * 37 % 101) / 100)
        bit_by_bit.update(grown.tree)
    at_once = record_of(grown)
    (other,) = grown.grow(1, 0.1)
    found = at_once.elsewhere(grown.tree, other, 1000)
    assert found == bit_by_bit.elsewhere(grown.tree, other, 1000)
    assert KEPT - 1 <= len(found) <= KEPT
    assert min(each.gain for each in found) > 1.3
    assert at_once.standings() == bit_by_bit.standings()
