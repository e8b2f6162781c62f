"""Nsight Compute's report on one node of a run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Diagnosis, Outcome, Source
from mctskernel.profiling.gpu.cuda_driver import describe_gpu
from mctskernel.profiling.ncu import Finding, find_ncu, read_findings, write_report
from mctskernel.profiling.replay import Freedom
from mctskernel.report.view import View
from mctskernel.run import RunError, write_text

PROFILABLE = frozenset({Outcome.OK, Outcome.WRONG_RESULT, Outcome.RACE})
"""Outcomes of kernels that run to their end."""


@dataclass(frozen=True)
class NodeProfile:
    """A node's report on disk, what its rules say, and what the run's own evaluation says.

    `is_confined` is False where ncu can't attach to a confined process.
    """

    report: Path
    findings: tuple[Finding, ...]
    diagnosis: Diagnosis | None
    source: Source
    is_confined: bool


def profile_node(view: View, number: int) -> NodeProfile:
    """Run a node's kernel under `ncu`; the report stays in the run folder, the kernel's text beside it.

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
    find_ncu()
    describe_gpu()
    report = view.folder.profiles / f"{number}.ncu-rep"
    source = report.with_suffix(view.node(number).kernel.language.suffix)
    write_text(source, view.source(number))
    is_confined = True
    try:
        write_report(report, _replay(view, source, Freedom.CONFINED))
    except DeviceError:
        start = report.with_name(f"start{view.node(0).kernel.language.suffix}")
        write_text(start, view.source(0))
        if _works(view, start):
            raise
        is_confined = False
        write_report(report, _replay(view, source, Freedom.FREE))
    return NodeProfile(report, read_findings(report), evaluation.diagnosis, evaluation.source, is_confined)


def _replay(view: View, source: Path, freedom: Freedom) -> list[str]:
    program = [sys.executable, "-P", "-m", "mctskernel.profiling.replay"]
    seed = str(view.manifest.configuration.seed)
    return [*program, str(view.folder.task.resolve()), str(source.resolve()), seed, freedom.value]


def _works(view: View, start: Path) -> bool:
    """Whether the starting kernel can be profiled in a confined process."""
    report = start.with_suffix(".ncu-rep")
    try:
        write_report(report, _replay(view, start, Freedom.CONFINED))
    except DeviceError:
        return False
    finally:
        report.unlink(missing_ok=True)
        start.unlink(missing_ok=True)
    return True
