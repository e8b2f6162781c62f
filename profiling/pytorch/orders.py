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


class Reap(msgspec.Struct, tag=True, frozen=True):
    """Say how a process ended, if it has. Answered by Reaped."""

    pid: int


class Forked(msgspec.Struct, tag=True, frozen=True):
    """A process was started, the leader of a session of its own."""

    pid: int


class Reaped(msgspec.Struct, tag=True, frozen=True):
    """How a process ended, `exited with status 3`; empty while it runs."""

    ending: str


ORDERS: msgspec.msgpack.Decoder[Fork | Reap] = msgspec.msgpack.Decoder(Fork | Reap)
ANSWERS: msgspec.msgpack.Decoder[Forked | Reaped] = msgspec.msgpack.Decoder(Forked | Reaped)
