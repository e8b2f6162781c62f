"""Evaluations in flight in threads, and those that have finished."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from mctskernel.core.evaluation import Evaluation


class Tickets:
    """Tickets that were handed out and not yet collected. `run` and `finish` are for any thread, the rest for one."""

    def __init__(self) -> None:
        self._in_flight: set[int] = set()
        self._finished: queue.SimpleQueue[tuple[int, Evaluation | Exception]] = queue.SimpleQueue()

    def begin(self, ticket: int) -> None:
        """Hand out a ticket. Raises ValueError for one that is in flight already."""
        if ticket in self._in_flight:
            raise ValueError(f"The ticket {ticket} is in flight already.")
        self._in_flight.add(ticket)

    def run(self, ticket: int, evaluate: Callable[[], Evaluation | None]) -> None:
        """Evaluate and finish the ticket, unless None says that it goes on elsewhere."""
        try:
            result: Evaluation | Exception | None = evaluate()
        except Exception as error:  # noqa: BLE001 - raised again by `wait`, in its caller's thread
            result = error
        if result is not None:
            self.finish(ticket, result)

    def finish(self, ticket: int, result: Evaluation | Exception) -> None:
        """Say what a ticket came to; an exception is raised by `wait`."""
        self._finished.put((ticket, result))

    def wait(self, timeout: float | None) -> list[tuple[int, Evaluation]]:
        """What has finished since the last call, waiting for the first of it.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises what an evaluation
        raised.
        """
        finished: list[tuple[int, Evaluation]] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._in_flight:
            try:
                left = (
                    0.0 if finished else None if deadline is None else max(0.0, deadline - time.monotonic())
                )
                ticket, result = self._finished.get(timeout=left)
            except queue.Empty:
                break
            self._in_flight.discard(ticket)
            if isinstance(result, Exception):
                raise result
            finished.append((ticket, result))
        return finished
