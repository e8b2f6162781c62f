"""Turns on one machine: nobody starves, the hungry share alike, and the machine doesn't wait."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.serving.fairness import FIRST_GUESS, FairQueue, Turn

CLIENTS = ("a", "b", "c")


def anything(_: object) -> bool:
    return True


@dataclass
class Machine:
    """So many places, simulated: items are the seconds that they take."""

    queue: FairQueue[float]
    places: int
    now: float = 0.0

    def __post_init__(self) -> None:
        self.running: list[tuple[float, int, Turn[float]]] = []
        self.used: Counter[str] = Counter()
        self.begun: list[str] = []

    def fill(self) -> None:
        while len(self.running) < self.places and (turn := self.queue.take(anything)) is not None:
            self.begun.append(turn.client)
            heapq.heappush(self.running, (self.now + turn.item, len(self.begun), turn))

    def finish_one(self) -> None:
        self.now, _, turn = heapq.heappop(self.running)
        self.queue.settle(turn, turn.item)
        self.used[turn.client] += turn.item
        self.fill()


seconds = st.floats(0.01, 5.0)


@settings(deadline=None)
@given(st.lists(seconds, min_size=3, max_size=3), st.integers(1, 4))
def test_who_is_always_hungry_gets_an_equal_share_of_the_seconds(sizes: list[float], places: int) -> None:
    queue: FairQueue[float] = FairQueue()
    for client, size in zip(CLIENTS, sizes, strict=True):
        for _ in range(int(300 / size)):
            queue.put(client, size)
    machine = Machine(queue, places)
    machine.fill()
    while machine.now < 200 / places:
        machine.finish_one()

    # What one item takes, for each place, and what was guessed before any had finished.
    slack = (max(sizes) + FIRST_GUESS) * (places + 1)
    assert max(machine.used.values()) - min(machine.used[client] for client in CLIENTS) <= 2 * slack


@settings(deadline=None)
@given(st.lists(seconds, max_size=30), st.integers(1, 3), st.integers(10, 60))
def test_nobody_starves(sizes: list[float], places: int, many: int) -> None:
    queue: FairQueue[float] = FairQueue()
    for size in sizes:
        queue.put("greedy", size)
    machine = Machine(queue, places)
    machine.fill()
    for _ in range(min(5, len(machine.running))):
        machine.finish_one()
    queue.put("modest", 0.1)
    for _ in range(many):
        queue.put("greedy", 1.0)
    before = len(machine.begun)
    while "modest" not in machine.begun:
        machine.fill()
        if machine.running:
            machine.finish_one()

    assert machine.begun[before:].index("modest") <= places + 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CLIENTS), seconds), max_size=20), st.integers(1, 4))
def test_the_machine_never_waits_while_something_could_run(
    items: list[tuple[str, float]], places: int
) -> None:
    queue: FairQueue[float] = FairQueue()
    for client, size in items:
        queue.put(client, size)
    machine = Machine(queue, places)
    machine.fill()
    while machine.running:
        assert len(machine.running) == places or not len(queue)
        machine.finish_one()

    assert Counter(machine.begun) == Counter(client for client, _ in items)
    assert not len(queue)


def test_a_rest_saves_up_no_turns() -> None:
    queue: FairQueue[float] = FairQueue()
    machine = Machine(queue, 1)
    for _ in range(100):
        queue.put("busy", 1.0)
    machine.fill()
    for _ in range(50):
        machine.finish_one()
    for _ in range(20):
        queue.put("rested", 1.0)
    before = len(machine.begun)
    for _ in range(20):
        machine.finish_one()

    assert Counter(machine.begun[before:]) == {"busy": 10, "rested": 10}


def test_what_can_run_is_not_held_up_by_what_cannot() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in (1, 2, 3):
        queue.put("a", number)
    queue.put("b", 5)

    taken = [queue.take(lambda number: number != 1) for _ in range(4)]

    assert [turn and (turn.client, turn.item) for turn in taken] == [("a", 2), ("b", 5), ("a", 3), None]
    assert len(queue) == 1


def test_what_is_put_back_is_next_and_what_is_dropped_never_comes() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in (1, 2, 3):
        queue.put("a", number)
    turn = queue.take(anything)
    assert turn is not None
    queue.settle(turn, 1.0)
    queue.put_back("a", turn.item)
    queue.drop(lambda number: number == 2)

    found = [queue.take(anything), queue.take(anything), queue.take(anything)]
    assert [turn and turn.item for turn in found] == [1, 3, None]


def test_a_client_pays_what_its_items_took_and_not_what_was_expected() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(10):
        queue.put("slow", "10 s")
        queue.put("quick", "0.1 s")
    order = []
    for _ in range(8):
        turn = queue.take(anything)
        assert turn is not None
        queue.settle(turn, 10.0 if turn.client == "slow" else 0.1)
        order.append(turn.client)

    assert Counter(order) == {"slow": 1, "quick": 7}


@pytest.mark.parametrize("count", [1, 4])
def test_places_that_get_free_together_go_to_different_clients(count: int) -> None:
    queue: FairQueue[int] = FairQueue()
    for _ in range(10):
        for client in "abcd":
            queue.put(client, 1)
    taken = [queue.take(anything) for _ in range(count)]

    assert len({turn.client for turn in taken if turn}) == count
