"""Runs as they are timed, on a GPU that writes down what is asked of it, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from mctskernel.profiling.gpu import timing
from mctskernel.profiling.gpu.timing import Cleaner, TimedRuns

VARIANTS = 3


@dataclass
class World:
    """What there is on the GPU: the inputs of the run, its outputs, and what was done."""

    done: list[str] = field(default_factory=list)
    inputs: object = None
    outputs: object = None
    stash: dict[object, object] = field(default_factory=dict)
    run_on: list[object] = field(default_factory=list)
    seconds: float = 1e-4


class Watch:
    """Measures as much as the world says."""

    world: World

    def start(self) -> None:
        self.world.done.append("start")

    def stop(self) -> None:
        self.world.done.append("stop")

    @property
    def seconds(self) -> float:
        return self.world.seconds

    def free(self) -> None:
        pass


class Plan:
    """A kernel whose inputs are the number of their variant, and which does what its function does."""

    def __init__(self, world: World, name: str, kernel: Callable[[World], None]) -> None:
        self.world, self.name, self._kernel = world, name, kernel
        self.arena = SimpleNamespace(inputs=["inputs"], outputs=["outputs"])
        self.kernel = SimpleNamespace(local_bytes=0)

    def restore(self, variant: int) -> None:
        self.world.inputs, self.world.outputs = variant, "poison"
        self.world.done.append(f"restore {self.name}")

    def restore_own(self) -> None:
        self.world.done.append(f"restore what {self.name} owns")

    def run(self) -> None:
        self.world.done.append(f"run {self.name}")
        if self.name == "candidate":
            self.world.run_on.append(self.world.inputs)
        self._kernel(self.world)


class Digests:
    """The hash of what was there."""

    def __init__(self, world: World) -> None:
        self.world, self.slots = world, dict[int, int]()

    def take(self, segments: Sequence[str], slot: int) -> None:
        self.slots[slot] = hash(getattr(self.world, segments[0]))
        self.world.done.append(f"digest {segments[0]}")

    def read(self, count: int) -> list[int]:
        return [self.slots[slot] for slot in range(count)]


def twice(world: World) -> None:
    assert isinstance(world.inputs, int)
    world.outputs = 2 * world.inputs


def prepared(
    monkeypatch: pytest.MonkeyPatch, kernel: Callable[[World], None] = twice, checked_only: int = 0
) -> tuple[World, TimedRuns]:
    world = World()
    monkeypatch.setattr(timing, "Stopwatch", type("Watch", (Watch,), {"world": world}))
    monkeypatch.setattr(timing, "synchronize", lambda: world.done.append("wait"))
    flush: Any = SimpleNamespace(fill=lambda _: world.done.append("flush"))

    def overwrite(_: int) -> None:
        world.done.append("scrub")
        world.stash.clear()

    scrub: Any = overwrite
    candidate: Any = Plan(world, "candidate", kernel)
    baseline: Any = Plan(world, "baseline", twice)
    digests: Any = Digests(world)
    inputs = [hash(variant) for variant in range(VARIANTS)]
    return world, TimedRuns(
        candidate, baseline, Cleaner(flush, scrub), digests, inputs, checked_only=checked_only
    )


def test_a_run_begins_where_nothing_is_left_and_its_digests_are_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, runs = prepared(monkeypatch)
    runs.candidate(1)
    assert world.done == [
        "wait",
        "start",
        "restore what baseline owns",
        "restore candidate",
        "scrub",
        "flush",
        "start",
        "run candidate",
        "stop",
        "start",
        "digest outputs",
        "digest inputs",
        "stop",
        "stop",
        "wait",
    ]


def test_every_run_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fickle(world: World) -> None:
        twice(world)
        if len(world.run_on) == 3:
            world.outputs = "wrong"
        if len(world.run_on) == 5:
            world.inputs = "spoiled"

    _, runs = prepared(monkeypatch, fickle)
    runs.candidate(2)
    runs.candidate(6)
    assert [run.outputs == hash(2 * run.variant) for run in runs.runs] == [n != 3 for n in range(1, 9)]
    assert [run.inputs_kept for run in runs.runs] == [n != 5 for n in range(1, 9)]


def test_inputs_are_picked_at_random_and_some_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = set()
    for _ in range(20):
        world, runs = prepared(monkeypatch)
        runs.candidate(2)
        assert len(set(world.run_on)) == 1
        runs.candidate(10)
        # The second drawing is new to the kernel when it is warm.
        assert len(set(world.run_on)) == 2
        assert world.run_on[2] == world.run_on[0]
        assert not set(runs.held_back) & set(world.run_on)
        orders.add(tuple(world.run_on))
        runs.candidate(20)
        assert len(set(world.run_on[-20:])) == 2
        runs.unseen()
        assert set(world.run_on) == set(range(VARIANTS))
        assert len(set(world.run_on[-4:])) == 1
        assert world.run_on[-4] not in world.run_on[:-4]
    assert len(orders) > 10


def test_nobody_knows_which_run_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for _ in range(40):
        world, runs = prepared(monkeypatch)
        runs.again()
        found.add((len(world.run_on), world.run_on[-1]))
    assert len({length for length, _ in found}) > 3
    assert {variant for _, variant in found} == set(range(VARIANTS))


def test_variants_that_are_only_checked_are_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, runs = prepared(monkeypatch, checked_only=1)
    runs.candidate(2)
    runs.candidate(20)
    runs.unseen()
    assert set(world.run_on) == {0, 1}
    runs.on_seen(2)
    assert world.run_on[-1] == 2
    assert runs.runs[-1].inputs_kept
