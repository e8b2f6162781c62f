"""Who does the evaluations: several in flight, finished in any order."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel


class CounterSet(enum.StrEnum):
    """Which hardware counters are read of a kernel that is right."""

    ALL = "all"
    FEW = "few"
    """Those of the multiprocessors and of DRAM: none of L2's own, and loads and stores in one where they are dear."""

    TIME = "time"
    """The GPU's own clock alone: nothing says what binds a kernel."""


class ExecutorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What drives the devices of a run.

    `engine` is `local`, this machine's processes, or `ray`, those of a cluster, at `address`; an empty one is that
    which RAY_ADDRESS or `ray start` gives, or else a new one on this machine. `gpus` are indices or beginnings of the
    UUIDs of this machine's GPUs; none means all of them. `counters` are read on GPUs; None is all of them for one
    GPU, and few for several of a machine, which wait for each other to count.
    """

    engine: str = "local"
    gpus: tuple[str, ...] = ()
    address: str = ""
    counters: CounterSet | None = None


LOCAL = ExecutorOptions()
"""This machine, with every GPU that it has."""

ENGINES = ("local", "ray")


class Executor(Protocol):
    """Evaluates kernels in the background. Whatever a kernel does to its evaluator costs one evaluation."""

    @property
    def capacity(self) -> int:
        """How many evaluations can be in flight without one waiting for another.

        It may change while a run goes on: devices are lost, and others come.
        """
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
