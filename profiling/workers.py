"""A killable process that judges kernels on a device: what a kernel does to it costs one evaluation."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mctskernel.core.device import Device, DeviceError, DeviceSpec
from mctskernel.core.evaluation import Check, Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.profiling import child_process
from mctskernel.profiling.devices import open_device
from mctskernel.profiling.worker_protocol import (
    REPLIES,
    Broken,
    Checked,
    Evaluate,
    Evaluated,
    FinalCheck,
    Fingerprint,
    Fingerprinted,
    Open,
    ProtocolError,
    Ready,
    Reply,
)

Opener = Callable[[DeviceSpec], Device]
Result = Evaluation | tuple[Check, ...] | Mapping[str, str]

MAX_FAILED_STARTS = 3


@dataclass(frozen=True)
class Limits:
    """What one candidate may cost: seconds from the start of its evaluation, and bytes of memory.

    `opening_seconds` is how long a worker may take to open its device.
    """

    seconds: float = 30.0
    memory_bytes: int = 6 << 30
    opening_seconds: float = 180.0


class Worker:
    """One worker process, replaced when it dies. Takes one request at a time.

    `opener`, a function of an importable module, opens the device inside the process. Wait for `fileno` to be
    readable or for `deadline` to pass, then ask for `result`.
    """

    def __init__(
        self, spec: DeviceSpec, *, limits: Limits | None = None, opener: Opener = open_device
    ) -> None:
        self._spec = spec
        self._limits = limits or Limits()
        self._opener = f"{opener.__module__}:{opener.__qualname__}"
        self._request: Evaluate | FinalCheck | Fingerprint | None = None
        self._ready = False
        self._failed_starts = 0
        self._closed = False
        self._child = child_process.start()
        self._open()

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on."""
        return self._request is not None

    @property
    def pid(self) -> int:
        """The process's number; another one after each replacement."""
        return self._child.pid

    @property
    def deadline(self) -> float:
        """When the process will have taken too long, by `time.monotonic`; infinite while it's idle."""
        return self._deadline

    def fileno(self) -> int:
        """For `select`."""
        return self._child.channel.fileno()

    def submit(self, kernel: Kernel) -> None:
        """Begin an evaluation."""
        self._submit(Evaluate(kernel))

    def submit_final_check(self, kernel: Kernel) -> None:
        """Begin a verification on the held-out shapes."""
        self._submit(FinalCheck(kernel))

    def submit_fingerprint(self) -> None:
        """Begin to ask for the device's fingerprint."""
        self._submit(Fingerprint())

    def result(self) -> Result | None:
        """What the request came to, once that is known; never waits.

        A process that died or outlived its deadline is replaced, and its request came to a crash or a
        timeout. Raises DeviceError when the device can't be opened, or turns out to be broken.
        """
        if self._is_readable():
            if not self._child.channel.receive_available():
                return self._died()
            try:
                while (reply := self._child.channel.next_message(REPLIES)) is not None:
                    if (result := self._received(reply)) is not None:
                        return result
            except ProtocolError as error:
                return self._failed(Outcome.CRASH, f"The worker sent {error}.")
        if time.monotonic() > self._deadline:
            return self._overdue()
        return None

    def wait(self, timeout: float | None = None) -> Result | None:
        """As `result`, waiting up to `timeout` seconds for it."""
        end = time.monotonic() + timeout if timeout is not None else float("inf")
        while True:
            result = self.result()
            left = min(end, self._deadline) - time.monotonic()
            if result is not None or time.monotonic() >= end:
                return result
            select.select([self], [], [], max(0.0, left) if left != float("inf") else None)

    def close(self) -> None:
        """Kill the process and everything that it started."""
        if not self._closed:
            self._child.kill()
        self._closed = True

    def _submit(self, request: Evaluate | FinalCheck | Fingerprint) -> None:
        if self._request is not None:
            raise RuntimeError("The worker is busy.")
        self._request = request
        if self._ready:
            self._send_request()

    def _send_request(self) -> None:
        if self._request is None:
            return
        self._deadline = time.monotonic() + self._limits.seconds
        # A process that died while idle is noticed when its silence is read.
        with contextlib.suppress(OSError):
            self._child.channel.send(self._request)

    def _open(self) -> None:
        self._ready = False
        self._deadline = time.monotonic() + self._limits.opening_seconds
        spec = self._spec
        folder = str(spec.task_folder.resolve())
        opening = Open(
            spec.kind,
            folder,
            spec.architecture,
            spec.seed,
            self._opener,
            self._limits.memory_bytes,
            spec.language,
        )
        with contextlib.suppress(OSError):
            self._child.channel.send(opening)

    def _replace(self) -> None:
        self._child.kill()
        self._child = child_process.start()
        self._open()

    def _received(self, reply: Reply) -> Result | None:
        match reply:
            case Ready():
                self._ready, self._failed_starts, self._deadline = True, 0, float("inf")
                self._send_request()
                return None
            case Evaluated(evaluation, leaving):
                return self._finished(evaluation, leaving=leaving)
            case Checked(checks, leaving):
                return self._finished(checks, leaving=leaving)
            case Fingerprinted(values):
                return self._finished(values, leaving=False)
            case Broken(message):
                raise DeviceError(message)

    def _finished(self, result: Result, *, leaving: bool) -> Result | None:
        if self._request is None or not _answers(result, self._request):
            return self._failed(Outcome.CRASH, "The worker answered what it wasn't asked.")
        self._request, self._deadline = None, float("inf")
        if leaving:
            self._replace()
        return result

    def _died(self) -> Result | None:
        how = self._child.ending()
        if not self._ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise DeviceError(
                    f"Worker processes don't start: the last one {how}.\n{self._child.last_words()}"
                )
        return self._failed(Outcome.CRASH, f"The process that judged the kernel {how}.")

    def _overdue(self) -> Result | None:
        if not self._ready:
            raise DeviceError(
                f"A worker process took more than {self._limits.opening_seconds:g} s to open its device."
            )
        return self._failed(
            Outcome.TIMEOUT, f"The evaluation took more than its limit of {self._limits.seconds:g} s."
        )

    def _failed(self, outcome: Outcome, message: str) -> Result | None:
        request, log, ready = self._request, self._child.last_words(), self._ready
        self._replace()
        if request is None or not ready:
            return None
        self._request = None
        match request:
            case Evaluate():
                seconds = {"evaluation": self._limits.seconds} if outcome is Outcome.TIMEOUT else {}
                return Evaluation(outcome, self._spec.source, message, log=log, stage_seconds=seconds)
            case FinalCheck():
                return (Check("", 0, passed=False, error=float("inf"), message=message),)
            case _:
                raise DeviceError(message)

    def _is_readable(self) -> bool:
        return bool(select.select([self], [], [], 0)[0])


def _answers(result: Result, request: Evaluate | FinalCheck | Fingerprint) -> bool:
    match request:
        case Evaluate():
            return isinstance(result, Evaluation)
        case FinalCheck():
            return isinstance(result, tuple)
        case _:
            return isinstance(result, dict)
