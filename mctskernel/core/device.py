"""What the loop needs of a device, and a description of one that can be sent to another process."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.user_errors import BadMachineError

SEED_BITS = 32

UUID, UUID_SEPARATOR = "uuid", "+"
"""The entry of a fingerprint that names the GPU, and the separator of several UUIDs."""


class Trial(enum.StrEnum):
    """What kernels are evaluated for, which decides the shapes."""

    SEARCH = "search"
    FINAL_VALIDATION = "final validation"
    CHECK = "check"
    """Verified as in final validation; timed at the first of those shapes only."""
    BASELINE = "baseline"
    """Timed as in final validation, and not verified."""


@dataclass(frozen=True)
class DeviceSpec:
    """A device and a task: enough to open the device in a worker process.

    `kind` is `gpu`, `model`, `recorded` or another registered device; `architecture` names the GPU that is modelled
    (`H100`); `seed` decides inputs; `language` is as `load_task` takes it; `trial` says which of the task's shapes
    are used; `gpu` is the UUID of one of this machine's GPUs, empty for the first visible one.
    """

    kind: str
    task_folder: Path
    architecture: str = "H100"
    seed: int = 0
    language: Language | None = None
    trial: Trial = Trial.SEARCH
    gpu: str = ""

    @property
    def source(self) -> Source:
        return source_of({"device": self.kind})

    @property
    def in_final_validation(self) -> DeviceSpec:
        """The same device for final validation, with a seed that is drawn now."""
        return replace(self, trial=Trial.FINAL_VALIDATION, seed=secrets.randbits(SEED_BITS))


_SOURCES = {"model": Source.MODELLED, "recorded": Source.RECORDED}


def source_of(fingerprint: Mapping[str, str]) -> Source:
    """Return what kind of numbers a device of this fingerprint gives."""
    return _SOURCES.get(fingerprint.get("device", ""), Source.MEASURED)


class DeviceError(BadMachineError, RuntimeError):
    """A machine that can't evaluate kernels; the message is a sentence that says what is missing."""


class Device(Protocol):
    """Evaluates kernels of one task. Not shared between threads."""

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Build, verify, time and count one kernel. Raises DeviceError when the machine is broken."""

    def fingerprint(self) -> dict[str, str]:
        """Return what a time from this device may be compared with: hardware, driver, compilers, versions."""
