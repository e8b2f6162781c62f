"""NVIDIA's compute-sanitizer on one kernel: memory, races, initialisation and synchronisation on the GPU.

It needs a GPU and the `compute-sanitizer` program, and some virtual machines refuse it: a check that could not be made
is noted, never passed silently. A kernel runs 10 to 100 times slower under it, so it runs at the task's small shapes,
in a process of its own for each tool. docs/races.md says what each of them can and can't find.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, shape_label
from mctskernel.profiling.emulator.findings import Finding, Kind
from mctskernel.profiling.processes.child_process import worker_environment
from mctskernel.profiling.processes.sessions import end_session
from mctskernel.profiling.replay import AT_SHAPE, COMPLAINT, Freedom, watched_shapes


class Tool(enum.StrEnum):
    """The tools of compute-sanitizer, by their names on its command line."""

    MEMCHECK = "memcheck"
    RACECHECK = "racecheck"
    INITCHECK = "initcheck"
    SYNCCHECK = "synccheck"


def parse_findings(tool: Tool, output: str) -> tuple[Finding, ...]:
    """The defects in a tool's output, the first of each kind on each pair of lines."""
    found: dict[tuple[str, int | None, int | None], Finding] = {}
    for shape, record in _records(output):
        kind = next((kind for pattern, kind in _KINDS if re.search(pattern, record)), None)
        if kind is None:
            continue
        line, *others = [_line(*each) for each in _PLACE.findall(record)] or [None]
        where = f"{tool.value}{f' at {shape}' if shape else ''}, line {line or 'unknown'}"
        message = f"{where}: {' '.join(record.split())[:MOST_LETTERS]}"
        for other in (others or [None]) if kind == "race" else [None]:
            buffer = "shared" if kind == "race" else None
            found.setdefault(
                (kind, line, other), Finding(kind, message, line, buffer=buffer, other_line=other)
            )
    return tuple(found.values())


def failure(tool: Tool, output: str) -> str:
    """Why a tool could not check a kernel, in a sentence."""
    lines = [line.strip() for line in output.splitlines()]
    for line in lines:
        if line.startswith(COMPLAINT):
            return f"{tool.value} could not replay the kernel: {line.removeprefix(COMPLAINT)}"
    said = [line.removeprefix("=========").strip() for line in lines if line.startswith("=========")]
    for sentence in said:
        if "not supported" in sentence.lower() or sentence.startswith("Internal Sanitizer Error"):
            return f"This machine does not allow {tool.value}: {sentence.removeprefix('Error: ')}"
    errors = [sentence for sentence in said if "error" in sentence.lower()]
    reason = (errors or lines or ["it printed nothing"])[-1].removeprefix("Error: ")
    return f"{tool.value} could not check the kernel: {reason}"


def _records(output: str) -> Iterator[tuple[str, str]]:
    """The shape at which a tool reports something, and the lines of the report."""
    shape, record = "", list[str]()
    # A kernel can print without ending the line, which would hide the record behind it.
    for line in (*_UNSTARTED.sub(f"\n{_PREFIX}", output).splitlines(), f"{_PREFIX} end"):
        if line.startswith(AT_SHAPE):
            shape = line.removeprefix(AT_SHAPE).strip()
        if not line.startswith(_PREFIX):
            continue
        text = line.removeprefix(_PREFIX)
        if not text.startswith("   "):
            if record:
                yield shape, "\n".join(record)
            record = []
        record.append(text.strip())


_PREFIX = "========="
_UNSTARTED = re.compile(rf"(?<=[^\n=]){_PREFIX}(?!=)")

_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"nvalid __\w+__ \w+ of size [\s\S]*is misaligned", "misaligned"),
    (r"nvalid __\w+__ \w+ of size ", "out_of_bounds"),
    (r"^Uninitialized __\w+__ memory read", "uninitialised_read"),
    (r"Race reported between ", "race"),
    (r"^Barrier error detected\.(?:.*(?:warp|Invalid arguments)|[\s\S]*warpsync)", "divergent_warp"),
    (r"^Barrier error detected\.", "divergent_barrier"),
)
"""What a record says of each kind of defect; the first that matches holds."""

_PLACE = re.compile(r" in (\S+):(\d+)")
_HEADER = (".h", ".hpp", ".cuh", ".inl")

MOST_LETTERS = 300
"""Of a record in a message."""


def _line(file: str, number: str) -> int | None:
    """The kernel's line in `f(int *)+0x90 in kernel.cu:41`; None where it is a header's."""
    return None if file.endswith(_HEADER) else int(number)


VALIDATION_TOOLS = (Tool.MEMCHECK, Tool.RACECHECK, Tool.INITCHECK, Tool.SYNCCHECK)
"""The tools of the final validation."""

UNCONFINED = (
    "compute-sanitizer doesn't work in the sandbox here: the kernel was compiled and run outside of it."
)
"""The note where the starting kernel can't be checked in the sandbox, and can outside of it."""

LIMIT_SECONDS = 90.0
"""How long a tool may take, the start of its process included."""

_REPLAY_SHARE = 0.5
"""Share of the limit after which a replay begins no further shape."""

_POLL_SECONDS = 0.2

_OPTIONS = {
    # Allocations may lie side by side: the padding keeps an overrun of one from being an access to the next.
    Tool.MEMCHECK: ("--padding", "65536", "--report-api-errors", "no"),
    Tool.RACECHECK: ("--racecheck-report", "analysis"),
    Tool.INITCHECK: (),
    Tool.SYNCCHECK: (),
}
_WHERE = (Path("/usr/local/cuda/bin"), Path("/usr/local/cuda/compute-sanitizer"))


@dataclass(frozen=True)
class ToolReport:
    """What one tool found, or a `note` on why it could not check everything.

    Its process took `seconds`; `late` says that it was ended at the limit.
    """

    tool: Tool
    findings: tuple[Finding, ...] = ()
    note: str = ""
    seconds: float = 0.0
    late: bool = False


@dataclass(frozen=True)
class Sanitized:
    """The reports of all tools on a kernel, the seconds of all of them, and shapes that are too large for them."""

    reports: tuple[ToolReport, ...]
    seconds: float
    unwatched: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The defects of the kernel."""
        return tuple(finding for report in self.reports for finding in report.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which checks could not be made, and why, in sentences."""
        notes = [report.note for report in self.reports]
        if self.unwatched:
            notes.append(f"compute-sanitizer did not check at {'; '.join(self.unwatched)}: too large for it.")
        return tuple(dict.fromkeys(filter(None, notes)))


def sanitize(
    task: Task,
    kernel: Kernel,
    *,
    seed: int = 0,
    tools: Sequence[Tool] = VALIDATION_TOOLS,
    limit_seconds: float = LIMIT_SECONDS,
    gpu: str = "",
    stopped: Callable[[], bool] = lambda: False,
) -> Sanitized:
    """Run a kernel at its task's verify and held-out shapes under each of the tools, all at the same time.

    Inputs follow from `seed`; `gpu` is a UUID, empty for the first visible GPU. Nothing should be timed there
    meanwhile. All of it ends after `limit_seconds`, or when `stopped` says so. Never raises: where the program is
    missing or refuses the GPU there are no findings and one note.
    """
    began = time.monotonic()
    program = find_compute_sanitizer()
    if program is None:
        note = (
            "compute-sanitizer is not on the PATH, so memory accesses and races were not checked on the GPU: "
            "install the CUDA toolkit or the package nvidia-cuda-sanitizer-api."
        )
        return Sanitized(tuple(ToolReport(tool, note=note) for tool in tools), time.monotonic() - began)
    with tempfile.TemporaryDirectory(prefix="mctskernel-sanitizer-") as folder, ThreadPoolExecutor() as pool:
        replay = _Replay(
            program, task, kernel, seed, Path(folder), limit_seconds, began + limit_seconds, stopped, gpu=gpu
        )
        reports = tuple(pool.map(replay.under, tools))
        if any(report.note and not report.late for report in reports):
            start = replace(replay, kernel=task.starting_kernel)
            if not start.works(Freedom.CONFINED) and start.works(Freedom.FREE):
                free = tuple(pool.map(replace(replay, freedom=Freedom.FREE).under, tools))
                reports = tuple(replace(report, note=report.note or UNCONFINED) for report in free)
        _, unwatched = watched_shapes(task)
        return Sanitized(reports, time.monotonic() - began, tuple(map(shape_label, unwatched)))


@dataclass(frozen=True)
class _Replay:
    """The run under each tool, in folders below `folder`."""

    program: str
    task: Task
    kernel: Kernel
    seed: int
    folder: Path
    limit_seconds: float
    deadline: float
    stopped: Callable[[], bool]
    freedom: Freedom = Freedom.CONFINED
    gpu: str = ""

    def works(self, freedom: Freedom) -> bool:
        """Whether a tool can check a kernel."""
        return not replace(self, freedom=freedom).under(Tool.MEMCHECK).note

    def under(self, tool: Tool) -> ToolReport:
        """The report of a tool."""
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        source = scratch / f"kernel{self.kernel.language.suffix}"
        source.write_text(self.kernel.source, encoding="utf-8")
        replay = [sys.executable, "-P", "-m", "mctskernel.profiling.replay"]
        replay += [str(self.task.folder.resolve()), str(source), str(self.seed)]
        replay += [self.freedom.value, str(_REPLAY_SHARE * self.limit_seconds)]
        replay += [self.gpu] if self.gpu else []
        command = [self.program, "--tool", tool.value, *_OPTIONS[tool]]
        command += ["--destroy-on-device-error", "kernel", "--show-backtrace", "no", *replay]
        return self._report(tool, command, scratch)

    def _report(self, tool: Tool, command: Sequence[str], scratch: Path) -> ToolReport:
        began, late, output = time.monotonic(), False, ""
        with subprocess.Popen(  # noqa: S603 - compute-sanitizer, and our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=scratch,
            env=worker_environment(scratch),
            start_new_session=True,
        ) as process:
            try:
                while not late and process.returncode is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        output, _ = process.communicate(timeout=_POLL_SECONDS)
                    late = process.returncode is None and (time.monotonic() > self.deadline or self.stopped())
                output = _killed(process) if late else output
            except BaseException:
                _killed(process)
                raise
        note = failure(tool, output) if process.returncode or COMPLAINT in output else ""
        if late:
            note = f"{tool.value} was not done after {self.limit_seconds:.0f} seconds."
        findings = parse_findings(tool, output)
        return ToolReport(tool, findings, "" if findings else note, time.monotonic() - began, late)


def find_compute_sanitizer() -> str | None:
    """The path of the program: on the PATH, in the CUDA toolkit, or beside Python's packages; None without one."""
    packaged = (Path(entry, "nvidia", "cu13", "compute-sanitizer") for entry in sys.path)
    places = os.pathsep.join(map(str, (os.environ.get("PATH", os.defpath), *_WHERE, *packaged)))
    return shutil.which("compute-sanitizer", path=places)


def _killed(process: subprocess.Popen[str]) -> str:
    """End the program and its children; returns their output."""
    end_session(process.pid)
    return process.communicate()[0]
