"""Messages with descriptors, from a side that sends what it likes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from mctskernel.profiling.processes.channel import ProtocolError
from mctskernel.profiling.pytorch.protocol import MAX_PACKET_BYTES, REPLIES, Failed, Ready, receive, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a Path would open more


def test_a_message_arrives_with_its_descriptors(pair: Pair) -> None:
    ours, theirs = pair
    reading, writing = os.pipe()
    send(theirs, Failed("so", "and so"), (writing,))
    received = receive(ours, REPLIES)
    assert received is not None
    message, descriptors = received
    assert message == Failed("so", "and so")
    os.write(descriptors[0], b"x")
    assert os.read(reading, 1) == b"x"
    for descriptor in (reading, writing, *descriptors):
        os.close(descriptor)


@pytest.mark.parametrize(
    "packet",
    [
        b"\xc1",
        b"",
        b"x" * (MAX_PACKET_BYTES + 1),
        msgspec.msgpack.encode({"type": "Evaluated"}),
        b"\x91" * 100_000,
        b"\x81\xa4type\xa5Rea\x91dy",
    ],
    ids=["garbage", "empty", "too large", "of another type", "too deep", "no UTF-8"],
)
def test_what_is_no_message_is_refused_and_its_descriptors_closed(pair: Pair, packet: bytes) -> None:
    ours, theirs = pair
    before = open_descriptors()
    socket.send_fds(theirs, [packet], [0, 0])
    if packet:
        with pytest.raises(ProtocolError):
            receive(ours, REPLIES)
    else:
        assert receive(ours, REPLIES) is None
    assert open_descriptors() == before


def test_more_descriptors_than_any_message_has_are_refused(pair: Pair) -> None:
    ours, theirs = pair
    before = open_descriptors()
    socket.send_fds(theirs, [msgspec.msgpack.encode(Ready())], [0] * 50)
    with pytest.raises(ProtocolError, match="too large"):
        receive(ours, REPLIES)
    assert open_descriptors() == before


def test_a_side_that_has_hung_up_is_gone(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    assert receive(ours, REPLIES) is None
