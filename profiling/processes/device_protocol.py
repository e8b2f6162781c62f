"""What a process that holds a device is asked, and what it answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel, Language


class Open(msgspec.Struct, tag=True, frozen=True):
    """The first request: open a device. `opener` is `module:function`, a function of a DeviceSpec."""

    kind: str
    task_folder: str
    architecture: str
    seed: int
    opener: str
    memory_bytes: int
    language: Language = Language.CUDA
    trial: Trial = Trial.SEARCH

    @property
    def spec(self) -> DeviceSpec:
        """The device to open."""
        return DeviceSpec(
            self.kind, Path(self.task_folder), self.architecture, self.seed, self.language, self.trial
        )


class Evaluate(msgspec.Struct, tag=True, frozen=True):
    """Evaluate a kernel; answered by Evaluated."""

    kernel: Kernel


class Fingerprint(msgspec.Struct, tag=True, frozen=True):
    """Answered by Fingerprinted."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The device is open."""


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """An evaluation. `leaving` says that the process ends now: it may be out of memory, or out of order."""

    evaluation: Evaluation
    leaving: bool = False


class Fingerprinted(msgspec.Struct, tag=True, frozen=True):
    """The device's fingerprint."""

    values: dict[str, str]


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The machine or the task can't be used; the worker ends now."""

    message: str


Request = Open | Evaluate | Fingerprint
Reply = Ready | Evaluated | Fingerprinted | Broken

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
