"""What a worker and its parent say to each other: MessagePack behind a length, on one socket.

Each side decodes into the types below, so that a worker that a candidate has subverted can send nothing but
well-formed values of bounded size.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Check, Evaluation
from mctskernel.core.kernel import Kernel, Language

MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<Q")


class Open(msgspec.Struct, tag=True, frozen=True):
    """The first request: open a device. `opener` is `module:function`, a function of a DeviceSpec."""

    kind: str
    task_folder: str
    architecture: str
    seed: int
    opener: str
    memory_bytes: int
    language: Language = Language.CUDA

    @property
    def spec(self) -> DeviceSpec:
        """The device to open."""
        return DeviceSpec(self.kind, Path(self.task_folder), self.architecture, self.seed, self.language)


class Evaluate(msgspec.Struct, tag=True, frozen=True):
    """Evaluate a kernel; answered by Evaluated."""

    kernel: Kernel


class FinalCheck(msgspec.Struct, tag=True, frozen=True):
    """Verify a kernel on the held-out shapes; answered by Checked."""

    kernel: Kernel


class Fingerprint(msgspec.Struct, tag=True, frozen=True):
    """Answered by Fingerprinted."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The device is open."""


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """An evaluation. `leaving` says that the worker ends now, because its device is lost."""

    evaluation: Evaluation
    leaving: bool = False


class Checked(msgspec.Struct, tag=True, frozen=True):
    """The checks on the held-out shapes."""

    checks: tuple[Check, ...]
    leaving: bool = False


class Fingerprinted(msgspec.Struct, tag=True, frozen=True):
    """The device's fingerprint."""

    values: dict[str, str]


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The machine or the task can't be used; the worker ends now."""

    message: str


Request = Open | Evaluate | FinalCheck | Fingerprint
Reply = Ready | Evaluated | Checked | Fingerprinted | Broken

REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

Message = TypeVar("Message")


class ProtocolError(RuntimeError):
    """The other side sent what is no message."""


class Channel:
    """One side of the conversation."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Send one message, waiting until it is on its way. Raises OSError when nobody listens."""
        payload = msgspec.msgpack.encode(message)
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive_available(self) -> bool:
        """Read what has arrived, waiting if nothing has; False when the other side is gone."""
        try:
            arrived = self._socket.recv(1 << 20)
        except ConnectionError:
            return False
        self._buffer += arrived
        return bool(arrived)

    def next_message(self, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
        """The next message that has arrived whole, if any. Raises ProtocolError for anything else."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            return decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"a malformed message: {error}") from error

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
