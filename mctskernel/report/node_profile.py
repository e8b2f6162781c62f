"""Nsight Compute's report on one node of a run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Outcome
from mctskernel.core.user_errors import RunError
from mctskernel.profiling.gpu.cuda_driver import describe_gpu
from mctskernel.profiling.gpu.cupti import COUNTERS_FORBIDDEN
from mctskernel.profiling.ncu_target import Freedom
from mctskernel.profiling.processes.child_process import environment_without_secrets, worker_environment
from mctskernel.profiling.processes.sessions import end_session
from mctskernel.report.view import View
from mctskernel.run import write_text

PROFILABLE = frozenset({Outcome.OK, Outcome.WRONG_RESULT, Outcome.RACE})
"""Outcomes of kernels that run to their end."""

LIMIT_SECONDS = 600.0
"""How long a report may take. A kernel runs about 40 times for one, with its memory restored in between."""


def profile_node(view: View, number: int) -> tuple[Path, str, bool]:
    """Run a node's kernel under `ncu`; the report stays in the run folder, the kernel's text beside it.

    Returns the report, its page of details with what Nsight Compute's rules find, and whether the kernel ran in a
    confined process: not where ncu can't attach to one.

    Raises RunError for a node that never ran, and DeviceError for a machine without `ncu`, a GPU or the permission to
    read its counters.
    """
    view.refuse_recorded()
    evaluation = view.evaluation(number)
    if evaluation.outcome not in PROFILABLE:
        raise RunError(
            f"Node {number} of {view.folder.path} never ran to its end ({evaluation.outcome}), so there is nothing to "
            f"profile: {evaluation.message or 'no reason is recorded.'}"
        )
    describe_gpu()
    source = view.folder.profiles / f"{number}{view.node(number).kernel.language.suffix}"
    write_text(source, view.source(number))
    is_confined = True
    try:
        report = _write_report(view, source, Freedom.CONFINED)
    except DeviceError:
        # What fails while the starting kernel can be profiled is the kernel's own fault.
        if _works(view):
            raise
        is_confined = False
        report = _write_report(view, source, Freedom.FREE)
    details = _run_ncu("--import", str(report), "--page", "details")
    return report, details, is_confined


def _write_report(view: View, source: Path, freedom: Freedom) -> Path:
    """Profile what a kernel launches between cuProfilerStart and cuProfilerStop. Raises DeviceError."""
    report = source.with_suffix(".ncu-rep").resolve()
    report.unlink(missing_ok=True)
    seed = str(view.manifest.configuration.seed)
    printed = _run_ncu(
        *("--set", "full", "--clock-control", "none", "--profile-from-start", "off"),
        *("--target-processes", "application-only", "--export", str(report.with_suffix(""))),
        *(sys.executable, "-P", "-m", "mctskernel.profiling.ncu_target"),
        *(str(view.folder.task.resolve()), str(source.resolve()), seed, freedom.value),
    )
    if not report.is_file():
        if "ERR_NVGPUCTRPERM" in printed:
            raise DeviceError(COUNTERS_FORBIDDEN)
        raise DeviceError(f"ncu made no report: {' '.join(printed.split())[-500:] or 'it printed nothing'}")
    return report


def _run_ncu(*arguments: str) -> str:
    """What `ncu` prints, run in a folder of its own. Raises DeviceError."""
    program = shutil.which("ncu")
    if program is None:
        raise DeviceError(
            "ncu is not on the PATH: install NVIDIA Nsight Compute, or add its folder to the PATH "
            "(in a CUDA toolkit it is bin/)."
        )
    with tempfile.TemporaryDirectory(prefix="mctskernel-ncu-") as scratch:
        # The program locks a file in TMPDIR for ncu, and may write in its own folder alone.
        environment = environment_without_secrets() | {
            "PYTHONPATH": worker_environment(Path(scratch))["PYTHONPATH"],
            "TMPDIR": scratch,
        }
        with subprocess.Popen(  # noqa: S603 - ncu, and our own interpreter and module
            (program, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=scratch,
            env=environment,
            start_new_session=True,
        ) as process:
            try:
                return process.communicate(timeout=LIMIT_SECONDS)[0]
            except BaseException as error:
                end_session(process.pid)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise DeviceError(f"ncu was not done after {LIMIT_SECONDS:g} s.") from error


def _works(view: View) -> bool:
    """Whether the starting kernel can be profiled in a confined process."""
    start = view.folder.profiles / f"start{view.node(0).kernel.language.suffix}"
    write_text(start, view.source(0))
    try:
        _write_report(view, start, Freedom.CONFINED)
    except DeviceError:
        return False
    finally:
        start.with_suffix(".ncu-rep").unlink(missing_ok=True)
        start.unlink()
    return True
