"""Stopping and ending whole sessions."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mctskernel.profiling.pytorch import sessions

SCRIPT = r"""
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


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_session_is_stopped_resumed_and_ended_with_children_of_other_groups() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pids = [int(process.stdout.readline()) for _ in range(2)]
            sessions.stop(process.pid)
            assert {state(pid) for pid in pids} == {"T"}
            sessions.resume(process.pid)
            assert {state(pid) for pid in pids} <= {"S", "R", "D"}
            sessions.end(process.pid)
            end = time.monotonic() + 5
            while {state(pid) for pid in pids} - {"Z", "X"} and time.monotonic() < end:
                time.sleep(0.005)
            assert {state(pid) for pid in pids} <= {"Z", "X"}
        finally:
            sessions.end(process.pid)
