"""What the process that forks others is told, and what it answers."""

from __future__ import annotations

import enum

import msgspec


class Role(enum.StrEnum):
    """What a forked process does."""

    HOST = "host"
    REFERENCE = "reference"


class Fork(msgspec.Struct, tag=True, frozen=True):
    """Start a process. Beside it: its socket, its lifeline, where its standard error goes. Answered by Forked."""

    role: Role
    scratch: str


class Look(msgspec.Struct, tag=True, frozen=True):
    """Say how a process ended, if it has; its number stays its own. Answered by Seen."""

    pid: int


class Reap(msgspec.Struct, tag=True, frozen=True):
    """Let go of a process that has ended. Answered by Seen, once for each process with what it ended with."""

    pid: int


class Forked(msgspec.Struct, tag=True, frozen=True):
    """A process was started, the leader of a session of its own."""

    pid: int


class Seen(msgspec.Struct, tag=True, frozen=True):
    """How a process ended, `exited with status 3`; empty while it runs."""

    ending: str


ORDERS: msgspec.msgpack.Decoder[Fork | Look | Reap] = msgspec.msgpack.Decoder(Fork | Look | Reap)
ANSWERS: msgspec.msgpack.Decoder[Forked | Seen] = msgspec.msgpack.Decoder(Forked | Seen)
