"""The child's side of a child process: it answers one request after another until its parent hangs up."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from mctskernel.profiling.processes.channel import Channel, Message

MAX_FILE_BYTES = 1 << 30

Answer = Callable[[Message], tuple[msgspec.Struct, bool]]
"""Gives the reply to a request, and whether the process must end after sending it."""


def serve(decoder: msgspec.msgpack.Decoder[Message], answer: Answer[Message]) -> None:
    """Answer requests from the socket named on the command line: `MODULE SOCKET LIFELINE [SHARED...]`."""
    connection, lifeline = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(lifeline)
    channel = Channel(socket.socket(fileno=connection))
    while (request := _next_request(channel, decoder)) is not None:
        reply, leaving = answer(request)
        channel.send(reply)
        if leaving:
            # No tidying up: what a broken CUDA context holds can't be given back, and trying may hang.
            os._exit(0)


def die_with_parent(lifeline: int) -> None:
    """End this process as soon as the other end of the pipe `lifeline` is closed, whatever it is doing.

    The kernel sends SIGIO, whose default action needs no Python to run: a thread that watches would wait for
    the interpreter's lock, and PR_SET_PDEATHSIG fires when the parent's *thread* ends.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    closed, _, _ = select.select([lifeline], [], [], 0)
    if closed:
        os._exit(1)


def lower_limits(memory_bytes: int) -> None:
    """Lower this process's limits for good: `memory_bytes` of memory of its own, no large files, no core dumps."""
    # Data, not address space: a CUDA context reserves far more addresses than it uses memory.
    for limit, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowest, lowest))


def _next_request(channel: Channel, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
    while (request := channel.next_message(decoder)) is None:
        if not channel.receive_available():
            return None
    return request
