"""Waiting for what a cluster does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

from mctskernel.core.evaluation import Evaluation
from mctskernel.executors.ray.executor import RayExecutor


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when it is true; fail when that takes too long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def drain(executor: RayExecutor, count: int) -> dict[int, Evaluation]:
    """The next results by ticket, each of which comes once."""
    results: dict[int, Evaluation] = {}
    while len(results) < count:
        finished = executor.wait(60)
        assert finished
        assert not results.keys() & dict(finished).keys(), "it came back twice"
        results.update(finished)
    return results
