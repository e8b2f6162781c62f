"""A child process: its folder, its environment, the pipe that ends it with its parent, requests and replies."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.profiling import build_cache
from mctskernel.profiling.isolation import landlock
from mctskernel.profiling.isolation.confinement import hide_memory
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.isolation.policy import READABLE_VARIABLE
from mctskernel.profiling.processes.channel import Channel, ProtocolError
from mctskernel.profiling.processes.sessions import (
    end_session,
    processor_seconds,
    resume_session,
    stop_session,
)
from mctskernel.profiling.stages import STAGE_FILE

_LOG = logging.getLogger(__name__)

MAX_STDERR_BYTES = 20_000
HANG_UP_SECONDS = 1.0  # how long a process that closed its socket may take to end by itself

HANGING = 10.0
"""How many times its limit of processor time a process may take by the clock: one that waits for ever takes none."""

MAX_FOLDER_BYTES = 2 << 30
FOLDER_CHECK_SECONDS = 1.0  # how often the size of a process's folder is checked while waiting for its reply

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
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "NVRTC_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


Reply = TypeVar("Reply")


class LostError(RuntimeError):
    """The process was lost during a request; `log` is the end of its standard error."""

    def __init__(self, outcome: Outcome, message: str, log: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = log

    @property
    def guard(self) -> Guard:
        """The guard that refuses a candidate that did this to its process."""
        return Guard.TIME_LIMIT if self.outcome is Outcome.TIMEOUT else Guard.SEPARATE_PROCESS


@dataclass
class ChildProcess:
    """A running process, the leader of a session of its own, with a folder of its own.

    The process ends when `lifeline`, the writing end of a pipe, is closed: by `kill`, or when this process ends.
    `stderr` and `stage_file` are files that it writes, opened here before it starts, since it may replace a name in its
    folder by a link to another file. `role` is what it does, for messages: `evaluated the kernel`. `how_ended` says
    how it ended, `exited with status 3`, and is empty while it runs.
    """

    role: str
    channel: Channel
    lifeline: int
    scratch: Path
    stderr: BinaryIO
    stage_file: BinaryIO
    pid: int
    how_ended: Callable[[], str]
    reap: Callable[[], object]
    _folder_checked: float = field(default_factory=time.monotonic, init=False)

    def ask(
        self,
        request: msgspec.Struct,
        replies: msgspec.msgpack.Decoder[Reply],
        seconds: float,
        *,
        of_processor: bool = False,
    ) -> Reply:
        """The reply to a request. Raises LostError when there is none in time; the process goes on all the same."""
        # A process that died while idle is found when its socket is read.
        with contextlib.suppress(OSError):
            self.channel.send(request)
        return self.receive(replies, seconds, of_processor=of_processor)

    def receive(
        self, replies: msgspec.msgpack.Decoder[Reply], seconds: float, *, of_processor: bool = False
    ) -> Reply:
        """The reply to what was sent, waited for `seconds`. Raises LostError.

        Where they are `of_processor` time, as long as a busy machine takes to give the process so much of it, but
        never more than `HANGING` times as long.
        """
        channel, began = self.channel, time.monotonic()
        deadline, used = began + seconds, processor_seconds(self.pid) if of_processor else 0.0
        try:
            while (reply := channel.next_message(replies)) is None:
                left = deadline - time.monotonic()
                if left <= 0 and of_processor:
                    owed = seconds - (processor_seconds(self.pid) - used)
                    left = min(owed, began + HANGING * seconds - time.monotonic())
                    deadline = time.monotonic() + left
                self._check_folder()
                if left > 0 and not select.select([channel], [], [], min(left, FOLDER_CHECK_SECONDS))[0]:
                    continue
                if left <= 0:
                    stage = self._stage()
                    within = f" It was in the stage '{stage}'." if stage else ""
                    slow = f"took more than its limit of {seconds:g} s.{within}"
                    raise self._lost(Outcome.TIMEOUT, slow)
                if not channel.receive_available():
                    raise self._lost(Outcome.CRASH, f"{self.stop_reason()}.")
        except ProtocolError as error:
            raise self._lost(Outcome.CRASH, f"sent {error}.") from error
        return reply

    def pause(self) -> None:
        """Stop it and what it started: nothing of it runs until `resume`."""
        stop_session(self.pid)

    def resume(self) -> None:
        """Let it go on."""
        resume_session(self.pid)

    def kill(self) -> None:
        """End the process and everything that it started, at once, and remove its folder."""
        end_session(self.pid)
        self.reap()
        self.channel.close()
        os.close(self.lifeline)
        self.stderr.close()
        self.stage_file.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def terminate(self) -> None:
        """End the process at once; a thread that waits for its reply sees the socket close. `kill` cleans up later."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop_reason(self) -> str:
        """How a process that has closed its socket ended: `exited with status 3`."""
        end = time.monotonic() + HANG_UP_SECONDS
        while not (how := self.how_ended()):
            if time.monotonic() > end:
                return "hung up"
            time.sleep(0.005)
        return how

    def last_words(self) -> str:
        """The end of its standard error."""
        return _end_of(self.stderr)

    def _stage(self) -> str:
        """The stage of an evaluation that it has written down; empty for anything that isn't a stage."""
        words = _end_of(self.stage_file)
        return words if re.fullmatch(r"[a-z][a-z ]{1,30}", words) else ""

    def _check_folder(self) -> None:
        if time.monotonic() - self._folder_checked < FOLDER_CHECK_SECONDS:
            return
        self._folder_checked = time.monotonic()
        if _folder_bytes(self.scratch) > MAX_FOLDER_BYTES:
            raise self._lost(Outcome.CRASH, f"wrote more than its limit of {MAX_FOLDER_BYTES >> 20} MiB.")

    def _lost(self, outcome: Outcome, how: str) -> LostError:
        return LostError(outcome, f"The process that {self.role} {how}", self.last_words())


Launched = tuple[int, Callable[[], str], Callable[[], object]]
"""A process's number, how it ended, and how it is reaped."""


def start(module: str, role: str, shared: tuple[int, ...] = (), *, own_session: bool = True) -> ChildProcess:
    """Start a process that runs a module, which waits for its first request; it inherits the descriptors `shared`.

    The process is unconfined until it confines itself. Without an `own_session` it leads a process group
    of this session: a confined process may start one so, and it ends with the session.
    """
    _protect_this_process()

    def launch(scratch: Path, descriptors: tuple[int, ...], stderr: BinaryIO) -> Launched:
        inherited = (*descriptors, *shared)
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            (sys.executable, "-P", "-m", module, *map(str, inherited)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=inherited,
            start_new_session=own_session,
            process_group=None if own_session else 0,
            cwd=scratch,
            env=worker_environment(scratch),
        )
        return process.pid, lambda: how_ended(process.pid), process.wait

    return launched(role, launch)


def launched(role: str, launch: Callable[[Path, tuple[int, ...], BinaryIO], Launched]) -> ChildProcess:
    """A process that `launch` starts, given its folder, its socket and lifeline, and the file of its standard error."""
    scratch = Path(tempfile.mkdtemp(prefix="mctskernel-worker-"))
    ours, theirs = socket.socketpair()
    watched, lifeline = os.pipe()
    stderr, stage_file = (scratch / "stderr").open("w+b"), (scratch / STAGE_FILE).open("w+b")
    try:
        started = launch(scratch, (theirs.fileno(), watched), stderr)
    finally:
        theirs.close()
        os.close(watched)
    return ChildProcess(role, Channel(ours), lifeline, scratch, stderr, stage_file, *started)


def how_ended(pid: int) -> str:
    """How a child of ours ended, `exited with status 3`, without reaping it; empty while it runs."""
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return ""
    number = status.si_status
    if status.si_code == os.CLD_EXITED:
        return f"exited with status {number}"
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"was killed by signal {number}"


def _end_of(file: BinaryIO) -> str:
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
    try:
        landlock.abilities()
    except RefusedByKernelError as missing:
        _LOG.warning(
            "There is no sandbox here: candidates can read and write your files (%s). See `mctskernel doctor`.",
            missing,
        )
        with contextlib.suppress(RefusedByKernelError):
            hide_memory()


def _folder_bytes(folder: Path) -> int:
    """The disk space of a folder's files; files that disappear meanwhile don't count."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512  # noqa: PTH118 - as os.walk gives it
    return total


def worker_environment(scratch: Path) -> dict[str, str]:
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
        # Builds are kept there.
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path),
        "PYTHONHASHSEED": "0",
        "TMPDIR": str(scratch),
        # One core each: several workers share the machine, and results must not depend on their number.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }


def environment_without_secrets() -> dict[str, str]:
    """This process's variables, without those whose names suggest a secret."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not any(word in name.upper() for word in _SECRET_WORDS)
    }
