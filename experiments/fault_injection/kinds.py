"""The faults: what each does to a search, and how the search must end."""

from __future__ import annotations

import contextlib
import enum
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mctskernel.experiments.fault_injection.checks import evaluated, whole_lines
from mctskernel.experiments.fault_injection.subjects import (
    WORKERS,
    ModelServer,
    Place,
    Running,
    processes_of,
    wait_until,
)

LIMIT_SECONDS = 30.0
"""How long nothing may happen: what takes longer counts as a hang."""

IN_USE = "in use by another process"
"""What a search says that is refused a run."""

MOST_ON_A_SMALL_DISK = 1 << 26
"""Bytes after which a disk that is to be filled isn't the small one that was meant."""


class MissedError(RuntimeError):
    """The search gave the fault nothing to hit: it had ended, or had no such process just then."""


class Course(enum.Enum):
    """What a search does that meets a fault."""

    DIES = "ends, however it can"
    SAYS = "ends with a sentence"
    STOPS = "ends as when it is interrupted"
    GOES_ON = "goes on"
    EITHER = "goes on or ends with a sentence"
    WHATEVER = "goes on or ends, however it can"


Undo = Callable[[], None]


@dataclass
class Meeting:
    """A search at the moment when a fault meets it. `run` is its folder as the harness sees it.

    `restart` starts the search again, for faults of a run that rests. `known` are the finished evaluations that must
    survive; a fault that destroys some takes those out, and one that destroys the run says that it `is_gone`.
    """

    place: Place
    run: Path
    running: Running
    random: np.random.Generator
    known: dict[int, float]
    restart: Callable[[], Running]
    server: ModelServer = field(default_factory=ModelServer)
    gpu_fault: Path = Path()
    clock: Path = Path()
    is_gone: bool = False

    @property
    def pid(self) -> int:
        """The process that searches."""
        return self.running.process.pid

    @property
    def journal(self) -> Path:
        """Its journal."""
        return self.run / "journal.jsonl"

    def send(self, number: int) -> None:
        """Send the search a signal."""
        if self.running.ended():
            raise MissedError("the search had ended")
        os.kill(self.pid, number)

    def workers(self, what: str) -> list[int]:
        """Its processes of one sort, waited for; a new one starts within seconds of the last one's end."""
        if not wait_until(lambda: bool(processes_of(self.pid, WORKERS[what])) or self.running.ended(), 10.0):
            raise MissedError(f"there was no {what}")
        return processes_of(self.pid, WORKERS[what])


def _nothing() -> None:
    pass


def kill_search(meeting: Meeting) -> Undo:
    """`kill -9`."""
    meeting.send(signal.SIGKILL)
    return _nothing


def terminate_search(meeting: Meeting) -> Undo:
    """SIGTERM, as a scheduler sends it."""
    meeting.send(signal.SIGTERM)
    return _nothing


def interrupt_twice(meeting: Meeting) -> Undo:
    """Ctrl-C, and again by an impatient user."""
    meeting.send(signal.SIGINT)
    time.sleep(float(meeting.random.uniform(0.0, 0.3)))
    with contextlib.suppress(MissedError, ProcessLookupError):
        meeting.send(signal.SIGINT)
    return _nothing


def suspend_search(meeting: Meeting) -> Undo:
    """Stopped for a second, as by Ctrl-Z."""
    meeting.send(signal.SIGSTOP)
    time.sleep(float(meeting.random.uniform(0.2, 1.0)))
    os.kill(meeting.pid, signal.SIGCONT)
    return _nothing


def starve_search(meeting: Meeting) -> Undo:
    """No more memory than it has, but for a few hundred kilobytes."""
    meeting.send(0)
    pages = int(Path(f"/proc/{meeting.pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + int(meeting.random.integers(0, 1 << 19))
    resource.prlimit(meeting.pid, resource.RLIMIT_AS, (most, most))
    return _nothing


def signal_worker(what: str, number: int) -> Callable[[Meeting], Undo]:
    """One of the search's processes gets a signal."""

    def inject(meeting: Meeting) -> Undo:
        pids = meeting.workers(what)
        try:
            os.kill(int(meeting.random.choice(pids)), number)
        except (ProcessLookupError, ValueError) as error:
            raise MissedError(f"the {what} had ended") from error
        return _nothing

    return inject


def starve_worker(meeting: Meeting) -> Undo:
    """One of the search's processes gets no more memory."""
    try:
        pid = int(meeting.random.choice(meeting.workers("worker")))
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        most = pages * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError, IndexError) as error:
        raise MissedError("the worker had ended") from error
    return _nothing


def limit_files(meeting: Meeting) -> Undo:
    """No file may grow beyond about what the journal has: writes end in their middle."""
    meeting.send(0)
    size = meeting.journal.stat().st_size if meeting.journal.exists() else 0
    beyond = int(meeting.random.integers(0, 6000))
    most = size + beyond if meeting.random.random() < 0.7 else beyond
    resource.prlimit(meeting.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    return _nothing


def fill_disk(meeting: Meeting) -> Undo:
    """Another file takes the disk, but for a few kilobytes."""
    filler = meeting.place.seen / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.tell() < MOST_ON_A_SMALL_DISK and file.write(bytes(1 << 16)):
            pass
    size = filler.stat().st_size
    os.truncate(filler, max(0, size - int(meeting.random.integers(0, 5)) * 4096))
    return filler.unlink


def forbid_writing(meeting: Meeting) -> Undo:
    """Every folder of the run becomes read-only."""
    folders = [meeting.run, *(path for path in meeting.run.rglob("*") if path.is_dir())]
    modes = {folder: folder.stat().st_mode for folder in folders}
    for folder in folders:
        folder.chmod(0o555)

    def undo() -> None:
        for folder, mode in modes.items():
            folder.chmod(mode)

    return undo


def remove_run(meeting: Meeting) -> Undo:
    """`rm -r RUN`: nothing of it can be gone on with."""
    meeting.is_gone = True

    def is_over() -> bool:
        shutil.rmtree(meeting.run, ignore_errors=True)
        return not meeting.run.exists() or meeting.running.ended()

    if not wait_until(is_over, LIMIT_SECONDS):
        raise AssertionError(f"{meeting.run} was made again and again behind the user's back")
    return lambda: shutil.rmtree(meeting.run, ignore_errors=True)


def move_run(meeting: Meeting) -> Undo:
    """`mv RUN ELSEWHERE`, and back when the search has ended."""
    elsewhere = meeting.run.with_name("elsewhere")
    meeting.run.rename(elsewhere)

    def undo() -> None:
        if meeting.run.exists():
            raise AssertionError(f"{meeting.run} was made again behind the user's back")
        elsewhere.rename(meeting.run)

    return undo


def lose_gpu(meeting: Meeting) -> Undo:
    """The GPU falls off the bus and can't be opened again."""
    meeting.gpu_fault.write_text("gone")
    return meeting.gpu_fault.unlink


def stick_gpu(meeting: Meeting) -> Undo:
    """The GPU is lost, and opening it again never returns."""
    meeting.gpu_fault.write_text("stuck")
    return meeting.gpu_fault.unlink


def hang_server(meeting: Meeting) -> Undo:
    """The model's server stops answering."""
    meeting.server.signal(signal.SIGSTOP)
    return lambda: meeting.server.signal(signal.SIGCONT)


def pause_server(meeting: Meeting) -> Undo:
    """The model's server answers nobody for two seconds."""
    meeting.server.signal(signal.SIGSTOP)
    time.sleep(2.0)
    meeting.server.signal(signal.SIGCONT)
    return _nothing


def end_server(meeting: Meeting) -> Undo:
    """The model's server dies."""
    meeting.server.stop()
    return meeting.server.start


def move_clock(meeting: Meeting) -> Undo:
    """The wall clock jumps by days, ahead or back."""
    meeting.clock.write_text(str(float(meeting.random.choice([-1, 1])) * 86400 * 30))
    meeting.send(signal.SIGUSR1)
    return _nothing


def resume_twice(meeting: Meeting) -> Undo:
    """Another process goes on with the same run."""
    meeting.send(0)
    other = meeting.restart()
    # One that reports an evaluation has not been refused, and would go on.
    wait_until(lambda: other.ended() or bool(other.reported), LIMIT_SECONDS)
    if not other.ended():
        other.kill()
        raise AssertionError("The second search of one run was neither refused nor done.")
    if other.process.returncode == 0 or IN_USE not in other.words():
        if meeting.running.ended() and IN_USE in meeting.running.words():
            raise MissedError("the search was still starting, and was refused itself")
        raise AssertionError(f"The second search of one run wasn't refused: {other.words()[-500:]}")
    return _nothing


def _at_rest(damage: Callable[[Meeting], Undo]) -> Callable[[Meeting], Undo]:
    """The search is killed, something is done to its files, and it is started again."""

    def inject(meeting: Meeting) -> Undo:
        meeting.running.kill()
        undo = damage(meeting)
        meeting.running = meeting.restart()
        return undo

    return inject


def tear_tail(meeting: Meeting) -> Undo:
    """The last line of the journal loses its end."""
    lines = meeting.journal.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        raise MissedError("the journal is empty")
    cut = int(meeting.random.integers(1, len(lines[-1]) + 1))
    os.truncate(meeting.journal, meeting.journal.stat().st_size - cut)
    _forget_lost(meeting)
    return _nothing


def spoil_tail(meeting: Meeting) -> Undo:
    """The last bytes of the journal are others than were written, or behind them stand some that nobody wrote."""
    data = meeting.journal.read_bytes()
    whole = len(b"".join(whole_lines(meeting.journal)))
    length = int(meeting.random.integers(1, max(2, min(2000, whole))))
    noise = bytes(length) if meeting.random.random() < 0.5 else meeting.random.bytes(length)
    spoilt = data + noise if meeting.random.random() < 0.5 else data[:-length] + noise
    meeting.journal.write_bytes(spoilt + (b"\n" if meeting.random.random() < 0.5 else b""))
    _forget_lost(meeting)
    return _nothing


def _forget_lost(meeting: Meeting) -> None:
    """What the damage itself destroyed is no loss of the search's."""
    kept = evaluated(whole_lines(meeting.journal))
    for node in [node for node in meeting.known if node not in kept]:
        del meeting.known[node]


def damage_blob(change: Callable[[Path, np.random.Generator], None]) -> Callable[[Meeting], Undo]:
    """Something happens to one of the texts of the run; afterwards it is restored, as from a backup."""

    def damage(meeting: Meeting) -> Undo:
        blobs = sorted(path for path in (meeting.run / "blobs").rglob("*") if len(path.name) == 64)
        if not blobs:
            raise MissedError("there are no blobs")
        chosen = blobs[int(meeting.random.integers(max(0, len(blobs) - 20), len(blobs)))]
        data = chosen.read_bytes()
        change(chosen, meeting.random)

        def restore() -> None:
            chosen.write_bytes(data)

        return restore

    return _at_rest(damage)


def _cut(path: Path, random: np.random.Generator) -> None:
    os.truncate(path, int(random.integers(0, path.stat().st_size)))


@dataclass(frozen=True)
class Kind:
    """A fault: its name, the searches that it can meet, how they must take it; `share` is how often it is drawn."""

    name: str
    subjects: tuple[str, ...]
    inject: Callable[[Meeting], Undo]
    course: Course
    share: float = 1.0
    place: str = "plain"


EVERY = ("landscape", "recorded", "model", "gpu", "llm")
COMMANDS = EVERY[1:]

KINDS = (
    Kind("kill -9 of the search", EVERY, kill_search, Course.DIES, 4),
    Kind("SIGTERM", COMMANDS, terminate_search, Course.STOPS, 1),
    Kind("Ctrl-C twice", COMMANDS, interrupt_twice, Course.STOPS, 1.5),
    Kind("suspended and continued", EVERY, suspend_search, Course.GOES_ON),
    Kind("no memory for the search", ("landscape", "recorded", "model"), starve_search, Course.WHATEVER),
    Kind("kill -9 of a worker", ("model",), signal_worker("worker", signal.SIGKILL), Course.GOES_ON, 2),
    Kind("a worker crashes", ("model",), signal_worker("worker", signal.SIGSEGV), Course.GOES_ON),
    Kind("a worker hangs", ("model",), signal_worker("worker", signal.SIGSTOP), Course.GOES_ON, 0.5),
    Kind("no memory for a worker", ("model",), starve_worker, Course.GOES_ON),
    Kind("kill -9 of a compiler", ("gpu",), signal_worker("compiler", signal.SIGKILL), Course.GOES_ON),
    Kind("a compiler crashes", ("gpu",), signal_worker("compiler", signal.SIGSEGV), Course.GOES_ON),
    Kind("a compiler hangs", ("gpu",), signal_worker("compiler", signal.SIGSTOP), Course.GOES_ON, 0.5),
    Kind("kill -9 of the GPU process", ("gpu",), signal_worker("gpu", signal.SIGKILL), Course.GOES_ON),
    Kind("the GPU process hangs", ("gpu",), signal_worker("gpu", signal.SIGSTOP), Course.GOES_ON, 0.5),
    Kind("the GPU disappears", ("gpu",), lose_gpu, Course.SAYS),
    Kind("the GPU can't be opened again", ("gpu",), stick_gpu, Course.SAYS, 0.5),
    Kind("files may not grow", ("landscape", "recorded", "model"), limit_files, Course.SAYS, 4),
    Kind("the disk is full", ("landscape", "recorded", "model"), fill_disk, Course.SAYS, 3, "small"),
    Kind("the run is read-only", ("landscape", "recorded"), forbid_writing, Course.SAYS),
    Kind("the run is deleted", ("landscape", "recorded"), remove_run, Course.SAYS),
    Kind("the run is moved away", ("landscape", "recorded"), move_run, Course.SAYS),
    Kind("two resume at once", ("landscape", "recorded", "model"), resume_twice, Course.GOES_ON),
    Kind("the journal's end is torn", ("landscape", "recorded"), _at_rest(tear_tail), Course.GOES_ON),
    Kind("the journal's end is spoilt", ("landscape", "recorded"), _at_rest(spoil_tail), Course.EITHER),
    Kind(
        "a blob is missing",
        ("landscape", "recorded"),
        damage_blob(lambda path, _: path.unlink()),
        Course.EITHER,
    ),
    Kind("a blob is damaged", ("landscape", "recorded"), damage_blob(_cut), Course.EITHER),
    Kind("the clock jumps", COMMANDS, move_clock, Course.GOES_ON),
    Kind("the server stops answering", ("llm",), hang_server, Course.EITHER),
    Kind("the server pauses", ("llm",), pause_server, Course.GOES_ON),
    Kind("the server dies", ("llm",), end_server, Course.EITHER),
)
