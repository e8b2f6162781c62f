"""From a kernel to something that can be launched at every shape of its task, for every device."""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import LaunchPlan, LaunchPlanError, ResolvedPlan, plan_of, resolve
from mctskernel.core.task import Shape, Task
from mctskernel.profiling.arguments import bind, parameter_types
from mctskernel.profiling.build import Build, BuildFailure, build
from mctskernel.profiling.source_rules import breach
from mctskernel.profiling.stages import Stages


@dataclass(frozen=True)
class Candidate:
    """A kernel that was built, with its launch plan."""

    kernel: Kernel
    plan: LaunchPlan
    build: Build

    def resolve(self, task: Task, shape: Shape) -> ResolvedPlan:
        """The launch plan at one shape. Raises LaunchPlanError."""
        return resolve(self.plan, task.names(shape, self.kernel), task.buffer_names)

    def parameter_types(self, kernel: str) -> tuple[str, ...]:
        """The PTX types of the parameters of one of the plan's kernels."""
        return parameter_types(self.build.ptx, self.build.entries[kernel])


class RefusedError(Exception):
    """A kernel that can't be judged any further; carries the outcome."""

    def __init__(self, outcome: Outcome, message: str, build: Build | None = None, log: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log = build.log if build is not None else log
        self.resources = build.resources if build is not None else ()

    def evaluation(self, source: Source) -> Evaluation:
        """The refusal as an evaluation."""
        return Evaluation(self.outcome, source, self.message, resources=self.resources, log=self.log)


def prepare(task: Task, kernel: Kernel, architecture: str, stages: Stages) -> Candidate:
    """Guard and build a kernel, and check its launch plan at every shape of the task. Raises RefusedError."""
    if reason := breach(kernel):
        raise RefusedError(Outcome.REJECTED, reason)
    try:
        plan = plan_of(kernel)
    except LaunchPlanError as error:
        raise RefusedError(Outcome.LAUNCH_ERROR, str(error)) from error
    with stages.timed("build"):
        made = build(kernel, plan, architecture)
    if isinstance(made, BuildFailure):
        raise RefusedError(Outcome.BUILD_ERROR, made.message, log=made.log)
    candidate = Candidate(kernel, plan, made)
    try:
        for shape in (*task.search_shapes, *task.verify_shapes, *task.held_out_shapes):
            resolved = candidate.resolve(task, shape)
            nowhere = dict.fromkeys((*task.buffer_names, *(each.name for each in resolved.scratch)), 0)
            for launch in resolved.launches:
                bind(launch, candidate.parameter_types(launch.kernel), nowhere)
    except LaunchPlanError as error:
        raise RefusedError(Outcome.LAUNCH_ERROR, str(error), made) from error
    return candidate
