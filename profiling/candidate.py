"""From a kernel to something that can be launched at every shape of its task, for every language and device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Resources, Source
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import (
    LaunchPlanError,
    ResolvedLaunch,
    ResolvedPlan,
    ResolvedScratch,
)
from mctskernel.core.task import Shape, Task
from mctskernel.profiling.architecture import Architecture, occupancy
from mctskernel.profiling.build import Build, BuildFailure, build
from mctskernel.profiling.guardrails import library_reason
from mctskernel.profiling.ptx_text import (
    TENSOR_MAP_BYTES,
    bind,
    parameter_types,
    variable_bytes,
    waits_for_grids,
)
from mctskernel.profiling.source_rules import rejection, unreadable
from mctskernel.profiling.stages import Stages

MAX_VARIABLE_BYTES = 1 << 30
"""What the `__device__` and `__constant__` variables of a kernel may take in all, on every device."""


@dataclass(frozen=True)
class Specialised:
    """The builds of a kernel's launches.

    `launches` maps each launch as the plan has it to the one that is made, whose shared memory and arguments are what
    the compiled code wants, and to the index of its build. `scratch` is a buffer that the compiler wants for a launch.
    """

    builds: tuple[Build, ...]
    launches: Mapping[ResolvedLaunch, tuple[ResolvedLaunch, int]]
    scratch: Mapping[ResolvedLaunch, ResolvedScratch] = field(default_factory=dict)

    def plan(self, written: ResolvedPlan) -> ResolvedPlan:
        """The plan with launches as they are made, and the largest of the buffers that they want."""
        wanted = [self.scratch[launch] for launch in written.launches if launch in self.scratch]
        largest = sorted(wanted, key=lambda each: each.nbytes)[-1:]
        launches = tuple(self.launches[launch][0] for launch in written.launches)
        return replace(written, launches=launches, scratch=(*written.scratch, *largest))


@dataclass(frozen=True)
class Candidate:
    """A kernel that was built: its launches at each of the task's shapes, and the machine code of each launch.

    `plans` are in the order of `Task.shapes`. CUDA C++ is built once; Triton once for each specialisation that a
    shape needs. Plain data, so that it can be sent to another process.
    """

    kernel: Kernel
    plans: tuple[ResolvedPlan, ...]
    builds: tuple[Build, ...]
    built: tuple[tuple[ResolvedLaunch, int], ...]

    def at(self, task: Task, shape: Shape) -> ResolvedPlan:
        """The launches at one of the task's shapes."""
        return self.plans[task.shapes.index(shape)]

    def build_of(self, launch: ResolvedLaunch) -> Build:
        """The machine code of one of the candidate's launches."""
        return self.builds[self.index_of(launch)]

    def index_of(self, launch: ResolvedLaunch) -> int:
        """Which of the builds a launch runs."""
        return self._index[launch]

    def entry_of(self, launch: ResolvedLaunch) -> str:
        """The name of a launch's function in its machine code."""
        return self.build_of(launch).entries[launch.kernel]

    def arguments(self, launch: ResolvedLaunch, addresses: Mapping[str, int | bytes]) -> tuple[bytes, ...]:
        """The bytes of each of a launch's arguments, given where the buffers are, and the encoded tensor maps."""
        types = parameter_types(self.build_of(launch).ptx, self.entry_of(launch))
        return bind(launch, types, addresses)

    @property
    def resources(self) -> tuple[Resources, ...]:
        """The compiler's report on what runs at the first search shape, each function once."""
        indices = dict.fromkeys(self.index_of(launch) for launch in self.plans[0].launches)
        return tuple(dict.fromkeys(found for index in indices for found in self.builds[index].resources))

    @property
    def log(self) -> str:
        """The compiler's messages on all of it."""
        return "\n".join(dict.fromkeys(made.log for made in self.builds if made.log))

    @cached_property
    def _index(self) -> Mapping[ResolvedLaunch, int]:
        return dict(self.built)


class RefusedError(Exception):
    """A kernel that can't be evaluated any further; carries the outcome and the guard that rejected it."""

    def __init__(
        self, outcome: Outcome, guard: Guard, message: str, candidate: Candidate | None = None, log: str = ""
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.guard = guard
        self.message = message
        self.log = candidate.log if candidate is not None else log
        self.resources = candidate.resources if candidate is not None else ()

    def evaluation(self, source: Source) -> Evaluation:
        """The refusal as an evaluation."""
        return Evaluation(
            self.outcome, source, self.message, resources=self.resources, log=self.log, guard=self.guard
        )


def prepare(
    task: Task, kernel: Kernel, architecture: str, stages: Stages, *, emulated: bool = False
) -> Candidate:
    """Guard and build a kernel, and check its launch plan at every shape of the task.

    One that is only to be `emulated` as built for another GPU needs nothing that this one lacks. Raises RefusedError,
    and DeviceError on a machine without the kernel's compiler.
    """
    if reason := rejection(kernel):
        raise RefusedError(Outcome.REJECTED, Guard.SOURCE_RULES, reason)
    if reason := unreadable(kernel):
        raise RefusedError(Outcome.BUILD_ERROR, Guard.COMPILER, reason)
    plans = _plans(task, kernel)
    with stages.timed("build"):
        made = _build(task, kernel, plans, architecture)
    if isinstance(made, BuildFailure):
        raise RefusedError(Outcome.BUILD_ERROR, Guard.COMPILER, made.message, log=made.log)
    ready = tuple(map(made.plan, plans))
    candidate = Candidate(kernel, ready, made.builds, tuple(made.launches.values()))
    if reason := next((found for each in made.builds if (found := library_reason(each.ptx))), ""):
        raise RefusedError(Outcome.REJECTED, Guard.FOREIGN_CALLS, reason, candidate)
    if max(variable_bytes(each.ptx) for each in made.builds) > MAX_VARIABLE_BYTES:
        message = f"The kernel's device variables take more than {MAX_VARIABLE_BYTES >> 30} GiB of memory."
        raise RefusedError(Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, message, candidate)
    try:
        for plan in ready:
            for launch in plan.launches:
                candidate.arguments(launch, unbound(task, plan))
            if not emulated:
                _check_overlap(candidate, plan)
                _check_hopper(plan, architecture)
    except LaunchPlanError as error:
        raise RefusedError(Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, str(error), candidate) from error
    return candidate


def unbound(task: Task, plan: ResolvedPlan) -> dict[str, int | bytes]:
    """A null pointer for each buffer and an empty tensor map for each map: arguments before there are addresses."""
    buffers = (*task.buffer_names, *(each.name for each in plan.scratch))
    return {**dict.fromkeys(buffers, 0), **{each.name: bytes(TENSOR_MAP_BYTES) for each in plan.tensor_maps}}


def _check_overlap(candidate: Candidate, plan: ResolvedPlan) -> None:
    """Raise LaunchPlanError for a programmatic launch that never waits for the one before it: they would race."""
    for launch in plan.launches:
        if launch.programmatic and not waits_for_grids(
            candidate.build_of(launch).ptx, candidate.entry_of(launch)
        ):
            raise LaunchPlanError(
                f"The launch of '{launch.kernel}' is programmatic, but the kernel doesn't wait for the one before it: "
                'asm volatile("griddepcontrol.wait;" ::: "memory") does.'
            )


def _check_hopper(plan: ResolvedPlan, architecture: str) -> None:
    """Raise LaunchPlanError for what GPUs before compute capability 9.0 don't have."""
    needs = {
        "clusters": any(launch.cluster != (1, 1, 1) for launch in plan.launches),
        "programmatic launches": any(launch.programmatic for launch in plan.launches),
        "tensor maps": not all(each.optional for each in plan.tensor_maps),
    }
    lacking = next((name for name, needed in needs.items() if needed), "")
    if lacking and int(re.sub(r"\D", "", architecture)) < HOPPER:
        raise LaunchPlanError(
            f"The launch plan asks for {lacking}, which {architecture} doesn't have; sm_90 has."
        )


HOPPER = 90  # the number of the first architecture with clusters, programmatic launches and TMA


def _plans(task: Task, kernel: Kernel) -> tuple[ResolvedPlan, ...]:
    try:
        return tuple(task.resolved(kernel, shape) for shape in task.shapes)
    except LaunchPlanError as error:
        raise RefusedError(Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, str(error)) from error


def _build(
    task: Task, kernel: Kernel, plans: Sequence[ResolvedPlan], architecture: str
) -> Specialised | BuildFailure:
    """Build for the plans, which are in the order of the task's shapes."""
    if kernel.language is Language.TRITON:
        # Imported here: Triton takes half a second to import, and CUDA C++ doesn't need it.
        try:
            from mctskernel.profiling.triton.build import build_triton  # noqa: PLC0415 - as said above
        except ModuleNotFoundError as error:
            raise DeviceError("Triton is not installed here: pip install 'mctskernel[triton]'.") from error

        dtypes = {tensor.name: tensor.dtype for tensor in (*task.inputs, *task.outputs)}
        return build_triton(kernel, plans, len(task.search_shapes), architecture, dtypes)
    launches = [launch for plan in plans for launch in plan.launches]
    made = build(kernel, tuple(dict.fromkeys(launch.kernel for launch in launches)), architecture)
    return (
        made
        if isinstance(made, BuildFailure)
        else Specialised((made,), {each: (each, 0) for each in launches})
    )


def check_block(
    launch: ResolvedLaunch, resources: Resources, max_threads: int | None, max_shared_bytes: int, name: str
) -> None:
    """Raise LaunchPlanError, with a sentence, for blocks of more threads or shared memory than there may be.

    `max_threads` is what the kernel's registers and `__launch_bounds__` allow, if that is known; `name` the GPU's.
    """
    what = f"The launch of '{launch.kernel}'"
    if max_threads is not None and launch.threads > max_threads:
        raise LaunchPlanError(
            f"{what} has blocks of {launch.threads} threads; its registers and __launch_bounds__ allow {max_threads}."
        )
    shared = resources.shared_bytes + launch.shared_bytes
    if shared > max_shared_bytes:
        raise LaunchPlanError(
            f"{what} takes {shared} bytes of shared memory a block ({resources.shared_bytes} static, "
            f"{launch.shared_bytes} dynamic); {name} has {max_shared_bytes}."
        )


def check_launch(
    launch: ResolvedLaunch, resources: Resources, max_threads: int | None, gpu: Architecture
) -> None:
    """As `check_block` on a GPU that isn't there, and for blocks of which no SM has registers for one."""
    check_block(launch, resources, max_threads, gpu.limits.max_shared_bytes_per_block, gpu.name)
    what = f"The launch of '{launch.kernel}'"
    shared = resources.shared_bytes + launch.shared_bytes
    if occupancy(gpu, launch.threads, resources.registers, shared).blocks < 1:
        raise LaunchPlanError(
            f"{what} takes {resources.registers} registers in each of {launch.threads} threads; "
            f"{gpu.name} has {gpu.limits.registers} for a block."
        )
