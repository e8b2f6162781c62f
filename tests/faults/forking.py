"""Starts the other scripts of this folder without Python's start: `forking.py SOCKET`, a descriptor.

A request is a line of JSON, with three descriptors beside it for what
the search reads and writes: `{"words": [...], "variables": {...}}`. Told back are `started PID` and `ended PID STATUS`.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE), str(HERE.parent / "executors"), str(HERE.parents[1])]

MODULES = {
    "searching.py": ("searching",),
    "planted.py": ("searching",),
    "commanding.py": (
        "mctskernel.cli.search",
        "mctskernel.cli.resume",
        "mctskernel.executors.gpu",
        "mctskernel.edits.llm.opening",
    ),
}
"""What a script is about to import: it is imported once, before the first of them runs."""

PR_SET_PDEATHSIG = 1


def main(control: socket.socket) -> None:
    """Start what is asked for until the other side hangs up."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control, read], [], [])
        if read in ready:
            os.read(read, 1 << 10)
            tell_ended(control)
        if control in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
            if not message:
                return
            request = json.loads(message)
            for module in MODULES[Path(request["words"][0]).name]:
                import_module(module)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                become(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(f"started {pid}\n".encode())


def tell_ended(control: socket.socket) -> None:
    """Tell of every process that has ended."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            control.send(f"ended {found[0]} {os.waitstatus_to_exitcode(found[1])}\n".encode())
    except ChildProcessError:
        pass


def become(request: dict[str, object], descriptors: list[int]) -> None:
    """Run a script in this process, and end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.update(request["variables"])  # type: ignore[arg-type]
    script, *words = request["words"]  # type: ignore[misc]
    sys.argv = [script, *words]
    status = 1
    try:
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
