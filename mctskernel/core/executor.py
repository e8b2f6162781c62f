"""Executors: several evaluations in flight, finished in any order."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel


class CounterSet(enum.StrEnum):
    """Which hardware counters are read of a kernel that is right."""

    ALL = "all"
    FEW = "few"
    """Those of the multiprocessors and of DRAM; none of L2."""

    TIME = "time"
    """Only the GPU's own clock: no diagnosis."""


class ExecutorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What runs the evaluations.

    `engine` is `local`, processes of this machine, or `ray`, a cluster at `address`; an empty address is that of
    RAY_ADDRESS or `ray start`, or else a new cluster on this machine. `gpus` are indices or beginnings of the
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
    """Evaluates kernels in the background. A kernel that crashes its evaluator costs one evaluation."""

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

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate at the held-out shapes, in a fresh process and with a fresh seed; waits for it.

        The timings include the baseline's. Raises DeviceError when the machine is broken.
        """
        ...

    def fingerprint(self) -> dict[str, str]:
        """`Device.fingerprint` of the devices, which are alike."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about this machine, in sentences: why there are no counters, for instance."""
        ...

    def close(self) -> None:
        """Stop at once, what is in flight included."""
        ...


@dataclass(frozen=True)
class Prediction:
    """A predicted time of one run of the launch plan, in seconds: the geometric mean over the search shapes.

    `terms` are the seconds that each part of the GPU would take alone; two predictions whose terms are alike
    err alike, so that their ratio is known better than either of them.
    """

    seconds: float
    terms: Mapping[str, float]


class Surrogate(Protocol):
    """Predicts in the background, several kernels at a time."""

    @property
    def capacity(self) -> int:
        """How many predictions can be in flight without one waiting for another."""
        ...

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin a prediction. `ticket`, not in flight already, comes back with its result."""
        ...

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:
        """The predictions that have finished since the last call, waiting for the first of them.

        None where there is no prediction, for instance because the kernel doesn't build. Empty when nothing is in
        flight, or when nothing finished in `timeout` seconds.
        """
        ...

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """One standard deviation of the logarithm of the error of the ratio of two predicted times."""
        ...

    def close(self) -> None:
        """Stop at once, what is in flight included."""
        ...
