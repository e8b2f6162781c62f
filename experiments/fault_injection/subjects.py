"""Searches that faults are injected into, each in a process of its own, and the places on disk where they run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TextIO

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace
from mctskernel.profiling.spaces import write_space

SCRIPTS = Path(__file__).resolve().parents[2] / "tests" / "faults"
"""What stands for a task, a GPU and a model's server. It is part of a checkout and of no package."""

START_SECONDS = 180.0
"""How long a search may take to its first evaluation before any fault: many share the machine."""

ENDLESS = 100_000
"""Evaluations that no search here comes to."""

WITHOUT_OVERRIDES = ("--bounding-set", "-dac_override,-dac_read_search")
"""For `setpriv`: what lets root write into folders that are read-only."""

WORKERS = {
    "worker": "mctskernel.profiling.processes.device_process",
    "compiler": "mctskernel.profiling.processes.compile_process",
    "gpu": "mctskernel.profiling.gpu.process",
}
"""The modules that a search's processes run, by what they are."""


@dataclass(frozen=True)
class Place:
    """A folder for runs: `path` for the searches in it, `seen` for the harness; `enter` begins a command."""

    path: Path
    seen: Path
    enter: tuple[str, ...] = ()


@contextmanager
def plain_place(folder: Path) -> Iterator[Place]:
    """A folder of the disk that everything else is on."""
    folder.mkdir(parents=True, exist_ok=True)
    yield Place(folder, folder)


@contextmanager
def small_disk(folder: Path, kibibytes: int = 8192) -> Iterator[Place]:
    """A folder on a small file system of its own, in a mount namespace. Raises OSError where none may be."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = f"mount -t tmpfs -o size={kibibytes}k none {folder} && echo mounted && exec cat"
    command = ["unshare", "-Urm", "--propagation", "private", "sh", "-c", mount]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None  # noqa: S101 - both are pipes
        if holder.stdout.readline() != "mounted\n":
            raise OSError("no file system can be mounted: user namespaces are not allowed here")
        enter = ("nsenter", "--preserve-credentials", "-U", "-m", "-t", str(holder.pid), "--")
        yield Place(folder, Path(f"/proc/{holder.pid}/root{folder}"), enter)
        holder.stdin.close()


@functools.cache
def small_disks_work() -> bool:
    """Whether this machine lets a user mount a file system."""
    command = ["unshare", "-Urm", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/tmp"]  # noqa: S108 - mounted and gone
    return shutil.which("nsenter") is not None and subprocess.run(command, check=False).returncode == 0


@dataclass(frozen=True)
class Subject:
    """A kind of search. `words` begin one in a run folder, `again` go on with it so many evaluations further.

    `span` is the seconds in which a fault meets it, from its first evaluation on.
    """

    name: str
    words: Callable[[Path, int], list[str]]
    again: Callable[[Path, int], list[str]]
    span: float
    variables: dict[str, str] = field(default_factory=dict)
    makes_folder: bool = True


def walk(kind: str = "walk", script: str = "searching.py") -> Subject:
    """A search in a landscape: no process besides its own, a few milliseconds an evaluation."""

    def words(run: Path, budget: int) -> list[str]:
        return [str(SCRIPTS / script), str(run), str(budget), kind]

    return Subject("landscape", words, words, 0.6, makes_folder=False)


def command(
    name: str, span: float, begin: tuple[str, ...], variables: dict[str, str] | None = None
) -> Subject:
    """`mctskernel search` with these words, and `mctskernel resume`."""
    script, limit = str(SCRIPTS / "commanding.py"), ("--seconds", "1000000")

    def words(run: Path, budget: int) -> list[str]:
        return [script, "search", *begin, "--out", str(run), "--budget", str(budget), *limit]

    def again(run: Path, budget: int) -> list[str]:
        return [script, "resume", str(run), "--budget", str(budget), *limit]

    return Subject(name, words, again, span, variables or {})


def recorded(folder: Path) -> Subject:
    """`mctskernel search` in a recorded space of 4 096 configurations."""
    file = folder / "space.json"
    if not file.exists():
        names = ("block", "tile", "unroll", "lanes")
        parameters = tuple(Parameter(each, tuple(range(1, 9))) for each in names)
        entries = tuple(
            Entry(values, Outcome.OK, 1e-3 * (1 + sum((int(value) - 5) ** 2 for value in values)))
            for values in product(*(each.values for each in parameters))
        )
        write_space(SearchSpace("faults", parameters, entries, device="A GPU", kernel="kernel"), file)
    return command("recorded", 1.5, ("--space", str(file), "--device", "recorded", "--workers", "2"))


def modelled(task: Path, workers: int = 2) -> Subject:
    """`mctskernel search --device model` of a small task, every kernel compiled and emulated."""
    return command("model", 2.0, (str(task), "--device", "model", "--workers", str(workers)))


def fake_gpu(task: Path, fault: Path) -> Subject:
    """`mctskernel search --device gpu` with a GPU that fails as the file `fault` says."""
    words = (str(task), "--device", "gpu", "--workers", "2")
    return command("gpu", 2.0, words, {"CUDA_FAULT": str(fault)})


def with_model(task: Path, url: str) -> Subject:
    """`mctskernel search --proposer llm` with a model's server on the loopback device."""
    model = ("--proposer", "llm", "--model", "gpt-4.1-mini", "--base-url", url, "--calls", "2")
    words = (str(task), "--device", "model", "--workers", "1", *model)
    return command("llm", 2.0, words, {"OPENAI_API_KEY": "sk-none"})


class Started:
    """A process that a `Starter` started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


class Starter:
    """Starts searches without Python's start, which takes seconds on a busy machine, from one place."""

    def __init__(self, enter: tuple[str, ...] = ()) -> None:
        ours, theirs = socket.socketpair()
        privileges = ("setpriv", *(WITHOUT_OVERRIDES if os.getuid() == 0 else ("--no-new-privs",)), "--")
        script = [sys.executable, str(SCRIPTS / "forking.py"), str(theirs.fileno())]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*enter, *privileges, *script], pass_fds=(theirs.fileno(),), env=environment
        )
        theirs.close()
        self._socket = ours
        self._asking = threading.Lock()
        self._begun: queue.SimpleQueue[Started] = queue.SimpleQueue()
        self._running: dict[int, Started] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, words: list[str], variables: dict[str, str], streams: list[int]) -> Started:
        """Start a script with these standard input, output and error."""
        request = json.dumps({"words": words, "variables": variables}).encode()
        with self._asking:
            socket.send_fds(self._socket, [request], streams)
            return self._begun.get(timeout=START_SECONDS)

    def close(self) -> None:
        """End whatever was started."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionError), self._socket.makefile() as lines:
            for line in lines:
                word, pid, *status = line.split()
                if word == "started":
                    self._running[int(pid)] = Started(int(pid))
                    self._begun.put(self._running[int(pid)])
                else:
                    self._running.pop(int(pid)).returncode = int(status[0])


@dataclass
class Running:
    """A search that runs: its process and what it has said."""

    process: Started
    said: list[str]
    complained: list[str]
    _readers: tuple[threading.Thread, ...] = ()

    @property
    def reported(self) -> dict[int, float]:
        """The rewards of nodes that were reported finished."""
        whole = (line for line in list(self.said) if line.startswith("finished ") and line.endswith("\n"))
        return {int(node): float(reward) for _, node, reward in map(str.split, whole)}

    def ended(self) -> bool:
        """Whether it is over."""
        return self.process.returncode is not None

    def words(self) -> str:
        """The end of what it wrote to its standard error, once it is over."""
        for reader in self._readers:
            reader.join(5.0)
        return "".join(self.complained)[-4000:]

    def kill(self) -> None:
        """End it and whatever it started."""
        if not self.ended():
            for pid in (self.process.pid, *processes_of(self.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(self.ended, START_SECONDS)


def start(starter: Starter, words: list[str], variables: dict[str, str]) -> Running:
    """Start a search."""
    kept: tuple[list[str], list[str]] = ([], [])
    pipes = [os.pipe(), os.pipe()]
    with Path(os.devnull).open() as nothing:
        process = starter.start(words, variables, [nothing.fileno(), *(write for _, write in pipes)])
    readers = []
    for lines, (read, write) in zip(kept, pipes, strict=True):
        os.close(write)
        stream = os.fdopen(read, errors="replace")
        readers.append(threading.Thread(target=_keep, args=(stream, lines), daemon=True))
        readers[-1].start()
    return Running(process, *kept, tuple(readers))


def _keep(stream: TextIO, lines: list[str]) -> None:
    with stream:
        lines.extend(stream)


def processes_of(pid: int, module: str = "") -> list[int]:
    """The descendants of a process, those that run a module if one is named."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            if not module or _runs(child, module):
                found.append(child)
    return found


def _runs(pid: int, module: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"python" in words[0] and module.encode() in words


@dataclass
class ModelServer:
    """A model's server in a process of its own, on a port that it keeps."""

    url: str = ""
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start, or start again."""
        port = self.url.rpartition(":")[2].partition("/")[0] or "0"
        words = [sys.executable, str(SCRIPTS / "answering.py"), port]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None  # noqa: S101 - a pipe
        self.url = self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.process is not None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


def hurry_model(run: Path) -> None:
    """Make a run give its model's server up after seconds and not minutes."""
    manifest = json.loads((run / "run.json").read_text())
    manifest["configuration"]["llm"] |= {"call_seconds": 4.0, "request_seconds": 2.0, "retries": 1}
    (run / "run.json").write_text(json.dumps(manifest))


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
