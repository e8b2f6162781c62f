"""What the executors of this package share: tickets of evaluations in flight, and closing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Self, TypeVar

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel

Result = TypeVar("Result")

Finish = Callable[[Evaluation | Exception], None]


class Closing:
    """A context manager that calls `close` at its end."""

    def close(self) -> None:
        """Stop at once, whatever is in flight."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Interrupt:
    """Ends what another thread waits for. `set` may be called from any thread, more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self.is_set = False

    def set(self) -> None:
        """Call every `end` that is registered, and those that will be."""
        with self._lock:
            self.is_set = True
            ends = tuple(self._ends)
        for end in ends:
            end()

    @contextmanager
    def calls(self, end: Callable[[], None]) -> Iterator[None]:
        """Register what ends the work of this block."""
        with self._lock:
            self._ends.append(end)
        if self.is_set:
            end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


class TicketedExecutor(Closing):
    """The tickets of an executor. Not shared between threads, but for the functions that `_begin` gets."""

    def __init__(self) -> None:
        self._in_flight: set[int] = set()
        self._finished: queue.SimpleQueue[tuple[int, Evaluation | Exception]] = queue.SimpleQueue()

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation; `ticket` comes back with its result. Raises ValueError for one in flight already."""
        if ticket in self._in_flight:
            raise ValueError(f"The ticket {ticket} is in flight already.")
        self._in_flight.add(ticket)
        self._begin(kernel, lambda result: self._finished.put((ticket, result)))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds. Raises DeviceError when the
        device is broken or can't be opened, and any other exception of an evaluation.
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

    def _begin(self, kernel: Kernel, finish: Finish) -> None:
        """Begin an evaluation; call `finish` once, in any thread, with the result or what `wait` is to raise."""
        raise NotImplementedError


def in_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Do some work in a thread of its own, which the end of this process doesn't wait for."""
    future: Future[Result] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=do, name=name, daemon=True).start()
    return future


def run(evaluate: Callable[[], Evaluation | None], finish: Finish) -> None:
    """Evaluate and finish; None means that another thread finishes."""
    try:
        result: Evaluation | Exception | None = evaluate()
    except Exception as error:  # noqa: BLE001 - raised again by `wait`, in its caller's thread
        result = error
    if result is not None:
        finish(result)
