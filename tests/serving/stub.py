"""An executor whose kernels say in their source what becomes of them: `sleep 0.1`, `die`, `break`, ..."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import TaskError


class StubExecutor:
    """Judges one kernel after the other, up to `capacity` queued; says how often each text was judged by it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.remarks = ("A stub judged.",)
        self._waiting: list[tuple[int, Kernel]] = []
        self._judged: dict[str, int] = {}

    def submit(self, ticket: int, kernel: Kernel) -> None:
        self._waiting.append((ticket, kernel))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        ticket, kernel = self._waiting.pop(0)
        return [(ticket, self._judge(kernel))]

    def last_gate(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        self._judge(kernel)
        return Evaluation(Outcome.OK, Source.MEASURED, f"gate: {kernel.source} beside {baseline.source}")

    def fingerprint(self) -> dict[str, str]:
        return {"device": "stub"}

    def close(self) -> None:
        pass

    def _judge(self, kernel: Kernel) -> Evaluation:
        word, _, argument = kernel.source.partition(" ")
        match word:
            case "sleep":
                time.sleep(float(argument.split()[0]))
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "break":
                raise DeviceError("The stub is broken.")
            case "inf":
                return Evaluation(Outcome.OK, Source.MEASURED, counters={"x": float("inf")})
            case "environment":
                return Evaluation(
                    Outcome.OK, Source.MEASURED, "\n".join(f"{k}={v}" for k, v in os.environ.items())
                )
            case "name":
                return Evaluation(Outcome.OK, Source.MEASURED, _name_thread())
            case "read":
                return Evaluation(Outcome.OK, Source.MEASURED, _read(Path(argument)))
            case "list":
                return Evaluation(Outcome.OK, Source.MEASURED, _list(Path(argument)))
            case "long":
                return Evaluation(Outcome.OK, Source.MEASURED, log="x" * int(argument))
        self._judged[kernel.source] = count = self._judged.get(kernel.source, 0) + 1
        return Evaluation(Outcome.OK, Source.MEASURED, f"judged {count}", stage_seconds={"stub": 0.0})


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        return type(error).__name__


def _list(folder: Path) -> str:
    try:
        return " ".join(sorted(path.name for path in folder.iterdir()))
    except OSError as error:
        return type(error).__name__


def _name_thread() -> str:
    try:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("named")
    except OSError as error:
        return type(error).__name__
    return "named"


@contextmanager
def open_stub(spec: DeviceSpec, workers: int, options: ExecutorOptions) -> Iterator[StubExecutor]:
    """Opens as the task's file `stub` says."""
    words = (spec.task_folder / "stub").read_text()
    if words == "bad task":
        raise TaskError("The stub can't use this task.")
    if words == "bad machine":
        raise DeviceError("The stub has no machine.")
    if words == "die":
        os._exit(3)
    if words == "be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if words == "have a defect":
        raise RuntimeError("No \x1b[31msuch thing.")
    yield StubExecutor(0 if words == "be full" else workers)
