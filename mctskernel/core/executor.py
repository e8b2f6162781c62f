"""Executors: several evaluations in flight, finished in any order."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.option import Option


class CounterSet(enum.StrEnum):
    """Which hardware counters are read of a kernel that is right."""

    ALL = "all"
    FEW = "few"
    """Those of the multiprocessors and of DRAM; none of L2."""

    TIME = "time"
    """Only the GPU's own clock: no diagnosis."""


class ExecutorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What runs the evaluations."""

    engine: Annotated[
        Literal["local", "ray"],
        Option("What runs the evaluations: processes of this machine, or a Ray cluster.", "--executor"),
    ] = "local"
    gpus: Annotated[
        tuple[str, ...],
        Option(
            "The GPUs of this machine to use: indices, or beginnings of UUIDs.",
            default="all",
            metavar="GPU,...",
        ),
    ] = ()
    counters: Annotated[
        CounterSet | None,
        Option(
            "Which hardware counters are read on a GPU: all; few, those of the multiprocessors and of DRAM; or only "
            "the time, which gives no diagnosis. Several GPUs of a machine wait for each other to read them.",
            default="all for one GPU, few for several",
        ),
    ] = None
    address: Annotated[
        str,
        Option(
            "The cluster of --executor ray.",
            "--ray-address",
            default="RAY_ADDRESS, or that of `ray start` on this machine",
            metavar="HOST:PORT",
        ),
    ] = ""


LOCAL = ExecutorOptions()
"""This machine, with every GPU that it has."""


class Executor(Protocol):
    """Evaluates kernels in the background. A kernel that crashes its evaluator costs one evaluation."""

    @property
    def capacity(self) -> int:
        """How many kernels can be in flight without waiting; it may change while devices come and go."""

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin with a kernel. `ticket`, not in flight already, comes back with its result."""

    def wait(self, timeout: float | None = None) -> Sequence[tuple[int, Evaluation]]:
        """Wait for results, at most `timeout` seconds; empty when nothing is in flight or finished."""

    def close(self) -> None:
        """Stop at once, what is in flight included."""

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        """Evaluate at held-out shapes, with the baseline, in a fresh process. Raises DeviceError."""

    def fingerprint(self) -> dict[str, str]:
        """`Device.fingerprint` of the devices, which are alike."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about this machine, in sentences: why there are no counters, for instance."""
