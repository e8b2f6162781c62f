"""References that a language model wrote, run in a confined process: never in ours.

The process is confined as candidates are, before it gets the source: no network, no files to read or write, no other
processes, bounded memory. Arrays go there and back over a typed channel. Its side is `main`: run as
`python -m mctskernel.profiling.sandboxed_reference SOCKET LIFELINE`, it confines itself, then loads and calls it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import resource
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.dtypes import DTYPE_BYTES, numpy_dtype
from mctskernel.core.task import Array, TaskError
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement
from mctskernel.profiling.processes import child_process
from mctskernel.profiling.processes.channel import Channel, die_with_parent, requests
from mctskernel.profiling.processes.child_process import LostError

START_SECONDS = 60.0
CALL_SECONDS = 300.0
"""How long one call may take."""

CPU_SECONDS = 3600
"""How much processor time the process may take in all, whatever becomes of this one."""

MAX_RETURNED_BYTES = 8 << 30
MAX_SOURCE_CHARACTERS = 100_000
PIECE_BYTES = 16 << 20

REQUIRED = ("Landlock", "seccomp", "no new privileges", "size limits")
"""Mechanisms without which no such reference runs."""


class ArrayHeader(msgspec.Struct, frozen=True):
    """An array whose bytes follow in `Piece` messages."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        if self.dtype not in DTYPE_BYTES or any(extent < 0 for extent in self.shape):
            raise ValueError(f"an array of {self.dtype[:40]} with the shape {self.shape[:8]}")
        return DTYPE_BYTES[self.dtype] * int(np.prod(self.shape, dtype=object))


class Piece(msgspec.Struct, tag=True, frozen=True):
    """Bytes of the arrays that were announced, in their order."""

    data: bytes


class Confine(msgspec.Struct, tag=True, frozen=True):
    """The first request. Answered by Confined."""

    memory_bytes: int
    cpu_seconds: int


class Load(msgspec.Struct, tag=True, frozen=True):
    """Run a source and find its function `reference`. Answered by Loaded or Failed."""

    source: str


class Call(msgspec.Struct, tag=True, frozen=True):
    """Call the function by keyword; the arrays follow. Answered by Returned and its arrays, or by Failed."""

    arrays: dict[str, ArrayHeader]
    numbers: dict[str, bool | int | float]


class Confined(msgspec.Struct, tag=True, frozen=True):
    """The mechanisms that are in force."""

    mechanisms: tuple[str, ...]


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The function is there."""


class Returned(msgspec.Struct, tag=True, frozen=True):
    """What the function returned: one array, or a tuple of them."""

    arrays: tuple[ArrayHeader, ...]
    is_tuple: bool


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The exception that the source or a call raised."""

    message: str


REQUESTS: msgspec.msgpack.Decoder[Confine | Load | Call | Piece] = msgspec.msgpack.Decoder(
    Confine | Load | Call | Piece
)
REPLIES: msgspec.msgpack.Decoder[Confined | Loaded | Returned | Failed | Piece] = msgspec.msgpack.Decoder(
    Confined | Loaded | Returned | Failed | Piece
)


def confinement(scratch: Path, memory_bytes: int) -> Confinement:
    """What a reference may do: compute. It can't write a file or start a process."""
    return Confinement(scratch=scratch, memory_bytes=memory_bytes, file_bytes=0)


def memory_limit() -> int:
    """Bytes of memory that a reference may take: half of the machine's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check_sandbox() -> None:
    """Raise TaskError where this machine has no sandbox for a reference that a model wrote."""
    child = _start()
    try:
        _check_confined(child)
    finally:
        _kill(child)


class SandboxedReference:
    """The function `reference` of a source that a language model wrote, to be called with arrays and numbers.

    Its process starts at once, since one that confines itself later can't start any, and is replaced after a call that
    ended it. Raises TaskError for a source without such a function; a call raises it for whatever goes wrong in the
    sandbox, and where there is no sandbox.
    """

    __name__ = "reference"

    def __init__(self, source: str) -> None:
        self.__signature__ = _signature(source)
        self._source = source
        self._lock = threading.Lock()
        self._renew()

    def __call__(self, **arguments: object) -> object:
        """What the reference returns for these inputs."""
        with self._lock:
            try:
                if not self._loaded:
                    self._load()
                return _called(self._child, arguments)
            except (LostError, OSError, ValueError) as error:
                log = error.log[-500:] if isinstance(error, LostError) else ""
                self._end()
                self._renew()
                raise TaskError(f"The reference's process was lost: {error} {log}".strip()) from error

    def _renew(self) -> None:
        self._child = child = _start()
        self._end = weakref.finalize(self, _kill, child)
        self._loaded = False

    def _load(self) -> None:
        _check_confined(self._child)
        self._child.channel.send(Load(self._source))
        reply = self._child.receive(REPLIES, CALL_SECONDS)
        if isinstance(reply, Failed):
            self._end()
            self._renew()
            raise TaskError(f"The reference can't be loaded: {reply.message}")
        self._loaded = True


def send_arrays(channel: Channel, arrays: list[Array]) -> None:
    """Send the bytes of arrays that were announced."""
    for array in arrays:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, content.nbytes, PIECE_BYTES):
            channel.send(Piece(content[start : start + PIECE_BYTES].tobytes()))


def collect_arrays(headers: list[ArrayHeader], pieces: Iterator[Any]) -> list[Array]:
    """The arrays of headers from the messages that follow them. Raises ValueError for others than announced."""
    arrays = []
    for header in headers:
        content = bytearray()
        while len(content) < header.nbytes:
            piece = next(pieces)
            if not isinstance(piece, Piece) or not piece.data:
                raise ValueError("another message than the bytes that were announced")
            content += piece.data
        if len(content) > header.nbytes:
            raise ValueError("more bytes than were announced")
        arrays.append(np.frombuffer(content, np.uint8).view(numpy_dtype(header.dtype)).reshape(header.shape))
    return arrays


def header_of(array: Array) -> ArrayHeader:
    """The header of an array. Raises ValueError for elements that can't travel."""
    if array.dtype.name not in DTYPE_BYTES:
        raise ValueError(f"an array of {array.dtype.name}")
    return ArrayHeader(array.dtype.name, array.shape)


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


def _start() -> child_process.ChildProcess:
    """A process that confines itself and has seen nothing yet. Raises TaskError."""
    memory_bytes = memory_limit()
    try:
        child = child_process.start(
            "mctskernel.profiling.sandboxed_reference",
            "runs the reference",
            own_session=False,
        )
        child.channel.send(Confine(memory_bytes, CPU_SECONDS))
    except OSError as error:
        raise TaskError(f"The sandbox for the reference can't be started: {error}") from error
    return child


def _check_confined(child: child_process.ChildProcess) -> None:
    """Wait until a process is confined. Raises TaskError where a mechanism is missing."""
    reply = child.receive(REPLIES, START_SECONDS)
    in_force = reply.mechanisms if isinstance(reply, Confined) else ()
    missing = [name for name in REQUIRED if name not in in_force]
    if missing:
        raise TaskError(
            f"A reference that a language model wrote runs in a sandbox only, and this machine has none: "
            f"{', '.join(missing)} can't be used. `mctskernel doctor` says what would help."
        )


def _called(child: child_process.ChildProcess, arguments: dict[str, object]) -> object:
    arrays = {name: np.asarray(each) for name, each in arguments.items() if isinstance(each, np.ndarray)}
    numbers: dict[str, Any] = {name: each for name, each in arguments.items() if name not in arrays}
    deadline = time.monotonic() + CALL_SECONDS
    child.channel.send(Call({name: header_of(each) for name, each in arrays.items()}, numbers))
    send_arrays(child.channel, list(arrays.values()))
    reply = child.receive(REPLIES, CALL_SECONDS)
    if isinstance(reply, Failed):
        raise TaskError(f"The reference failed: {reply.message}")
    if not isinstance(reply, Returned):
        raise ValueError("it answered what it wasn't asked.")
    if sum(header.nbytes for header in reply.arrays) > MAX_RETURNED_BYTES:
        raise ValueError(f"it returned more than {MAX_RETURNED_BYTES >> 30} GiB.")

    def pieces() -> Iterator[Any]:
        while True:
            yield child.receive(REPLIES, deadline - time.monotonic())

    found = collect_arrays(list(reply.arrays), pieces())
    return tuple(found) if reply.is_tuple or len(found) != 1 else found[0]


def _kill(child: child_process.ChildProcess) -> None:
    # A confined worker may not signal what it started before; it ends with the worker's session.
    with contextlib.suppress(PermissionError):
        child.kill()


MAX_MESSAGE_CHARACTERS = 2000


def main() -> None:
    """Answer until the parent hangs up."""
    die_with_parent(int(sys.argv[2]))
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    messages = requests(channel, REQUESTS)
    reference: Callable[..., Any] | None = None
    for request in messages:
        match request:
            case Confine():
                channel.send(_confined(request))
            case Load(source):
                try:
                    reference = _loaded(source)
                    channel.send(Loaded())
                except (Exception, SystemExit) as error:  # noqa: BLE001 - a model wrote what runs here
                    channel.send(_failure(error))
            case Call():
                _call(channel, messages, reference, request)
            case _:
                return


def _confined(request: Confine) -> Confined:
    resource.setrlimit(resource.RLIMIT_CPU, (request.cpu_seconds, request.cpu_seconds))
    found = confine(confinement(Path.cwd(), request.memory_bytes))
    return Confined(tuple(each.name for each in found if each.in_force))


def _loaded(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "reference"}
    exec(compile(source, "reference.py", "exec"), names)  # noqa: S102 - this process is the sandbox for it
    found: Callable[..., Any] = names["reference"]
    return found


def _call(
    channel: Channel, messages: Iterator[Any], reference: Callable[..., Any] | None, request: Call
) -> None:
    arrays = collect_arrays(list(request.arrays.values()), messages)
    try:
        if reference is None:
            raise ValueError("nothing is loaded")
        with np.errstate(all="ignore"):
            result = reference(**dict(zip(request.arrays, arrays, strict=True)), **request.numbers)
        returned = [np.asarray(each) for each in (result if isinstance(result, tuple) else (result,))]
        reply = Returned(tuple(map(header_of, returned)), isinstance(result, tuple))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a model wrote what runs here
        channel.send(_failure(error))
        return
    channel.send(reply)
    send_arrays(channel, returned)


def _failure(error: BaseException) -> Failed:
    return Failed(f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS])


if __name__ == "__main__":
    main()
