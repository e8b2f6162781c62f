"""Evaluations that several searches of one task share, where a kernel's evaluation depends on the kernel alone."""

from __future__ import annotations

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel


class SharedEvaluations:
    """An executor that asks another one about each kernel once, and then knows; final validations too.

    What was known costs a search no time, and comes with the seconds that it cost once. On a GPU searches must not
    share: one lucky time would be every search's. Searches run one after another; each waits for what it submitted.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._known: dict[Kernel, Evaluation] = {}
        self._validations: dict[tuple[Kernel, Kernel], Evaluation] = {}
        self._in_flight: dict[int, Kernel] = {}
        self._ready: list[tuple[int, Evaluation]] = []

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight without one waiting for another."""
        return self._executor.capacity

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        if kernel in self._known:
            self._ready.append((ticket, self._known[kernel]))
            return
        self._in_flight[ticket] = kernel
        self._executor.submit(ticket, kernel)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, what was known at once."""
        if self._ready:
            found, self._ready = self._ready, []
            return found
        found = self._executor.wait(timeout)
        for ticket, evaluation in found:
            self._known[self._in_flight.pop(ticket)] = evaluation
        return found

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """A whole evaluation at what was held out. Raises DeviceError when the machine is broken."""
        key = kernel, baseline
        if key not in self._validations:
            self._validations[key] = self._executor.final_validation(kernel, baseline)
        return self._validations[key]

    def fingerprint(self) -> dict[str, str]:
        """That of the devices behind it."""
        return self._executor.fingerprint()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of this machine."""
        return self._executor.notes

    def close(self) -> None:
        """Stop at once, what is in flight included."""
        self._executor.close()
