"""Who does the evaluations: several in flight, finished in any order."""

from __future__ import annotations

from typing import Protocol

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel


class Executor(Protocol):
    """Evaluates kernels in the background. Whatever a kernel does to its evaluator costs one evaluation."""

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight without one waiting for another."""
        ...

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin an evaluation. `ticket`, not in flight already, comes back with its result."""
        ...

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        """The evaluations that have finished since the last call, waiting for the first of them.

        Empty when nothing is in flight, or when nothing finished in `timeout` seconds.
        """
        ...

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """A whole evaluation at what was held out, in a fresh process and with a fresh seed; waits for it.

        Its timings stand beside the baseline's. Raises DeviceError when the machine is broken.
        """
        ...

    def fingerprint(self) -> dict[str, str]:
        """`Device.fingerprint` of the devices, which are alike."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know of this machine, in sentences: why there are no counters, say."""
        ...

    def close(self) -> None:
        """Stop at once, what is in flight included."""
        ...
