"""What a session's process leaves behind: a client's code can start processes that leave its session, and end itself.

A server that adopts them (`PR_SET_CHILD_SUBREAPER`) finds them among its own children, where nothing else may be but
what it started itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError, prctl
from mctskernel.profiling.processes.child_process import ChildProcess, start

MAX_SWEEPS = 200
"""How often orphans are looked for that others have left while they were ended."""

_SET_CHILD_SUBREAPER = 36


class Nursery:
    """Starts the processes of sessions, and ends with each what it has left behind. Shared between threads.

    Until `adopt` is called orphans are left alone.
    """

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._adopts = False
        self._changing = threading.Lock()

    def adopt(self) -> None:
        """Take orphans in, for a process that starts no others than these; where the kernel lets nobody, do nothing."""
        with contextlib.suppress(RefusedByKernelError):
            prctl("adopting orphans", _SET_CHILD_SUBREAPER, 1)
            self._adopts = True

    def start(self, module: str, threads: int, within: Path) -> ChildProcess:
        """Start a process that runs a module, with a folder of its own within another."""
        with self._changing:
            child = start(module, threads=threads, within=within)
            self._own.add(child.pid)
        return child

    def end(self, child: ChildProcess) -> None:
        """End a process, its session, and what has left it."""
        child.kill()
        with self._changing:
            self._own.discard(child.pid)
        self._for_orphans(self._end_all)

    def bury(self) -> None:
        """Let those orphans go that have ended by themselves; the others may be at work."""
        self._for_orphans(self._bury_all)

    def _for_orphans(self, act: Callable[[], None]) -> None:
        # One that is being started isn't known as our own yet.
        with self._changing:
            if self._adopts:
                act()

    def _end_all(self) -> None:
        for _ in range(MAX_SWEEPS):
            orphans = self._orphans()
            if not orphans:
                return
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
                _bury(orphan)
            time.sleep(0.002)

    def _bury_all(self) -> None:
        for orphan in self._orphans():
            _bury(orphan)

    def _orphans(self) -> set[int]:
        return _children() - self._own


def _bury(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def _children() -> set[int]:
    """The processes whose parent is this one; none where the system has no /proc."""
    found, us = set(), os.getpid()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Behind the program's name, which may hold anything: state, parent.
            _, parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == us:
                found.add(int(process.name))
    return found
