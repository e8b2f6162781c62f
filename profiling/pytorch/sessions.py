"""Signals to a whole session: a process that leads one, and whatever it has started, in groups of their own too."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

SETTLING_SECONDS = 1.0
"""How long a session is looked through for processes that were started while it was being stopped."""

PAUSE_SECONDS = 0.0001

_STOPPED = frozenset("Tt")
_DEAD = frozenset("ZX")


def stop(leader: int) -> None:
    """Stop every process of a session until `resume`."""
    _sweep(leader, signal.SIGSTOP, _STOPPED | _DEAD)


def resume(leader: int) -> None:
    """Let every process of a session go on."""
    for member, _ in _members(leader):
        _signal(member, signal.SIGCONT)


def end(leader: int) -> None:
    """Kill every process of a session. Its leader must not have been reaped: its number could be another's."""
    _sweep(leader, signal.SIGKILL, _DEAD)


def _sweep(leader: int, number: signal.Signals, settled: frozenset[str]) -> None:
    _signal(leader, number)
    end = time.monotonic() + SETTLING_SECONDS
    while time.monotonic() < end:
        left = [member for member, state in _members(leader) if state not in settled]
        if not left:
            return
        for member in left:
            _signal(member, number)
        time.sleep(PAUSE_SECONDS)


def _members(session: int) -> list[tuple[int, str]]:
    """The processes of a session with their states."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - called around every call that is timed
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.getsid(int(entry)) == session:
                # Behind the program's name, which may hold anything.
                found.append(
                    (int(entry), Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[0])
                )
    return found


def _signal(member: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(member, number)
