"""NVIDIA's compute-sanitizer over one kernel: memory, races, initialisation and synchronisation as the GPU ran them.

It needs a GPU and the `compute-sanitizer` program, and some virtual machines refuse it: what could not be checked comes
back as a remark, never as a silent pass. A kernel runs 10 to 100 times slower under it, so it runs at the task's small
shapes, in a process of its own for each tool. What each of them can and can't find is in docs/races.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.profiling.emulator.findings import Finding
from mctskernel.profiling.processes.child_process import worker_environment
from mctskernel.profiling.replay_process import COMPLAINT, Freedom
from mctskernel.profiling.sanitizer_output import Tool, failure, parse_findings

GATE_TOOLS = (Tool.MEMCHECK, Tool.RACECHECK, Tool.INITCHECK, Tool.SYNCCHECK)
"""What a kernel that is about to be called best has to pass."""

UNCONFINED = (
    "compute-sanitizer works in no confined process here: the kernel was compiled and run in a free one."
)
"""The remark where not even the starting kernel can be checked in a confined process, and can in a free one."""

LIMIT_SECONDS = 90.0
"""How long a tool may take, the start of its process included."""

_REPLAY_SHARE = 0.5
"""Share of the limit after which a replay begins no further shape."""

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
    """What one tool found, or a `remark` on why it could not check everything; its process took `seconds`, all
    that it was given where it is `late`.
    """

    tool: Tool
    findings: tuple[Finding, ...] = ()
    remark: str = ""
    seconds: float = 0.0
    late: bool = False


@dataclass(frozen=True)
class Sanitized:
    """What compute-sanitizer says of a kernel, tool by tool, and how long all of it took."""

    reports: tuple[ToolReport, ...]
    seconds: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the kernel."""
        return tuple(finding for report in self.reports for finding in report.findings)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be checked, and why, in sentences."""
        return tuple(dict.fromkeys(report.remark for report in self.reports if report.remark))


def sanitize(
    task: Task,
    kernel: Kernel,
    *,
    seed: int = 0,
    tools: Sequence[Tool] = GATE_TOOLS,
    limit_seconds: float = LIMIT_SECONDS,
    gpu: str = "",
) -> Sanitized:
    """Run a kernel at its task's verify and held-out shapes under each of the tools, all at the same time.

    Inputs follow from `seed`; `gpu` is a UUID, empty for the first visible GPU. Nothing should be timed there
    meanwhile. No machine raises: where the program is missing or refuses the GPU there are no findings and one remark.
    """
    began = time.monotonic()
    program = find_compute_sanitizer()
    if program is None:
        remark = (
            "compute-sanitizer is not on the PATH, so memory accesses and races were not checked on the GPU: "
            "install the CUDA toolkit or the package nvidia-cuda-sanitizer-api."
        )
        return Sanitized(tuple(ToolReport(tool, remark=remark) for tool in tools), time.monotonic() - began)
    with tempfile.TemporaryDirectory(prefix="mctskernel-sanitizer-") as folder, ThreadPoolExecutor() as pool:
        replay = _Replay(program, task, kernel, seed, Path(folder), limit_seconds, gpu=gpu)
        reports = tuple(pool.map(replay.under, tools))
        if any(report.remark and not report.late for report in reports):
            start = replace(replay, kernel=task.starting_kernel)
            if not start.works(Freedom.CONFINED) and start.works(Freedom.FREE):
                free = tuple(pool.map(replace(replay, freedom=Freedom.FREE).under, tools))
                reports = tuple(replace(report, remark=report.remark or UNCONFINED) for report in free)
        return Sanitized(reports, time.monotonic() - began)


@dataclass(frozen=True)
class _Replay:
    """What is run under each tool, in folders below `folder`."""

    program: str
    task: Task
    kernel: Kernel
    seed: int
    folder: Path
    limit_seconds: float
    freedom: Freedom = Freedom.CONFINED
    gpu: str = ""

    def works(self, freedom: Freedom) -> bool:
        """Whether a tool has nothing to complain of, but for the kernel."""
        return not replace(self, freedom=freedom).under(Tool.MEMCHECK).remark

    def under(self, tool: Tool) -> ToolReport:
        """What a tool says."""
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        source = scratch / f"kernel{self.kernel.language.suffix}"
        source.write_text(self.kernel.source, encoding="utf-8")
        replay = [sys.executable, "-P", "-m", "mctskernel.profiling.sanitized_replay"]
        replay += [str(self.task.folder.resolve()), str(source), str(self.seed)]
        replay += [str(_REPLAY_SHARE * self.limit_seconds), self.freedom.value]
        replay += [self.gpu] if self.gpu else []
        return _report(self.program, tool, replay, scratch, self.limit_seconds)


def find_compute_sanitizer() -> str | None:
    """The path of the program: on the PATH, in the CUDA toolkit, or beside Python's packages; None without one."""
    packaged = (Path(entry, "nvidia", "cu13", "compute-sanitizer") for entry in sys.path)
    places = os.pathsep.join(map(str, (os.environ.get("PATH", os.defpath), *_WHERE, *packaged)))
    return shutil.which("compute-sanitizer", path=places)


def _report(
    program: str, tool: Tool, replay: Sequence[str], scratch: Path, limit_seconds: float
) -> ToolReport:
    began, late = time.monotonic(), False
    command = [program, "--tool", tool.value, *_OPTIONS[tool]]
    command += ["--destroy-on-device-error", "kernel", "--show-backtrace", "no", *replay]
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
            output, _ = process.communicate(timeout=limit_seconds)
            remark = failure(tool, output) if process.returncode or COMPLAINT in output else ""
        except subprocess.TimeoutExpired:
            output, late = _killed(process), True
            remark = f"{tool.value} was not done after {limit_seconds:.0f} seconds."
        except BaseException:
            _killed(process)
            raise
    findings = parse_findings(tool, output)
    return ToolReport(tool, findings, "" if findings else remark, time.monotonic() - began, late)


def _killed(process: subprocess.Popen[str]) -> str:
    """End the program and what it started; what they had printed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]
