"""The loop through its public interface, on a landscape that needs no compiler."""

import dataclasses
import threading

import pytest
from msgspec.structs import replace

from mctskernel.answer import choose
from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.loop import (
    VALIDATION_EVALUATIONS,
    VALIDATION_SECONDS,
    VALIDATION_SHARE,
    Search,
    Snapshot,
    StopReason,
)
from mctskernel.run import spent_seconds
from mctskernel.tree.events import Refused, Resumed, Started
from mctskernel.tree.export import to_json
from mctskernel.tree.policy import Policy
from tests import landscape


def searching(
    executor: landscape.InProcess | None = None, budget: Budget | None = None, **options: object
) -> tuple[Search, list[Snapshot]]:
    snapshots: list[Snapshot] = []
    budget = budget or Budget(evaluations=60)
    return landscape.search(budget, executor, follow=snapshots.append, **options), snapshots


def run(search: Search) -> StopReason:
    return search.run((landscape.start(search),))


def test_finds_the_bottom_of_the_bowl_within_the_budget() -> None:
    executor = landscape.InProcess()
    search, snapshots = searching(executor)
    assert run(search) is StopReason.BUDGET
    assert len(executor.judged) == len(snapshots) == search.tree_search.tree.evaluations == 60
    identities = [kernel.identity for kernel in executor.judged]
    assert len(set(identities)) == len(identities), "a kernel was judged twice"
    best = choose(search.tree_search, executor)
    assert best.node is not None
    assert search.tree_search.kernel(best.node).identity == landscape.kernel(*landscape.BEST).identity
    assert best.speedup == pytest.approx(1 + 36 + 1)


@pytest.mark.parametrize("capacity", [1, 4, 8])
def test_the_budget_holds_with_evaluations_in_flight(capacity: int) -> None:
    executor = landscape.InProcess(capacity)
    search, _ = searching(executor, Budget(evaluations=25))
    assert run(search) is StopReason.BUDGET
    assert len(executor.judged) == 25
    assert not search.tree_search.tree.pending


def test_the_same_seed_gives_the_same_tree() -> None:
    texts = []
    for _ in range(2):
        search, _ = searching()
        run(search)
        texts.append(to_json(search.tree_search.tree))
    assert texts[0] == texts[1]


def test_failures_are_nodes_with_an_outcome_and_their_log_is_kept() -> None:
    search, snapshots = searching()
    run(search)
    failed = [n for n in search.tree_search.tree.nodes if n.outcome is Outcome.BUILD_ERROR]
    assert failed
    assert all(node.log for node in failed)
    assert snapshots[-1].outcomes["build error"] == len(failed)


def test_a_starting_kernel_without_a_time_ends_the_search() -> None:
    def broken(_: Kernel) -> Evaluation:
        return Evaluation(Outcome.WRONG_RESULT, Source.MODELLED, message="off by one")

    executor = landscape.InProcess(judged_by=broken)
    search, _ = searching(executor)
    assert run(search) is StopReason.NO_BASELINE
    assert len(executor.judged) == 1


def test_a_stop_request_ends_the_search_and_loses_nothing() -> None:
    executor = landscape.InProcess(4)
    search, snapshots = searching(executor, stop_requested=lambda: len(executor.judged) >= 10)
    assert run(search) is StopReason.INTERRUPTED
    assert len(snapshots) == len(executor.judged) == search.tree_search.tree.evaluations


def test_a_search_without_gains_runs_out_of_patience_and_gets_as_much_again_when_resumed() -> None:
    budget = Budget(evaluations=100, patience=7)
    search, _ = searching(landscape.InProcess(judged_by=lambda _: landscape.taking(1.0)), budget)
    assert run(search) is StopReason.PATIENCE
    assert search.evaluations == 1 + 7
    again = dataclasses.replace(search)
    assert again.run(again.tree_search.resume()) is StopReason.PATIENCE
    assert again.evaluations == 1 + 7 + 7


def test_a_gain_renews_the_patience() -> None:
    search, snapshots = searching(budget=Budget(evaluations=100, patience=12))
    assert run(search) is StopReason.PATIENCE
    last = max(snapshot.evaluations for snapshot in snapshots if snapshot.improved_by)
    assert search.evaluations == last + 12


def test_the_seconds_budget_counts_what_earlier_processes_spent() -> None:
    executor = landscape.InProcess()
    search, _ = searching(executor, Budget(seconds=5.0), spent_seconds=5.0)
    assert run(search) is StopReason.BUDGET
    assert len(executor.judged) == 1, "the root, without which there is nothing to say"


def test_the_next_fastest_is_the_answer_when_final_validation_refuses_the_fastest() -> None:
    executor = landscape.InProcess()
    search, _ = searching(executor)
    run(search)
    executor.refuses = {landscape.kernel(*landscape.BEST).identity}
    best = choose(search.tree_search, executor)
    assert best.node not in (None, 0)
    assert best.speedup == pytest.approx(38 / 2)
    assert [reason for _, reason in best.refused] == ["wrong result: wrong on a held-out shape"]


def test_the_baseline_is_the_answer_when_everything_else_is_refused() -> None:
    executor = landscape.InProcess()
    search, _ = searching(executor)
    run(search)
    executor.refuses = {k.identity for k in executor.judged} - {search.task.starting_kernel.identity}
    best = choose(search.tree_search, executor)
    assert best.node == 0
    assert best.speedup == pytest.approx(1.0)
    executor.refuses.add(search.task.starting_kernel.identity)
    assert choose(search.tree_search, executor).node is None


def test_a_slow_quarantined_kernel_is_never_the_best_so_far() -> None:
    def believed(kernel: Kernel) -> Evaluation:
        if kernel.macros["X"] == 2:
            return landscape.taking(1e-9, quarantine="faster than the floor")
        return landscape.taking(1.0)

    executor = landscape.InProcess(judged_by=believed)
    search, snapshots = searching(executor, Budget(evaluations=20))
    run(search)
    assert snapshots[-1].best_speedup == pytest.approx(1.0)
    assert choose(search.tree_search, executor).node == 0


def test_what_is_slower_at_a_shape_that_was_held_out_is_reported_and_the_next_one_gets_its_turn() -> None:
    class Unseen(landscape.InProcess):
        """The fastest kernel takes three times the baseline's time at a held-out shape, or all kernels do."""

        all_are = False

        def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
            found = super().final_validation(kernel, baseline)
            unseen = 3.0 if self.all_are or kernel.macros["X"] == landscape.BEST[0] else 0.5
            timing = Timing("n=77", unseen, unseen, unseen, baseline_seconds=1.0)
            return dataclasses.replace(found, timings=(timing,))

    executor = Unseen()
    search, _ = searching(executor)
    run(search)
    answer = choose(search.tree_search, executor)
    assert answer.node
    assert search.tree_search.kernel(answer.node).macros["X"] != landscape.BEST[0]
    fastest, reason = answer.refused[0]
    assert search.tree_search.kernel(fastest).macros == {"X": 7, "Y": 2}
    assert "n=77" in reason
    assert "3.00 times as long" in reason
    assert [(timing.shape, timing.seconds) for timing in answer.timings] == [("n=77", 0.5)]
    executor.all_are = True
    assert choose(search.tree_search, executor).node == 0, "the start beside itself isn't slower"


def test_what_is_faster_within_the_models_uncertainty_is_no_improvement_and_no_answer() -> None:
    def plateau(kernel: Kernel) -> Evaluation:
        x = kernel.macros["X"]
        return landscape.taking(1.0 if x < 3 else 0.5 - 1e-4 * min(x, 30))

    executor = landscape.InProcess(judged_by=plateau)
    search, snapshots = searching(executor, Budget(evaluations=40))
    run(search)
    improved = [snapshot for snapshot in snapshots if snapshot.improved_by]
    assert [snapshot.best_speedup for snapshot in improved] == [pytest.approx(2.0, rel=0.01)]
    answer = choose(search.tree_search, executor)
    assert answer.node == improved[0].best_node
    assert max(kernel.macros["X"] for kernel in executor.judged) > 3, "what is faster by a hair was found"


def test_a_final_validation_that_is_interrupted_leaves_the_fastest_kernel_unvalidated() -> None:
    class Endless(landscape.InProcess):
        """It ends only when the executor is closed."""

        def __init__(self) -> None:
            super().__init__()
            self.closed = threading.Event()

        def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
            self.closed.wait()
            return super().final_validation(kernel, baseline)

        def close(self) -> None:
            self.closed.set()

    executor = Endless()
    search, snapshots = searching(executor)
    run(search)
    known = len(snapshots)
    answer = choose(search.tree_search, executor, search.say_validating, lambda: len(snapshots) > known)
    assert (answer.validated, answer.checks, executor.closed.is_set()) == (False, (), True)
    assert answer.node
    assert search.tree_search.kernel(answer.node) == landscape.kernel(*landscape.BEST)
    assert (snapshots[-1].best_node, snapshots[-1].validating) == (answer.node, pytest.approx(0.0, abs=60))


def test_part_of_a_budget_of_seconds_is_kept_for_the_final_validation() -> None:
    """By the starting kernel's evaluation, which takes 2 s of a clock that every evaluation moves on by 2 s."""
    judged = list[Kernel]()

    def judge(kernel: Kernel) -> Evaluation:
        judged.append(kernel)
        return dataclasses.replace(landscape.judge(kernel), stage_seconds={"verify": 2.0})

    search = landscape.search(
        Budget(seconds=60), executor=landscape.InProcess(judged_by=judge), clock=lambda: 2.0 * len(judged)
    )
    assert search.run((landscape.start(search),)) is StopReason.BUDGET
    kept = VALIDATION_SECONDS + VALIDATION_EVALUATIONS * 2.0
    assert search.validation_seconds == kept
    assert 60 - kept <= search.elapsed_seconds < 60 - kept + 2
    assert dataclasses.replace(search, budget=Budget(seconds=10)).validation_seconds == 10 * VALIDATION_SHARE


def test_spent_seconds_leaves_pauses_out() -> None:
    started, later = Started(policy=Policy(), seed=0, at=100.0), Refused(node=0, edit=0, reason="", at=107.0)
    assert spent_seconds([started]) == 0.0
    assert spent_seconds([started, later, Resumed(at=200.0)]) == 7.0
    assert spent_seconds([started, later, Resumed(at=200.0), replace(later, at=201.5)]) == 8.5
    assert spent_seconds([]) == 0.0


def test_two_searches_take_turns_on_the_same_executors_capacity() -> None:
    searches = [searching(landscape.InProcess(2), Budget(evaluations=12))[0] for _ in range(2)]
    for search in searches:
        search.begin((landscape.start(search),))
    assert not searches[0].submit_next(), "the root's evaluation isn't back"
    endings: dict[int, StopReason] = {}
    while len(endings) < 2:
        for number, search in enumerate(searches):
            begun = search.in_flight
            if search.submit_next():
                assert search.in_flight == begun + 1
                continue
            stop_reason = search.stop_reason
            if stop_reason is not None:
                assert not search.in_flight
                endings[number] = search.end(stop_reason)
            search.collect(0.0)
    assert set(endings.values()) == {StopReason.BUDGET}
    assert [search.evaluations for search in searches] == [12, 12]
    trees = [to_json(search.tree_search.tree) for search in searches]
    assert trees[0] == trees[1]


def test_a_search_ends_in_time_though_an_evaluation_does_not_come_back() -> None:
    class Endless(landscape.InProcess):
        def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
            return [] if self.judged else super().wait(timeout)

    now = [0.0]
    search = landscape.search(Budget(seconds=60), executor=Endless(2), clock=lambda: now[0])
    search.begin((landscape.start(search),))
    search.collect(0.0)
    assert search.submit_next()
    assert search.stop_reason is None
    now[0] = 60.0
    assert not search.submit_next()
    assert (search.stop_reason, search.in_flight) == (StopReason.BUDGET, 1)
