"""Stopping whole sessions, and messages from a process that sends what it likes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mctskernel.profiling.processes.channel import ProtocolError
from mctskernel.profiling.pytorch.processes import end_session, resume_session, stop_session
from mctskernel.profiling.pytorch.protocol import MAX_PACKET_BYTES, REPLIES, Failed, Ready, receive, send

Pair = tuple[socket.socket, socket.socket]

NEEDS_PROC = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

OTHER_GROUP = r"""
import os, time
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    # An exit that orphans a group with stopped members ends them by SIGHUP.
    while os.getppid() == parent:
        time.sleep(0.001)
os.write(1, f"{os.getpid()}\n".encode())
while True:
    time.sleep(0.001)
"""
FIRST_THREAD_ENDED = r"""
import ctypes, os, threading, time
if os.fork():
    os.write(1, f"{os.getpid()}\n".encode())
else:
    def work():
        while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        os.write(1, f"{os.getpid()}\n".encode())
        time.sleep(1000)
    threading.Thread(target=work).start()
    ctypes.CDLL(None).syscall(60, 0)  # ends this thread alone
time.sleep(1000)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_gone(pid: int) -> bool:
    return state(pid) in "ZX" and not any(
        each.read_text().rpartition(")")[2].split()[0] not in "ZX"
        for each in Path(f"/proc/{pid}/task").glob("*/stat")
    )


@NEEDS_PROC
def test_a_session_is_stopped_resumed_and_ended_with_processes_of_other_groups() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_GROUP], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pids = [int(process.stdout.readline()) for _ in range(2)]
            stop_session(process.pid)
            assert {state(pid) for pid in pids} == {"T"}
            resume_session(process.pid)
            assert {state(pid) for pid in pids} <= {"S", "R", "D"}
        finally:
            end_session(process.pid)
        wait_for(lambda: all(map(is_gone, pids)))


@NEEDS_PROC
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call is x86-64's")
def test_a_process_whose_first_thread_has_ended_is_ended_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDED], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pids = [int(process.stdout.readline()) for _ in range(2)]
        finally:
            end_session(process.pid)
        wait_for(lambda: all(map(is_gone, pids)))


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
    theirs.close()
    assert receive(ours, REPLIES) is None


@pytest.mark.parametrize(
    ("packet", "descriptors"),
    [
        (b"\xc1", 2),
        (b"", 2),
        (b"x" * (MAX_PACKET_BYTES + 1), 2),
        (msgspec.msgpack.encode({"type": "Evaluated"}), 2),
        (b"\x91" * 100_000, 2),
        (b"\x81\xa4type\xa5Rea\x91dy", 2),
        (msgspec.msgpack.encode(Ready()), 50),
    ],
    ids=["garbage", "empty", "too large", "another type", "too deep", "no UTF-8", "many descriptors"],
)
def test_an_invalid_message_is_refused_and_its_descriptors_closed(
    pair: Pair, packet: bytes, descriptors: int
) -> None:
    ours, theirs = pair
    before = open_descriptors()
    socket.send_fds(theirs, [packet], [0] * descriptors)
    if packet:
        with pytest.raises(ProtocolError):
            receive(ours, REPLIES)
    else:
        assert receive(ours, REPLIES) is None
    assert open_descriptors() == before
