"""What a kernel must pass on a GPU besides its evaluation before it is called best: two checks of memory and races.

compute-sanitizer watches the kernel on the GPU; the emulator runs its PTX at the held-out shapes with every check on.
Neither sees all that the other does, and where one can't be had its absence is a remark.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Guard
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import task_of
from mctskernel.profiling.emulation import GUARDS, OUTCOMES
from mctskernel.profiling.processes.workers import Worker
from mctskernel.profiling.sanitizer import sanitize

REFUSING = frozenset({Guard.MEMORY_CHECKS, Guard.RACE_CHECKS, Guard.UNTOUCHED_INPUTS})
"""What the emulator is believed on here. Whether a result is right, the GPU has told."""


def watched(evaluation: Evaluation, kernel: Kernel, spec: DeviceSpec) -> Evaluation:
    """The evaluation, refused where compute-sanitizer finds something. Nothing should be timed meanwhile."""
    found = sanitize(task_of(spec), kernel, seed=spec.seed, gpu=spec.gpu)
    evaluation = replace(evaluation, flags=(*evaluation.flags, *found.remarks))
    if not found.findings:
        return evaluation
    first = min(found.findings, key=lambda finding: list(OUTCOMES).index(finding.kind))
    return replace(
        evaluation,
        outcome=OUTCOMES[first.kind],
        message=f"compute-sanitizer: {first.message}",
        guard=GUARDS[first.kind],
    )


def emulated(evaluation: Evaluation, kernel: Kernel, spec: DeviceSpec) -> Evaluation:
    """The evaluation, refused where the emulator finds a defect that a GPU may hide."""
    # Where it is timed the GPU has judged every run, and the emulator would take a minute over some blocks.
    with closing(Worker(replace(spec, kind="model", trial=Trial.CHECK))) as worker:
        found = worker.evaluate(kernel)
    if found.ok:
        return evaluation
    if found.guard in REFUSING:
        return replace(
            evaluation, outcome=found.outcome, message=f"The emulator: {found.message}", guard=found.guard
        )
    remark = f"The emulator could not check the kernel for races: {found.message}"
    return replace(evaluation, flags=(*evaluation.flags, remark))
