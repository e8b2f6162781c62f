"""Messages between two processes: MessagePack behind a length, on one socket.

Each side decodes into types that it names, so that a process that a candidate has subverted can send nothing but
well-formed values of bounded size. `serve` is the child's side; every kind of child may answer `Ready` or `Broken`.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mctskernel.core.documents import UNDECODABLE

MAX_MESSAGE_BYTES = 64 << 20
_LENGTH = struct.Struct("<Q")

Message = TypeVar("Message")

Answer = Callable[[Message], tuple[msgspec.Struct, bool]]
"""Gives the reply to a request, and whether the process must end after sending it."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """It was done; there is nothing to say."""


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The machine or the task can't be used; the process ends now."""

    message: str


class ProtocolError(RuntimeError):
    """The other side sent something that is not a valid message."""


class Channel:
    """One end of the socket. Up to `max_descriptors` that come beside messages are kept in `descriptors`."""

    def __init__(self, connection: socket.socket, max_descriptors: int = 0) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._max_descriptors = max_descriptors
        self.descriptors: list[int] = []

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message, blocking until it is sent. Raises OSError when the other side is gone."""
        payload = msgspec.msgpack.encode(message, enc_hook=os.fspath)
        packet = _LENGTH.pack(len(payload)) + payload
        sent = socket.send_fds(self._socket, [packet], descriptors) if descriptors else 0
        self._socket.sendall(packet[sent:])

    def has_unread(self) -> bool:
        """Whether bytes have arrived that `next_message` hasn't returned."""
        if self._buffer:
            return True
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except (BlockingIOError, ConnectionError):
            return False

    def receive_available(self) -> bool:
        """Read what has arrived, blocking if nothing has; False when the other side is gone."""
        try:
            if self._max_descriptors:
                arrived, found, _, _ = socket.recv_fds(self._socket, 1 << 20, self._max_descriptors)
                self.descriptors += found
            else:
                arrived = self._socket.recv(1 << 20)
        except ConnectionError:
            return False
        self._buffer += arrived
        return bool(arrived)

    def next_message(self, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
        """The next complete message, if there is one. Raises ProtocolError for invalid bytes."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes, over the limit of {MAX_MESSAGE_BYTES}")
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
        """Close the socket."""
        self._socket.close()


def decode_path(kind: type, value: Any) -> Any:
    """The `dec_hook` of decoders whose messages hold paths."""
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"Messages can't hold a {kind.__name__}.")


def serve(decoder: msgspec.msgpack.Decoder[Message], answer: Answer[Message]) -> None:
    """Answer requests in a child process until the parent is gone: `MODULE SOCKET LIFELINE [SHARED...]`."""
    die_with_parent(int(sys.argv[2]))
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    for request in requests(channel, decoder):
        reply, leaving = answer(request)
        channel.send(reply)
        if leaving:
            # No clean-up: what a broken CUDA context holds can't be freed, and trying may hang.
            os._exit(0)


def requests(channel: Channel, decoder: msgspec.msgpack.Decoder[Message]) -> Iterator[Message]:
    """The messages of the other side until it is gone."""
    while True:
        while (request := channel.next_message(decoder)) is None:
            if not channel.receive_available():
                return
        yield request


def die_with_parent(lifeline: int) -> None:
    """End this process, and the group that it leads, as soon as the other end of the pipe `lifeline` is closed.

    The kernel sends SIGIO, whose default action needs no Python to run: a thread that watches would wait for
    the interpreter's lock, and PR_SET_PDEATHSIG fires when the parent's *thread* ends.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    leads = os.getpgrp() == os.getpid()
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    closed, _, _ = select.select([lifeline], [], [], 0)
    if closed:
        os._exit(1)
