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
"""The entry of a fingerprint that names the GPU, and what stands between the UUIDs of several."""


class Trial(enum.StrEnum):
    """What a device judges kernels for, which decides the shapes that it judges them at."""

    SEARCH = "search"
    LAST_GATE = "last gate"
    CHECK = "check"
    """Verified as at the last gate; timed at the first of those shapes, which says little and takes no time."""


@dataclass(frozen=True)
class DeviceSpec:
    """Which device judges which task: enough to open it in a worker process.

    `kind` is `gpu`, `model`, `recorded`, or the URL of a server that judges; `architecture` names the GPU that is
    modelled (`H100`); `seed` decides inputs; `language` is that of the starting kernel; `trial` says which of the
    task's shapes are judged at; `gpu` is the UUID of one of this machine's GPUs, empty for the first visible one.
    """

    kind: str
    task_folder: Path
    architecture: str = "H100"
    seed: int = 0
    language: Language = Language.CUDA
    trial: Trial = Trial.SEARCH
    gpu: str = ""

    @property
    def source(self) -> Source:
        """What kind of numbers a device of this machine gives; what a server gives, its fingerprint says."""
        return source_of({"device": self.kind})

    @property
    def at_last_gate(self) -> DeviceSpec:
        """The same device for the last gate, with a seed that nobody can know before."""
        return replace(self, trial=Trial.LAST_GATE, seed=secrets.randbits(SEED_BITS))


_SOURCES = {"model": Source.MODELLED, "recorded": Source.RECORDED}


def is_remote(kind: str) -> bool:
    """Whether a kind of device is the URL of a server."""
    return kind.startswith(("http://", "https://"))


def source_of(fingerprint: Mapping[str, str]) -> Source:
    """What kind of numbers a device of this fingerprint gives."""
    return _SOURCES.get(fingerprint.get("device", ""), Source.MEASURED)


class DeviceError(BadMachineError, RuntimeError):
    """A machine on which nothing can be judged; the message is a sentence that says what is missing."""


class Device(Protocol):
    """Where kernels of one task are judged. Not shared between threads."""

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Build, verify, time and count one kernel.

        Raises DeviceError when the machine is broken.
        """
        ...

    def fingerprint(self) -> dict[str, str]:
        """What a time from this device may be compared with: hardware, driver, compilers, versions."""
        ...
