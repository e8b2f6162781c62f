"""References that a language model wrote, run in a confined process: never in ours.

The process is confined as candidates are, before it gets the source: no network, no files to read or write, no other
processes, bounded memory. Arrays are in memory that both share. Its side is `main`, run as
`python -m mctskernel.profiling.sandboxed_reference SOCKET LIFELINE WINDOW`.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import os
import resource
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.dtypes import DTYPE_BYTES, numpy_dtype
from mctskernel.core.task import Array, TaskError
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement
from mctskernel.profiling.processes.channel import Broken, Ready, serve
from mctskernel.profiling.processes.child_process import LostError
from mctskernel.profiling.processes.conversation import Conversation
from mctskernel.profiling.processes.shared_window import SharedWindow

CALL_SECONDS = 300.0  # how long one call may take
CPU_SECONDS = 3600  # how much processor time the process may take in all, whatever becomes of this one
MAX_BYTES = 8 << 30  # of the arrays that a call takes and returns
MAX_SOURCE_CHARACTERS = 100_000
MAX_MESSAGE_CHARACTERS = 2000

REQUIRED = ("Landlock", "seccomp", "no new privileges", "size limits")
"""Mechanisms without which no such reference runs."""


class StoredArray(msgspec.Struct, frozen=True):
    """An array in shared memory."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class Start(msgspec.Struct, tag=True, frozen=True):
    """Confine yourself, run a source and find its `reference`. Answered by Ready, Failed or Broken (unconfined)."""

    source: str
    required: tuple[str, ...]
    memory_bytes: int
    cpu_seconds: int = CPU_SECONDS


class Call(msgspec.Struct, tag=True, frozen=True):
    """Call the function by keyword. Answered by Returned or Failed."""

    arrays: dict[str, StoredArray]
    numbers: dict[str, bool | int | float]


class Returned(msgspec.Struct, tag=True, frozen=True):
    """What the function returned: one array, or a tuple of them."""

    arrays: tuple[StoredArray, ...]
    is_tuple: bool


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The exception that the source or a call raised."""

    message: str


Reply = Ready | Returned | Failed | Broken

REQUESTS: msgspec.msgpack.Decoder[Start | Call] = msgspec.msgpack.Decoder(Start | Call)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def check_sandbox() -> None:
    """Raise TaskError where this machine has no sandbox for a reference that a model wrote."""
    SandboxedReference("def reference():\n    return 0.0\n")()


class SandboxedReference:
    """The function `reference` of a source that a language model wrote, to be called with arrays and numbers.

    Its process starts at once, since one that confines itself later can't start any, and is replaced after a call that
    ended it. Raises TaskError for a source without such a function; a call raises it for whatever goes wrong in the
    sandbox, and where there is no sandbox.
    """

    __name__ = "reference"

    def __init__(self, source: str) -> None:
        self.__signature__ = _signature(source)
        self._lock = threading.Lock()
        self._window = SharedWindow(nbytes=MAX_BYTES)
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        try:
            self._process = Conversation(
                "mctskernel.profiling.sandboxed_reference",
                "runs the reference",
                Start(source, REQUIRED, memory_bytes),
                REPLIES,
                _check_loaded,
                shared=(self._window.fd,),
                own_session=False,
            )
        except OSError as error:
            raise TaskError(f"The sandbox for the reference can't be started: {error}") from error
        weakref.finalize(self, _close, self._process, self._window)

    def __call__(self, **arguments: Any) -> object:
        with self._lock:
            try:
                return self._called(arguments)
            except (LostError, OSError, ValueError) as error:
                log = error.log[-500:] if isinstance(error, LostError) else ""
                raise TaskError(f"The reference's process was lost: {error} {log}".strip()) from error
            except DeviceError as error:
                raise TaskError(str(error)) from error
            finally:
                self._window.clear(discard=True)

    def _called(self, arguments: Mapping[str, Any]) -> object:
        arrays = {name: np.asarray(each) for name, each in arguments.items() if isinstance(each, np.ndarray)}
        numbers = {name: each for name, each in arguments.items() if name not in arrays}
        stored = {name: _stored(self._window, each) for name, each in arrays.items()}
        reply = self._process.ask(Call(stored, numbers), CALL_SECONDS)
        if isinstance(reply, Failed):
            raise TaskError(f"The reference failed: {reply.message}")
        if not isinstance(reply, Returned):
            raise self._process.unexpected()
        if sum(map(_nbytes, reply.arrays)) > MAX_BYTES:
            raise ValueError(f"it returned more than {MAX_BYTES >> 30} GiB.")
        found = tuple(_array_at(self._window, each).copy() for each in reply.arrays)
        return found if reply.is_tuple or len(found) != 1 else found[0]


def _close(process: Conversation[Reply], window: SharedWindow) -> None:
    # A confined worker may not signal what it started before; it ends with the worker's session.
    with contextlib.suppress(PermissionError):
        process.close()
    window.close()


def _check_loaded(reply: Reply) -> None:
    if isinstance(reply, Failed):
        raise TaskError(f"The reference can't be loaded: {reply.message}")


def _stored(window: SharedWindow, array: Array) -> StoredArray:
    """An array copied into shared memory. Raises ValueError for elements that can't travel."""
    if array.dtype.name not in DTYPE_BYTES:
        raise ValueError(f"an array of {array.dtype.name}")
    return StoredArray(array.dtype.name, array.shape, window.put(array))


def _nbytes(stored: StoredArray) -> int:
    if stored.dtype not in DTYPE_BYTES or any(extent < 0 for extent in stored.shape):
        raise ValueError(f"an array of {stored.dtype[:40]} with the shape {stored.shape[:8]}")
    return DTYPE_BYTES[stored.dtype] * math.prod(stored.shape)


def _array_at(window: SharedWindow, stored: StoredArray) -> Array:
    return window.array_at(stored.offset, numpy_dtype(stored.dtype), stored.shape)


def _signature(source: str) -> inspect.Signature:
    """The parameters of the function `reference`, without running anything."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise TaskError(f"The reference has more than {MAX_SOURCE_CHARACTERS} characters.")
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"The reference is not Python: {error}.") from error
    found = [each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == "reference"]
    if not found:
        raise TaskError("The reference defines no function called 'reference'.")
    given = found[-1].args
    without_default = len(given.args) - len(given.defaults)
    return inspect.Signature(
        [
            inspect.Parameter(
                each.arg,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if number < without_default else None,
            )
            for number, each in enumerate(given.args)
        ]
    )


def main() -> None:
    """Answer until the parent hangs up."""
    window = SharedWindow(int(sys.argv[3]))
    reference: Callable[..., Any] | None = None

    def answer(request: Start | Call) -> tuple[Reply, bool]:
        nonlocal reference
        try:
            if isinstance(request, Call):
                return _returned(window, reference, request), False
            if missing := _missing(request):
                return Broken(
                    "A reference that a language model wrote runs in a sandbox only, and this machine has none: "
                    f"{', '.join(missing)} can't be used. `mctskernel doctor` says what would help."
                ), True
            names: dict[str, Any] = {"__name__": "reference"}
            exec(compile(request.source, "reference.py", "exec"), names)  # noqa: S102 - this process is the sandbox for it
            reference = names["reference"]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model wrote what runs here
            return Failed(f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]), False
        return Ready(), False

    serve(REQUESTS, answer)


def _missing(request: Start) -> list[str]:
    """Confine this process: it can compute, but write no file and start no process. Returns what isn't in force."""
    resource.setrlimit(resource.RLIMIT_CPU, (request.cpu_seconds, request.cpu_seconds))
    found = confine(Confinement(Path.cwd(), memory_bytes=request.memory_bytes, file_bytes=0))
    in_force = {each.name for each in found if each.in_force}
    return [name for name in request.required if name not in in_force]


def _returned(window: SharedWindow, reference: Callable[..., Any] | None, request: Call) -> Returned:
    if reference is None:
        raise ValueError("nothing is loaded")
    window.clear()
    for each in request.arrays.values():
        window.reserve(_nbytes(each))
    arrays = {name: _array_at(window, each) for name, each in request.arrays.items()}
    with np.errstate(all="ignore"):
        result = reference(**arrays, **request.numbers)
    returned = [np.asarray(each) for each in (result if isinstance(result, tuple) else (result,))]
    return Returned(tuple(_stored(window, each) for each in returned), isinstance(result, tuple))


if __name__ == "__main__":
    main()
