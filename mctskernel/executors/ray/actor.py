"""The process of the cluster that evaluates kernels: an executor of its own machine behind four calls.

Ray pickles what it carries, so it carries only MessagePack of the types below, checked on arrival.
"""

from __future__ import annotations

import importlib
import itertools
import queue
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import CounterSet, Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import TaskError
from mctskernel.executors import Opener
from mctskernel.profiling.architecture import FILE_SUFFIX
from mctskernel.profiling.processes.channel import Broken, decode_path
from mctskernel.profiling.processes.worker_process import Evaluated

CLOSING = "closing"  # Ray's concurrency group of the call that runs while others of the same actor do
CLOSE_SECONDS = 2.0  # how long `close` waits for the executor to end its processes
POLL_SECONDS = 0.01  # between two looks for new kernels while others are being evaluated
MAX_TASK_BYTES = 64 << 20  # of all files of a task together: every actor holds them in memory


class Opening(msgspec.Struct, frozen=True):
    """What an actor opens: a device, whose task folder is `files` by relative path, and how many workers.

    `opener` is `module:function`, an `Opener`. `description` is the content of the file that `spec.architecture` names,
    where it names one.
    """

    spec: DeviceSpec
    files: dict[str, bytes]
    opener: str
    workers: int = 1
    counters: CounterSet | None = None
    description: bytes = b""


class Evaluate(msgspec.Struct, frozen=True):
    """Evaluate a kernel; with a `baseline`, at the final validation."""

    kernel: Kernel
    baseline: Kernel | None = None


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The actor is open: the fingerprint of its device, and its warnings."""

    fingerprint: dict[str, str]
    notes: tuple[str, ...] = ()


Reply = Opened | Evaluated | Broken

_OPENINGS = msgspec.msgpack.Decoder(Opening, dec_hook=decode_path)
_REQUESTS = msgspec.msgpack.Decoder(Evaluate)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

encode = partial(msgspec.msgpack.encode, enc_hook=str)


def decode_reply(data: object) -> Reply:
    """Decode what an actor returned; anything malformed counts as Broken."""
    try:
        return _REPLIES.decode(data) if isinstance(data, bytes) else Broken("It sent no bytes.")
    except UNDECODABLE as error:
        return Broken(f"It sent a malformed message: {excerpt(error)}")


def pack(folder: Path) -> dict[str, bytes]:
    """The files of a task folder by relative path, without hidden ones and links to elsewhere. Raises TaskError."""
    home, files = folder.resolve(), {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith((".", "__pycache__")) for part in name.parts)
        if not hidden and path.is_file() and path.resolve().is_relative_to(home):
            files[name.as_posix()] = path.read_bytes()
    if sum(map(len, files.values())) > MAX_TASK_BYTES:
        limit = MAX_TASK_BYTES >> 20
        raise TaskError(f"{folder} has more than {limit} MiB of files, too many to send to a cluster.")
    return files


class Actor:
    """Evaluates several kernels at a time. `close` may run beside the other calls."""

    def __init__(self, opening: bytes) -> None:
        self._opening = _OPENINGS.decode(opening)
        self._work: queue.SimpleQueue[tuple[Evaluate, Future[Evaluation]] | None] = queue.SimpleQueue()
        self._ready: Future[Opened] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def open(self) -> bytes:
        """Return Opened once the executor is open, or Broken."""
        return _answer(self._ready.result)

    def evaluate(self, request: bytes) -> bytes:
        future: Future[Evaluation] = Future()
        self._work.put((_REQUESTS.decode(request), future))
        return _answer(lambda: Evaluated(future.result()))

    def close(self) -> None:
        """Stop whatever is being evaluated and remove the task's files from this machine."""
        self._work.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        """Own the executor, which belongs to one thread; Ray makes each call in another."""
        waiting: dict[int, Future[Evaluation]] = {}
        try:
            with tempfile.TemporaryDirectory(prefix="mctskernel-task-") as folder:
                spec = _unpack(self._opening, Path(folder))
                options = ExecutorOptions(counters=self._opening.counters)
                module, _, function = self._opening.opener.partition(":")
                opener: Opener = getattr(importlib.import_module(module), function)
                with opener(spec, self._opening.workers, options) as executor:
                    self._ready.set_result(Opened(executor.fingerprint(), executor.notes))
                    self._evaluate_all(executor, waiting)
        except Exception as error:  # noqa: BLE001 - passed on to every call, whatever it is
            if not self._ready.done():
                self._ready.set_exception(error)
            for future in waiting.values():
                future.set_exception(error)
            while (work := self._work.get()) is not None:
                work[1].set_exception(error)

    def _evaluate_all(self, executor: Executor, waiting: dict[int, Future[Evaluation]]) -> None:
        """Pass kernels to the executor and results back, until `close`. `waiting` has the results still to come."""
        tickets = itertools.count()
        while True:
            while not waiting or not self._work.empty():
                work = self._work.get()
                if work is None:
                    return
                request, future = work
                ticket = next(tickets)
                waiting[ticket] = future
                if request.baseline is None:
                    executor.submit(ticket, request.kernel)
                else:
                    future.set_result(executor.final_validation(request.kernel, request.baseline))
                    del waiting[ticket]
            for ticket, evaluation in executor.wait(POLL_SECONDS):
                waiting.pop(ticket).set_result(evaluation)


def _answer(reply: Callable[[], Reply]) -> bytes:
    try:
        return encode(reply())
    except (DeviceError, TaskError, OSError) as error:
        return encode(Broken(str(error)))


def _unpack(opening: Opening, folder: Path) -> DeviceSpec:
    """Write the task's files into a folder and return the device that the opening describes."""
    task = folder / "task"
    for name, data in opening.files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_bytes(data)
    spec = replace(opening.spec, task_folder=task)
    if not opening.description:
        return spec
    description = folder / f"gpu{FILE_SUFFIX}"
    description.write_bytes(opening.description)
    return replace(spec, architecture=str(description))
