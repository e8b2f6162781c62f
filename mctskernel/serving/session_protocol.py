"""What a session's process is asked, and what it answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Kernel, Language

EXECUTOR = "mctskernel.executors:open_executor"
"""What opens an executor: a function of a DeviceSpec, a number of workers and ExecutorOptions, as `module:function`."""


class Open(msgspec.Struct, tag=True, frozen=True):
    """The first request: open an executor. Answered by Opened or Broken. `reads` are files that judging needs."""

    kind: str
    task_folder: str
    architecture: str
    seed: int
    language: Language
    trial: Trial
    workers: int
    options: ExecutorOptions = LOCAL
    reads: tuple[str, ...] = ()
    opener: str = EXECUTOR

    @property
    def spec(self) -> DeviceSpec:
        """The device to open."""
        return DeviceSpec(
            self.kind, Path(self.task_folder), self.architecture, self.seed, self.language, self.trial
        )


class Evaluate(msgspec.Struct, tag=True, frozen=True):
    """Evaluate a kernel. Answered by Judged, when it is done."""

    ticket: int
    kernel: Kernel


class LastGate(msgspec.Struct, tag=True, frozen=True):
    """Put a kernel through the last gate. Answered by Judged; nothing else is heard until then."""

    ticket: int
    kernel: Kernel
    baseline: Kernel


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The executor is open. Said again when its capacity or its remarks change."""

    capacity: int
    fingerprint: dict[str, str]
    remarks: tuple[str, ...]
    source: Source


class Judged(msgspec.Struct, tag=True, frozen=True):
    """An evaluation."""

    ticket: int
    evaluation: Evaluation


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The machine, or the task if that is at fault, can't be used; the process ends now."""

    message: str
    task_at_fault: bool = False


Request = Evaluate | LastGate
Reply = Opened | Judged | Broken

OPENINGS: msgspec.msgpack.Decoder[Open] = msgspec.msgpack.Decoder(Open)
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
