"""Verification without a GPU: cases are emulated whole, and sampled blocks where that takes too long.

Beside a GPU, which decides whether results are right, only what it may hide is looked for (`DefectCheck`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, shape_label
from mctskernel.core.task_file import task_of
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.emulation import BlockOrder, Stopped, emulable, emulated_outputs, failed
from mctskernel.profiling.emulator import GlobalMemory, Limits, Module
from mctskernel.profiling.guardrails import worn_check
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.ptx_text import used_variables
from mctskernel.profiling.sampled_blocks import check_blocks
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import Case, check_outputs, draw_verification

LARGE_BYTES = 16 << 20
"""Inputs and outputs of a verify shape beyond which it is emulated in samples, with drawn values only."""

LIMITS = Limits(lane_instructions=100_000_000, block_executions=100_000, seconds=10.0)
"""Beyond these, sampled blocks of a launch are emulated; the built-in kernels stay far below at their verify shapes."""

WEARING_RUNS = 24
WEARING_CASES = 4
"""How many runs in a row a kernel with variables makes, unless a turn changes nothing, and of how many cases."""


@dataclass(frozen=True)
class Drawn:
    """What a task is verified on without a GPU: cases, and shapes that are too large for them. `seed` is theirs."""

    cases: tuple[Case, ...]
    large: tuple[Shape, ...] = ()
    seed: int = 0


def draw(task: Task, seed: int) -> Drawn:
    """The cases of the verify shapes, but for those that are large."""
    small = tuple(each for each in task.verify_shapes if task.compulsory_bytes(each) <= LARGE_BYTES)
    large = tuple(each for each in task.verify_shapes if each not in small)
    return Drawn(draw_verification(replace(task, verify_shapes=small), seed) if small else (), large, seed)


@dataclass(frozen=True)
class Emulated:
    """How the emulated verification ended: checks up to the first failure, and `notes` on what was sampled."""

    outcome: Outcome
    checks: tuple[Check, ...]
    message: str = ""
    guard: Guard | None = None
    notes: tuple[str, ...] = ()


def emulate(task: Task, candidate: Candidate, modules: Sequence[Module], drawn: Drawn) -> Emulated:
    """Run every case until one fails; `modules` are the candidate's builds, their PTX parsed.

    Every other case runs the blocks from the last to the first: a kernel must be correct in either order.
    """
    checks: list[Check] = []
    whole: list[Case] = []
    large = list(drawn.large)
    for case, order in zip(drawn.cases, itertools.cycle(BlockOrder), strict=False):
        if case.shape in large:
            continue
        outcome, check = _checked(task, candidate, modules, case, order)
        if outcome is Outcome.TIMEOUT and all(each.shape != case.shape for each in whole):
            large.append(case.shape)
            continue
        whole.append(case)
        checks.append(check)
        if outcome is not Outcome.OK:
            return _ended(outcome, checks)
    if whole and (kept := _kept_variables(candidate, modules)):
        checks.append(_worn(task, candidate, modules, whole, kept))
        if not checks[-1].passed:
            return _ended(Outcome.WRONG_RESULT, checks)
    return _sampled(task, candidate, modules, large, drawn.seed, checks)


def _sampled(  # noqa: PLR0917 - what runs, from the outside in
    task: Task,
    candidate: Candidate,
    modules: Sequence[Module],
    shapes: Sequence[Shape],
    seed: int,
    checks: list[Check],
) -> Emulated:
    """The verdict on sampled blocks at large shapes, after the checks at others."""
    notes: list[str] = []
    for shape in shapes:
        found = check_blocks(task, shape, seed, candidate, modules)
        if found.note:
            notes.append(f"at {shape_label(shape) or 'its own size'}: {found.note}")
        if found.check is None:
            break
        checks.append(found.check)
        if found.outcome is not Outcome.OK:
            return _ended(found.outcome, checks)
    return Emulated(Outcome.OK, tuple(checks), notes=tuple(notes))


def _ended(outcome: Outcome, checks: Sequence[Check]) -> Emulated:
    return Emulated(outcome, tuple(checks), checks[-1].message, checks[-1].guard)


def _checked(
    task: Task, candidate: Candidate, modules: Sequence[Module], case: Case, order: BlockOrder
) -> tuple[Outcome, Check]:
    """The verdict on all blocks of a case, run in this order."""
    try:
        outputs = emulated_outputs(task, candidate, modules, case, order=order, limits=LIMITS)
    except MemoryError:  # sampled blocks may need less
        return Outcome.TIMEOUT, failed(case, "Emulating it takes too much memory.", Guard.MEMORY_LIMIT)
    if isinstance(outputs, Stopped):
        return outputs.outcome, outputs.check
    check = check_outputs(case, outputs)
    if not check.passed and order is BlockOrder.DESCENDING:
        check = replace(check, message=f"{check.message} The blocks ran from the last to the first.")
    return Outcome.OK if check.passed else Outcome.WRONG_RESULT, check


def _kept_variables(candidate: Candidate, modules: Sequence[Module]) -> set[str]:
    """The names of `__device__` variables, which keep their values between launches."""
    used = {name for made in candidate.builds for name in used_variables(made.ptx)}
    functions = [
        each for module in modules for each in (*module.entries.values(), *module.functions.values())
    ]
    declared = [module.variables for module in modules] + [function.variables for function in functions]
    return used & {variable.name for each in declared for variable in each if variable.space == "global"}


def _worn(
    task: Task, candidate: Candidate, modules: Sequence[Module], cases: Sequence[Case], names: set[str]
) -> Check:
    """Repeat the small cases without resetting `__device__` variables in between, as a program would."""
    small = cases[:WEARING_CASES]
    kept: dict[str, bytes] = {}
    a_turn_ago = kept
    for runs in range(WEARING_RUNS):
        case, memory = small[runs % len(small)], GlobalMemory()
        outputs = emulated_outputs(
            task, candidate, modules, case, limits=LIMITS, memory=memory, variables=kept
        )
        check = outputs.check if isinstance(outputs, Stopped) else check_outputs(case, outputs)
        if not check.passed:
            return worn_check(check, runs)
        kept = {buffer.name: buffer.data.tobytes() for buffer in memory if buffer.name in names}
        if case is small[0]:
            if kept == a_turn_ago:
                break
            a_turn_ago = kept
    return check


CHECK_SECONDS = 4.0  # processor time of a check for defects
CASES = 6  # about how many cases of each shape a verification has
TORCH_SECONDS = 1.5  # what the expected results of a reference in PyTorch take, the import included

PARTLY = "The emulator checked the kernel for races at"
"""How the flag begins on a kernel for which there was not time enough."""


class DefectCheck:
    """Emulates kernels for what a GPU may hide: races, bad accesses, inputs that are written. Results aren't compared.

    Each verify shape is emulated on drawn inputs, the smallest first; then all cases of the verification, where what
    the shapes took says that there is time for them. A flag says where there was none for all shapes.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        self._task, self._seed = task_of(spec), spec.seed
        # PTX is all that is emulated, and half the work of compiling.
        self._architecture = load_architecture(spec.architecture).architecture.replace("sm", "compute")

    def evaluate(self, kernel: Kernel) -> Evaluation:
        """The first defect that is found; a timeout where there was no time for a single shape."""
        stages, began = Stages(), time.process_time()
        try:
            candidate = prepare(self._task, kernel, self._architecture, stages)
            found = emulable(self._task, candidate, stages)
        except RefusedError as refusal:
            return refusal.evaluation(Source.MODELLED)
        with stages.timed("verify"):
            verified = self._checked(found.candidate, found.modules, began + CHECK_SECONDS)
        flags = (*([found.note] if found.note else []), *verified.notes)
        return Evaluation(
            verified.outcome, Source.MODELLED, verified.message, flags=flags, guard=verified.guard
        )

    def fingerprint(self) -> dict[str, str]:
        return {"device": "model", "architecture": self._architecture}

    def _checked(self, candidate: Candidate, modules: Sequence[Module], deadline: float) -> Emulated:
        task, seed, began = self._task, self._seed, time.process_time()
        shapes = sorted(task.verify_shapes, key=task.compulsory_bytes)
        for done, (shape, order) in enumerate(zip(shapes, itertools.cycle(BlockOrder), strict=False)):
            case = Case(shape, seed, Values.DRAWN, task.draw_inputs(shape, seed), {}, {}, {})
            limits = replace(LIMITS, seconds=max(0.0, deadline - time.process_time()))
            stopped = emulated_outputs(task, candidate, modules, case, order=order, limits=limits)
            if not isinstance(stopped, Stopped):
                continue
            if stopped.outcome is not Outcome.TIMEOUT:
                return _ended(stopped.outcome, [stopped.check])
            slow = f"for {shape_label(shape)} it was too slow."
            if not done:
                return Emulated(Outcome.TIMEOUT, (), slow)
            return Emulated(Outcome.OK, (), notes=(f"{PARTLY} {done} of {len(shapes)} shapes; {slow}",))
        wanted = CASES * (time.process_time() - began) + (TORCH_SECONDS if task.takes_tensors else 0.0)
        if time.process_time() + wanted > deadline:
            return Emulated(Outcome.OK, ())
        return emulate(task, candidate, modules, draw(task, seed))
