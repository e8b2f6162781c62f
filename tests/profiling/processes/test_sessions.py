"""Stopping, resuming and ending whole sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mctskernel.profiling.processes.sessions import end_session, resume_session, stop_session
from tests.processes import state, wait_for

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
