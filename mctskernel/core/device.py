"""What the loop needs of a device, and a description of one that can be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mctskernel.core.evaluation import Check, Evaluation, Source
from mctskernel.core.kernel import Kernel, Language


@dataclass(frozen=True)
class DeviceSpec:
    """Which device judges which task: enough to open it in a worker process.

    `kind` is `gpu`, `model` or `recorded`; `architecture` names the GPU that is modelled (`H100`); `seed` decides
    inputs; `language` is that of the starting kernel.
    """

    kind: str
    task_folder: Path
    architecture: str = "H100"
    seed: int = 0
    language: Language = Language.CUDA

    @property
    def source(self) -> Source:
        """What kind of numbers the device gives."""
        return _SOURCES.get(self.kind, Source.MEASURED)


_SOURCES = {"model": Source.MODELLED, "recorded": Source.RECORDED}


class DeviceError(RuntimeError):
    """A machine on which nothing can be judged; the message is a sentence that says what is missing."""


class Device(Protocol):
    """Where kernels of one task are judged. Not shared between threads."""

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """Build, verify, time and count one kernel.

        Raises DeviceError when the machine is broken.
        """
        ...

    def final_check(self, kernel: Kernel) -> tuple[Check, ...]:
        """Verify once more, on the held-out shapes and with seeds that no evaluation has used.

        The last gate before a kernel is named the best: it must pass every check, and there is at least one.
        """
        ...

    def fingerprint(self) -> dict[str, str]:
        """What a time from this device may be compared with: hardware, driver, compilers, versions."""
        ...
