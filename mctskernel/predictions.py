"""Predictions: asks a surrogate about each kernel once, for all who want to know, and remembers what it said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction, Surrogate
from mctskernel.tree.events import PredictionRecord

QUEUED_PER_PROCESS = 2
"""Predictions in flight for each that can run at once: one is at hand when another ends, and none is stale."""

POLL_SECONDS = 0.1


@dataclass
class Predictions:
    """What a surrogate says of kernels, by their identity."""

    surrogate: Surrogate
    _known: dict[str, Prediction | None] = field(default_factory=dict)
    _asked: dict[int, str] = field(default_factory=dict)
    _tickets: int = 0

    @property
    def has_room(self) -> bool:
        """Whether a question would soon be answered."""
        return len(self._asked) < QUEUED_PER_PROCESS * self.surrogate.capacity

    def ask(self, kernel: Kernel) -> str:
        """Begin to predict a kernel, unless that was done before. Returns its identity."""
        if kernel.identity not in self._known and kernel.identity not in self._asked.values():
            self._asked[self._tickets] = kernel.identity
            self.surrogate.submit(self._tickets, kernel)
            self._tickets += 1
        return kernel.identity

    def collect(self, timeout: float = 0.0) -> None:
        """Take what was answered, waiting for the first answer for up to `timeout` seconds."""
        for ticket, prediction in self.surrogate.wait(timeout):
            self._known[self._asked.pop(ticket)] = prediction

    def settle(self, is_over: Callable[[], bool]) -> None:
        """Wait for all answers, until the search `is_over`."""
        while self._asked and not is_over():
            self.collect(POLL_SECONDS)

    def __contains__(self, identity: str) -> bool:
        """Whether there is an answer about a kernel."""
        return identity in self._known

    def __getitem__(self, identity: str) -> Prediction | None:
        """The answer about a kernel; None: the surrogate has no opinion."""
        return self._known[identity]

    def against(self, own: Prediction | None, prediction: Prediction) -> PredictionRecord:
        """A prediction of what was made of a kernel, against that kernel's own prediction if there is one."""
        record = record_of(prediction)
        if own is None:
            return record
        gain, sigma = own.seconds / prediction.seconds, self.surrogate.uncertainty(own, prediction)
        return PredictionRecord(record.seconds, record.terms, gain, sigma)


def record_of(prediction: Prediction) -> PredictionRecord:
    """What is kept of a prediction, which `prediction_of` reads."""
    terms = {name: seconds for name, seconds in prediction.terms.items() if seconds}
    return PredictionRecord(prediction.seconds, terms)


def prediction_of(record: PredictionRecord | None) -> Prediction | None:
    """The prediction that was kept; None where there was no opinion."""
    return Prediction(record.seconds, record.terms) if record is not None and record.seconds else None
