"""A candidate in a form that the emulator can run.

The emulator knows PTX up to `mma.sync` and `cp.async`. Where Triton writes more for a newer GPU (wgmma, TMA), the same
kernel is built for an older one beside it: what it computes is the same, how it is scheduled is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.emulator import Module, UnsupportedPtx, parse_ptx, unsupported
from mctskernel.profiling.stages import Stages

EMULATED_ARCHITECTURE = "sm_80"
"""What Triton kernels are built for where the emulator doesn't know what they use on a newer GPU."""

RECENT = 4
"""Modules that are kept: a kernel is prepared for its verification and once more for its last gate."""


@dataclass(frozen=True)
class Emulable:
    """A candidate with the PTX of each of its builds parsed; `remark` says so if it was built for another GPU.

    `native` is then the kernel as it is built for its own GPU, where its PTX can be read at all: it is what a
    price is made from, since machine code can be counted without emulating the PTX.
    """

    candidate: Candidate
    modules: tuple[Module, ...]
    remark: str = ""
    native: Emulable | None = None


def emulable(task: Task, candidate: Candidate, stages: Stages) -> Emulable:
    """The candidate itself, or its kernel built once more. Raises RefusedError where neither can be emulated."""
    modules, unknown = _parsed(candidate)
    if not unknown:
        return Emulable(candidate, modules)
    native = Emulable(candidate, modules) if modules else None
    message = f"The emulator doesn't know {unknown}, so the kernel can't be verified here."
    if candidate.kernel.language is not Language.TRITON:
        raise RefusedError(Outcome.REJECTED, Guard.EMULATOR, message, candidate)
    try:
        older = prepare(task, candidate.kernel, EMULATED_ARCHITECTURE, stages)
    except RefusedError as refusal:
        message += f" Nor does it build for {EMULATED_ARCHITECTURE}: {refusal.message}"
        raise RefusedError(Outcome.REJECTED, Guard.EMULATOR, message, candidate) from refusal
    modules, still_unknown = _parsed(older)
    if still_unknown:
        message = f"The emulator doesn't know {still_unknown}, so the kernel can't be verified here."
        raise RefusedError(Outcome.REJECTED, Guard.EMULATOR, message, candidate)
    remark = f"emulated as compiled for {EMULATED_ARCHITECTURE}: the emulator doesn't know {unknown}"
    return Emulable(older, modules, remark, native)


@lru_cache(RECENT)
def _module(ptx: str) -> Module:
    """Kept with what the emulator makes of it. Raises UnsupportedPtx."""
    return parse_ptx(ptx)


def _parsed(candidate: Candidate) -> tuple[tuple[Module, ...], str]:
    """The PTX of each build, and what of it the emulator can't run."""
    try:
        modules = tuple(_module(made.ptx) for made in candidate.builds)
    except UnsupportedPtx as error:
        return (), str(error)
    launched = dict.fromkeys((index, candidate.entry_of(launch)) for launch, index in candidate.built)
    unknown = (unsupported(modules[index], entry) for index, entry in launched)
    return modules, next(filter(None, unknown), "")
