"""Run kernels without a GPU: their PTX is emulated with every check on."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.evaluation import Check, Guard, Outcome
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan
from mctskernel.core.task import Array, Shape, Task, shape_label
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare, unbound
from mctskernel.profiling.emulator import (
    Execution,
    Finding,
    Geometry,
    GlobalMemory,
    Limits,
    Module,
    UnsupportedPtxError,
    execute,
    parse_ptx,
    unsupported,
)
from mctskernel.profiling.input_values import poison
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case

MAX_THREADS = 1 << 26
"""More threads than this in one launch are not emulated; the largest verify shape takes far fewer."""

VERDICTS: Mapping[str, tuple[Outcome, Guard]] = {
    # The first of several is the most important one.
    "unsupported": (Outcome.UNVERIFIABLE, Guard.EMULATOR),
    "limit": (Outcome.TIMEOUT, Guard.TIME_LIMIT),
    # What a GPU answers with an error, if it is lucky.
    "out_of_bounds": (Outcome.CRASH, Guard.MEMORY_CHECKS),
    "misaligned": (Outcome.CRASH, Guard.MEMORY_CHECKS),
    "trap": (Outcome.CRASH, Guard.EMULATOR),
    "race": (Outcome.RACE, Guard.RACE_CHECKS),
    # Undefined behaviour, which ends without an error on a GPU.
    "divergent_barrier": (Outcome.WRONG_RESULT, Guard.RACE_CHECKS),
    "divergent_warp": (Outcome.WRONG_RESULT, Guard.RACE_CHECKS),
    "uninitialised_read": (Outcome.WRONG_RESULT, Guard.MEMORY_CHECKS),
    "write_to_readonly": (Outcome.WRONG_RESULT, Guard.UNTOUCHED_INPUTS),
}
"""The outcome of each kind of finding, and the guard that made it."""


def most_important(findings: Sequence[Finding]) -> tuple[Finding, Outcome, Guard]:
    """The first of several findings in the order of `VERDICTS`, and what it means."""
    first = min(findings, key=lambda finding: list(VERDICTS).index(finding.kind))
    return (first, *VERDICTS[first.kind])


class BlockOrder(enum.Enum):
    """The order in which blocks of a launch start; a GPU guarantees none."""

    ASCENDING = 1
    DESCENDING = -1

    @property
    def head_start(self) -> int:
        """How many blocks run far ahead of the others."""
        return 1 if self is BlockOrder.DESCENDING else 0


@dataclass(frozen=True)
class Stopped:
    """Why a kernel did not complete correctly: the emulator's findings."""

    outcome: Outcome
    check: Check
    findings: tuple[Finding, ...] = ()


def emulated_outputs(
    task: Task,
    candidate: Candidate,
    modules: Sequence[Module],
    case: Case,
    *,
    order: BlockOrder = BlockOrder.ASCENDING,
    limits: Limits,
    memory: GlobalMemory | None = None,
    variables: Mapping[str, bytes] | None = None,
) -> dict[str, Array] | Stopped:
    """Run a kernel once on a case's inputs; `variables` are what earlier runs left in `__device__` variables."""
    placed = place(
        task, candidate, modules, case.shape, case.inputs, GlobalMemory() if memory is None else memory
    )
    for name, data in (variables or {}).items():
        placed.memory.add(name, np.frombuffer(data, np.uint8))
    for launch in placed.plan.launches:
        if launch.blocks * launch.threads > MAX_THREADS:
            message = (
                f"At {case.label}, '{launch.kernel}' is launched with {launch.blocks * launch.threads:,} "
                f"threads, more than the {MAX_THREADS:,} that are emulated."
            )
            return Stopped(Outcome.TIMEOUT, failed(case, message, Guard.LAUNCH_LIMITS))
        blocks = range(launch.blocks)[:: order.value]
        execution = placed.run(launch, blocks, limits=limits, head_start=order.head_start)
        if execution.findings:
            return _explained(case, launch.kernel, execution.findings)
    return {
        output.name: placed.memory.array(output.name, numpy_dtype(output.dtype)).reshape(
            output.extents(case.shape)
        )
        for output in task.outputs
    }


@dataclass(frozen=True)
class Placed:
    """A candidate's plan at one shape, with its buffers in the emulator's memory."""

    candidate: Candidate
    modules: Sequence[Module]
    plan: ResolvedPlan
    memory: GlobalMemory
    addresses: Mapping[str, int | bytes]

    def module(self, launch: ResolvedLaunch) -> Module:
        """The PTX of a launch."""
        return self.modules[self.candidate.index_of(launch)]

    def run(
        self, launch: ResolvedLaunch, blocks: Sequence[int], *, limits: Limits, head_start: int = 0
    ) -> Execution:
        """Run blocks of a launch, in this order; `head_start` of them run far ahead of the others."""
        return execute(
            self.module(launch),
            self.candidate.entry_of(launch),
            Geometry(launch.grid, launch.block, launch.shared_bytes),
            self.candidate.arguments(launch, self.addresses),
            self.memory,
            blocks=blocks,
            head_start=head_start,
            limits=limits,
        )


def place(  # noqa: PLR0917 - what a plan runs on, from the outside in
    task: Task,
    candidate: Candidate,
    modules: Sequence[Module],
    shape: Shape,
    inputs: Mapping[str, Array],
    memory: GlobalMemory,
) -> Placed:
    """Put inputs, poisoned outputs and scratch buffers of a plan at one shape into memory."""
    plan = candidate.at(task, shape)
    addresses: dict[str, int | bytes] = unbound(task, plan)
    addresses |= {
        name: memory.add(name, array, writable=name in task.in_place) for name, array in inputs.items()
    }
    for output in task.outputs:
        if output.name not in task.in_place:
            blank = poison(output.dtype, output.extents(shape))
            addresses[output.name] = memory.add(output.name, blank, initialised=False)
    for scratch in plan.scratch:
        blank = np.full(scratch.nbytes, 0 if scratch.zero else 0xCB, np.uint8)
        addresses[scratch.name] = memory.add(scratch.name, blank, initialised=scratch.zero)
    return Placed(candidate, modules, plan, memory, addresses)


def _explained(case: Case, kernel: str, findings: Sequence[Finding]) -> Stopped:
    first, outcome, guard = most_important(findings)
    message = f"At {case.label}, '{kernel}': {first.message}."
    others = len(findings) - 1
    if others:
        message += f" ({others} more finding{'s' if others > 1 else ''}.)"
    return Stopped(outcome, failed(case, message, guard), tuple(findings))


def failed(case: Case, message: str, guard: Guard) -> Check:
    return Check(
        shape_label(case.shape), case.seed, passed=False, error=float("inf"), message=message, guard=guard
    )


EMULATED_ARCHITECTURE = "sm_80"
"""The architecture for which kernels are built where the emulator lacks instructions of a newer GPU."""

STAND_IN = "emulated as compiled for"  # how the note begins on a kernel that was built for that one
RECENT = 4  # parsed modules that are cached: a kernel is verified, and perhaps validated later


@dataclass(frozen=True)
class Emulable:
    """A candidate with the PTX of its builds parsed; `note` is a note if it was built for another GPU.

    `native` is then the kernel as it is built for its own GPU, where its PTX can be parsed: its registers and shared
    memory decide whether it can be launched.
    """

    candidate: Candidate
    modules: tuple[Module, ...]
    note: str = ""
    native: Emulable | None = None


def emulable(task: Task, candidate: Candidate, stages: Stages, why: str = "") -> Emulable:
    """The candidate with its PTX parsed, or its kernel built for an older GPU. Raises RefusedError if neither runs.

    `why` says why it has to be the latter.
    """
    modules, unknown = _parsed(candidate)
    if not (unknown or why):
        return Emulable(candidate, modules)
    native = Emulable(candidate, modules) if modules else None
    message = _unverifiable(unknown) if unknown else f"{why[:1].upper()}{why[1:]}."
    # Without machine code where the candidate has none.
    kind = candidate.builds[0].architecture.partition("_")[0]
    try:
        older = prepare(
            task, candidate.kernel, EMULATED_ARCHITECTURE.replace("sm", kind), stages, emulated=True
        )
    except RefusedError as refusal:
        message += f" Nor does it build for {EMULATED_ARCHITECTURE}: {refusal.message}"
        raise RefusedError(Outcome.UNVERIFIABLE, Guard.EMULATOR, message, candidate) from refusal
    modules, still_unknown = _parsed(older)
    if still_unknown:
        message = _unverifiable(still_unknown)
        raise RefusedError(Outcome.UNVERIFIABLE, Guard.EMULATOR, message, candidate)
    why = why or f"the emulator doesn't know {unknown}"
    return Emulable(older, modules, f"{STAND_IN} {EMULATED_ARCHITECTURE}: {why}", native)


def _unverifiable(unknown: str) -> str:
    return (
        f"The emulator doesn't know {unknown}, so the kernel can't be verified here, which says nothing about it. With "
        "'#if __CUDA_ARCH__ >= 900' around what is unknown, and the same in plain CUDA C++ under '#else', it can be."
    )


@lru_cache(RECENT)
def _module(ptx: str) -> Module:
    """Kept with what the emulator makes of it. Raises UnsupportedPtxError."""
    return parse_ptx(ptx)


def _parsed(candidate: Candidate) -> tuple[tuple[Module, ...], str]:
    """The PTX of each build, and what of it the emulator can't run."""
    try:
        modules = tuple(_module(made.ptx) for made in candidate.builds)
    except UnsupportedPtxError as error:
        return (), str(error)
    launched = dict.fromkeys((index, candidate.entry_of(launch)) for launch, index in candidate.built)
    unknown = (unsupported(modules[index], entry) for index, entry in launched)
    return modules, next(filter(None, unknown), "")
