"""Whoever comes, goes, answers late, twice or never: every job ends exactly once."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mctskernel.executors.ray.assignment import TRIES, Assignments, Call, Stage
from mctskernel.executors.ray.roster import Role

LIMITS = {Stage.BUILD: 10.0, Stage.JUDGE: 20.0, Stage.GATE: 60.0}
JUDGE, COMPILER = Role.JUDGE.serves, Role.COMPILER.serves
ROUTES = ((Stage.BUILD, Stage.JUDGE), (Stage.JUDGE,), (Stage.GATE,))


class Run(RuleBasedStateMachine):
    """A search and a cluster, in which any of this happens in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.assignments = Assignments(LIMITS)
        self.routes: dict[int, tuple[Stage, ...]] = {}
        self.ended: Counter[int] = Counter()
        self.losses: Counter[int] = Counter()
        self.evaluators: dict[int, frozenset[Stage]] = {}
        self.calls: dict[int, Call] = {}
        self.over: list[int] = []
        self.numbers = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    @rule(route=st.sampled_from(ROUTES))
    def begin(self, route: tuple[Stage, ...]) -> None:
        job = self.number()
        self.routes[job] = route
        self.assignments.begin(job, route)

    @rule(serves=st.sampled_from((JUDGE, COMPILER)))
    def join(self, serves: frozenset[Stage]) -> None:
        evaluator = self.number()
        self.evaluators[evaluator] = serves
        self.assignments.join(evaluator, serves)

    @rule()
    def hand_out(self) -> None:
        for call in self.assignments.hand_out(0.0):
            assert call.number not in self.calls
            assert call.number not in self.over
            assert call.stage in self.evaluators[call.evaluator]
            assert call.evaluator not in {each.evaluator for each in self.calls.values()}, "it was busy"
            assert call.job not in {each.job for each in self.calls.values()}, "it was elsewhere"
            assert not self.ended[call.job]
            self.calls[call.number] = call

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), refused=st.booleans())
    def answer(self, data: st.DataObject, refused: bool) -> None:
        self.hear(data.draw(st.sampled_from(sorted(self.calls))), refused)

    def hear(self, number: int, refused: bool) -> None:
        call = self.assignments.answered(number)
        assert call == self.calls.pop(number)
        self.over.append(number)
        if refused or call.stage is self.routes[call.job][-1]:
            self.assignments.end(call.job)
            self.ended[call.job] += 1
        else:
            self.assignments.advance(call.job)

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def answer_twice_or_too_late(self, data: st.DataObject) -> None:
        assert self.assignments.answered(data.draw(st.sampled_from(self.over))) is None

    @precondition(lambda self: self.evaluators)
    @rule(data=st.data(), machine=st.booleans())
    def leave(self, data: st.DataObject, machine: bool) -> None:
        evaluator = data.draw(st.sampled_from(sorted(self.evaluators)))
        del self.evaluators[evaluator]
        call = self.assignments.leave(evaluator)
        assert call == next((each for each in self.calls.values() if each.evaluator == evaluator), None)
        if call is None:
            return
        del self.calls[call.number]
        self.over.append(call.number)
        if machine:
            self.assignments.retry(call.job)
        else:
            self.lose(call.job)

    def lose(self, job: int) -> None:
        self.losses[job] += 1
        again = self.assignments.lost(job)
        assert again == (self.losses[job] < TRIES)
        self.ended[job] += not again

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def lose_what_was_built(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.calls)))
        call = self.calls.pop(number)
        self.over.append(number)
        assert self.assignments.answered(number) == call
        self.lose(call.job)

    @invariant()
    def nothing_ends_twice(self) -> None:
        assert not self.ended or max(self.ended.values()) <= 1
        assert set(self.assignments.jobs) == self.routes.keys() - +self.ended

    def teardown(self) -> None:
        """With somebody for every stage, everything ends."""
        self.join(JUDGE)
        self.join(COMPILER)
        for _ in range(2 * len(self.routes)):
            self.hand_out()
            for number in list(self.calls):
                self.hear(number, False)
        assert self.ended.keys() == self.routes.keys()
        self.nothing_ends_twice()


TestRun = Run.TestCase


def test_a_slow_evaluator_holds_up_its_own_call_alone() -> None:
    assignments = Assignments(LIMITS)
    assignments.join(1, JUDGE)
    assignments.join(2, JUDGE)
    for job in range(4):
        assignments.begin(job, (Stage.JUDGE,))
    slow, quick = assignments.hand_out(0.0)
    judged = [quick.job]
    for _ in range(2):
        assert assignments.answered(quick.number)
        (quick,) = assignments.hand_out(1.0)
        judged.append(quick.job)
    assert (slow.job, judged) == (0, [1, 2, 3])


def test_what_was_lost_is_tried_again_before_what_waits_and_then_given_up() -> None:
    assignments = Assignments(LIMITS)
    assignments.join(1, JUDGE)
    assignments.begin(7, (Stage.JUDGE,))
    assignments.begin(8, (Stage.JUDGE,))
    (call,) = assignments.hand_out(0.0)
    assert assignments.leave(1) == call
    assert assignments.lost(7)
    assignments.join(2, JUDGE)
    (call,) = assignments.hand_out(0.0)
    assert (call.job, call.evaluator) == (7, 2)
    assignments.leave(2)
    assert not assignments.lost(7)
    assert assignments.jobs == (8,)


def test_the_last_gate_goes_first() -> None:
    assignments = Assignments(LIMITS)
    assignments.begin(1, (Stage.JUDGE,))
    assignments.begin(2, (Stage.GATE,))
    assignments.join(1, JUDGE)
    assert [call.job for call in assignments.hand_out(0.0)] == [2]


def test_a_call_is_overdue_by_the_limit_of_its_stage() -> None:
    assignments = Assignments(LIMITS)
    assignments.join(1, JUDGE)
    assignments.join(2, COMPILER)
    assignments.begin(1, (Stage.JUDGE,))
    assignments.begin(2, (Stage.BUILD, Stage.JUDGE))
    assignments.hand_out(0.0)
    assert [call.job for call in assignments.overdue(15.0)] == [2]
    assert len(assignments.overdue(21.0)) == 2
    assert assignments.serving(Stage.BUILD) == assignments.serving(Stage.GATE) == 1
