"""One side of a conversation with another process: MessagePack behind a length, on one socket.

Each side decodes into types that it names, so that a process that a candidate has subverted can send nothing but
well-formed values of bounded size.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

import msgspec

from mctskernel.core.documents import UNDECODABLE

MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<Q")

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

    def has_spoken(self) -> bool:
        """Whether the other side has said anything that `next_message` hasn't given; hanging up says nothing."""
        if self._buffer:
            return True
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except (BlockingIOError, ConnectionError):
            return False

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
        except UNDECODABLE as error:
            raise ProtocolError(f"a malformed message: {error}") from error

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
