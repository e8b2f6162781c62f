"""Nsight Compute's command line: a full report on what a process launches, and the findings of its rules."""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.device import DeviceError
from mctskernel.profiling.gpu.cupti import COUNTERS_FORBIDDEN
from mctskernel.profiling.processes.child_process import environment_without_secrets, worker_environment
from mctskernel.profiling.processes.sessions import end_session
from mctskernel.profiling.replay import COMPLAINT

LIMIT_SECONDS = 600.0
"""How long a report may take. A kernel runs about 40 times for one, with its memory restored in between."""

READ_SECONDS = 120.0


@dataclass(frozen=True)
class Finding:
    """What one of Nsight Compute's rules says of a kernel.

    `speedup` is the estimated gain as a fraction of the kernel's time, 0 where the rule estimates none; `local` ones
    are of one unit's time alone.
    """

    kernel: str
    rule: str
    sentence: str
    speedup: float = 0.0
    local: bool = False


def find_ncu() -> str:
    """The path of `ncu`. Raises DeviceError."""
    found = shutil.which("ncu")
    if found is None:
        raise DeviceError(
            "ncu is not on the PATH: install NVIDIA Nsight Compute, or add its folder to the PATH "
            "(in a CUDA toolkit it is bin/)."
        )
    return found


def write_report(file: Path, program: Sequence[str]) -> None:
    """Profile what `program` launches between cuProfilerStart and cuProfilerStop into an `.ncu-rep` file.

    It runs in a folder of its own, which is removed afterwards: paths in it are absolute. Raises DeviceError when there
    is no report.
    """
    command = [find_ncu(), "--set", "full", "--clock-control", "none", "--profile-from-start", "off"]
    command += ["--target-processes", "application-only", "--force-overwrite"]
    command += ["--export", str(file.resolve().with_suffix("")), *program]
    file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="mctskernel-ncu-") as scratch:
        # The program locks a file in TMPDIR for ncu, and may write in its own folder alone.
        environment = environment_without_secrets() | {
            "PYTHONPATH": worker_environment(Path(scratch))["PYTHONPATH"],
            "TMPDIR": scratch,
        }
        with subprocess.Popen(  # noqa: S603 - ncu, and our own interpreter and module
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=scratch,
            env=environment,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT_SECONDS)
            except BaseException as error:
                end_session(process.pid)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise DeviceError(f"ncu was not done after {LIMIT_SECONDS:g} s.") from error
    if not file.is_file():
        raise DeviceError(explanation(output.splitlines()))


def explanation(output: Iterable[str]) -> str:
    """Why there is no report, in a sentence, from what ncu and the program printed."""
    lines = [line.strip() for line in output if line.strip()]
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        return COUNTERS_FORBIDDEN
    for line in lines:
        if line.startswith(COMPLAINT):
            return f"The kernel can't be profiled: {line.removeprefix(COMPLAINT)}"
    errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR== ")]
    reason = (errors or lines or ["it printed nothing"])[0].rstrip(".")
    return f"ncu made no report: {reason}."


def read_findings(file: Path) -> tuple[Finding, ...]:
    """What the rules say in a report, the largest estimated gain first. Raises DeviceError."""
    done = subprocess.run(  # noqa: S603 - ncu, and a report of ours
        [find_ncu(), "--import", str(file), "--page", "details", "--csv"],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=READ_SECONDS,
    )
    if done.returncode:
        raise DeviceError(explanation([*done.stdout.splitlines(), *done.stderr.splitlines()]))
    return parse_findings(done.stdout)


def parse_findings(text: str) -> tuple[Finding, ...]:
    """The findings in the details page of a report as CSV, the largest estimated gain first.

    Rows of metrics end early and other lines may stand before the table: neither matters.
    """
    lines = text.splitlines(keepends=True)
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = csv.DictReader(lines[start:], restval="")
    found = [
        Finding(
            kernel=row.get("Kernel Name", ""),
            rule=row["Rule Name"],
            sentence=" ".join(row.get("Rule Description", "").split()),
            speedup=_percent(row.get("Estimated Speedup", "")),
            local=row.get("Estimated Speedup Type", "") == "local",
        )
        for row in rows
        if row.get("Rule Name") and row.get("Rule Description")
    ]
    return tuple(sorted(found, key=lambda finding: (finding.local, -finding.speedup)))


def _percent(text: str) -> float:
    try:
        return float(text.replace(",", "")) / 100.0
    except ValueError:
        return 0.0
