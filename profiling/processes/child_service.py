"""The child's side of a child process: it answers one request after another until its parent hangs up."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from mctskernel.profiling.processes.channel import Channel, Message

Answer = Callable[[Message], tuple[msgspec.Struct, bool]]
"""Gives the reply to a request, and whether the process must end after sending it."""


def serve(decoder: msgspec.msgpack.Decoder[Message], answer: Answer[Message]) -> None:
    """Answer requests from the socket named on the command line: `MODULE SOCKET LIFELINE [SHARED...]`."""
    connection, lifeline = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(lifeline)
    channel = Channel(socket.socket(fileno=connection))
    while (request := next_request(channel, decoder)) is not None:
        reply, leaving = answer(request)
        channel.send(reply)
        if leaving:
            # No tidying up: what a broken CUDA context holds can't be given back, and trying may hang.
            os._exit(0)


def next_request(channel: Channel, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
    """Wait for a request; None when the parent has hung up."""
    while (request := channel.next_message(decoder)) is None:
        if not channel.receive_available():
            return None
    return request


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
