"""Starting and stopping a worker's process: its folder, its environment, the pipe that ends it with its parent."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mctskernel.profiling import build_cache
from mctskernel.profiling.isolation import landlock
from mctskernel.profiling.isolation.bubblewrap import bubblewrap_command, find_bubblewrap
from mctskernel.profiling.isolation.confinement import hide_memory
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.isolation.policy import READABLE_VARIABLE, Confinement
from mctskernel.profiling.processes.channel import Channel
from mctskernel.profiling.stages import STAGE_FILE

_LOG = logging.getLogger(__name__)

MAX_STDERR_BYTES = 20_000
HANG_UP_SECONDS = 1.0
"""How long a process that closed its socket may take to end by itself."""

MAX_SWEEPS = 100
"""How often to look for processes of a session that were started while it was being ended."""

_KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    READABLE_VARIABLE,
    build_cache.VARIABLE,
)
_SIGNALLED = 128
"""Bubblewrap's exit status for a process that was killed by signal n is this plus n."""
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "NVRTC_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


@dataclass(frozen=True)
class ChildProcess:
    """A running worker process, the leader of a session of its own, with a folder of its own.

    The process ends when `lifeline`, the writing end of a pipe, is closed: by `kill`, or when this process ends.
    `stderr` and `stage_file` are files that it writes, opened here before it starts, since it may replace a name in its
    folder by a link to another file. `wrapped` says that it runs in bubblewrap.
    """

    process: subprocess.Popen[bytes]
    channel: Channel
    lifeline: int
    scratch: Path
    stderr: BinaryIO
    stage_file: BinaryIO
    wrapped: bool = False

    @property
    def pid(self) -> int:
        """The process's number."""
        return self.process.pid

    def kill(self) -> None:
        """End the process and everything that it started, at once, and remove its folder."""
        end_session(self.process.pid)
        self.process.wait()
        self.channel.close()
        os.close(self.lifeline)
        self.stderr.close()
        self.stage_file.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def terminate(self) -> None:
        """End the process at once; a thread that waits for its reply sees the socket close. `kill` cleans up later."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def stop_reason(self) -> str:
        """How a process that has closed its socket ended: `exited with status 3`."""
        # It is not reaped yet, so that its process group keeps its number until all of it is killed.
        peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
        end = time.monotonic() + HANG_UP_SECONDS
        while (status := os.waitid(os.P_PID, self.process.pid, peek)) is None:
            if time.monotonic() > end:
                return "hung up"
            time.sleep(0.005)
        if self.wrapped and status.si_code == os.CLD_EXITED and status.si_status > _SIGNALLED:
            return f"was killed by {_signal_name(status.si_status - _SIGNALLED)}"
        if status.si_code == os.CLD_EXITED:
            return f"exited with status {status.si_status}"
        return f"was killed by {_signal_name(status.si_status)}"

    def last_words(self) -> str:
        """The end of its standard error."""
        return end_of(self.stderr)

    def stage(self) -> str:
        """The stage of an evaluation that it has written down; empty for anything that isn't a stage."""
        words = end_of(self.stage_file)
        return words if re.fullmatch(r"[a-z][a-z ]{1,30}", words) else ""


def start(
    module: str,
    shared: tuple[int, ...] = (),
    policy: Callable[[Path], Confinement] | None = None,
    *,
    threads: int = 1,
    within: Path | None = None,
    own_session: bool = True,
) -> ChildProcess:
    """Start a process that runs a module, which waits for its first request; it inherits the descriptors `shared`.

    `policy` returns, given the process's folder, what it may do from its start, where this machine has bubblewrap.
    Without it the process is unconfined until it confines itself. Its libraries for linear algebra may use `threads`.
    Its folder is made `within` another, or in the folder for temporary files. Without an `own_session` it leads a
    process group of this session: a confined process may start one so, and it ends with the session.
    """
    _protect_this_process()
    scratch = Path(tempfile.mkdtemp(prefix="mctskernel-worker-", dir=within))
    ours, theirs = socket.socketpair()
    watched, lifeline = os.pipe()
    inherited = (theirs.fileno(), watched, *shared)
    command: tuple[str, ...] = (sys.executable, "-P", "-m", module, *map(str, inherited))
    bubblewrap = find_bubblewrap() if policy is not None else None
    if policy is not None and bubblewrap is not None:
        command = bubblewrap_command(bubblewrap, policy(scratch), command)
    stderr, stage_file = (scratch / "stderr").open("w+b"), (scratch / STAGE_FILE).open("w+b")
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=inherited,
            start_new_session=own_session,
            process_group=None if own_session else 0,
            cwd=scratch,
            env=worker_environment(scratch, threads),
        )
    finally:
        theirs.close()
        os.close(watched)
    return ChildProcess(process, Channel(ours), lifeline, scratch, stderr, stage_file, bubblewrap is not None)


def end_of(file: BinaryIO) -> str:
    """The end of an open file that another process writes; the file's position stays."""
    try:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), MAX_STDERR_BYTES, max(0, size - MAX_STDERR_BYTES)).decode(
            errors="replace"
        )
    except (OSError, ValueError):
        return ""


@functools.cache
def _protect_this_process() -> None:
    """Warn, once, where this machine has no sandbox for workers, and hide this process's memory from them."""
    if find_bubblewrap() is not None:
        return
    try:
        landlock.abilities()
    except RefusedByKernelError as missing:
        _LOG.warning(
            "There is no sandbox here: candidates can read and write your files (%s). See `mctskernel doctor`.",
            missing,
        )
        with contextlib.suppress(RefusedByKernelError):
            hide_memory()


def end_session(leader: int) -> None:
    """End a process that leads a session of its own and everything in it, groups of their own included.

    To be called before the leader is reaped, so that its number isn't reused. A confined process can't leave
    its session.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(MAX_SWEEPS):
        left = [each for each in _session_members(leader) if each != leader]
        if not left:
            return
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.001)


def folder_bytes(folder: Path) -> int:
    """The disk space of a folder's files; files that disappear meanwhile don't count."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512  # noqa: PTH118 - as os.walk gives it
    return total


def worker_environment(scratch: Path, threads: int = 1) -> dict[str, str]:
    """The environment of a worker: variables to find its libraries and the GPU, and no secrets."""
    kept = {
        name: value
        for name, value in environment_without_secrets().items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }
    return {
        **kept,
        "HOME": str(scratch),
        # Python looks for packages of `pip install --user` in HOME.
        "PYTHONUSERBASE": site.getuserbase(),
        # Measured ceilings and builds are kept there.
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path),
        "PYTHONHASHSEED": "0",
        "TMPDIR": str(scratch),
        # One core each: several workers share the machine, and results must not depend on their number.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)),
    }


def environment_without_secrets() -> dict[str, str]:
    """This process's variables, without those whose names suggest a secret."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not any(word in name.upper() for word in _SECRET_WORDS)
    }


def _session_members(session: int) -> list[int]:
    """The living processes of a session. None where the system has no /proc."""
    members = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Behind the program's name, which may hold anything: state, parent, group, session.
            state, _, _, found, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(found) == session and state not in "ZX":
                members.append(int(process.name))
    return members


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
