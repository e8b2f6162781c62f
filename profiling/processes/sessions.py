"""All the processes of a session, those that left its process group included: stopped, resumed, ended, their time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

SETTLING_SECONDS = 1.0
"""How long a session is searched for processes that were started while it was being stopped."""

_STOPPED = frozenset("Tt")
_DEAD = frozenset("ZX")


def stop_session(leader: int) -> None:
    """Stop every process of a session until `resume_session`."""
    _signal_all(leader, signal.SIGSTOP, _STOPPED | _DEAD)


def resume_session(leader: int) -> None:
    """Let every process of a session go on."""
    for member, _ in _members(leader):
        _signal(member, signal.SIGCONT)


def end_session(leader: int) -> None:
    """Kill a leader, not yet reaped, and all of its session or group; a confined process can't leave its session."""
    _signal_all(leader, signal.SIGKILL, _DEAD)


def processor_seconds(leader: int) -> float:
    """Processor time that the processes of a session have taken, with those that ended and were waited for."""
    ticks = 0
    for member, _ in _members(leader):
        with contextlib.suppress(OSError):
            # Behind the program's name, which may hold anything: utime, stime, cutime and cstime of proc_pid_stat(5).
            fields = Path("/proc", str(member), "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _signal_all(leader: int, number: signal.Signals, settled: frozenset[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
    end = time.monotonic() + SETTLING_SECONDS
    while time.monotonic() < end:
        left = [member for member, states in _members(leader) if not states <= settled]
        if not left:
            return
        for member in left:
            _signal(member, number)
        time.sleep(0.0001)


def _members(session: int) -> list[tuple[int, frozenset[str]]]:
    """A session's processes with the states of all threads (the first may have ended); none without /proc."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):  # noqa: PTH208 - called around every call that is timed
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.getsid(int(entry)) == session:
                    states = frozenset(_state(task) for task in Path("/proc", entry, "task").iterdir())
                    found.append((int(entry), states))
    return found


def _state(task: Path) -> str:
    try:
        # Behind the program's name, which may hold anything.
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _signal(member: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(member, number)
