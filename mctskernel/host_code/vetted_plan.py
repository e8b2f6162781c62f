"""The launch plan of a kernel that may stand outside of this program."""

from __future__ import annotations

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlan, LaunchPlanError, plan_of, resolve
from mctskernel.core.task import Task
from mctskernel.host_code.errors import HostCodeError
from mctskernel.profiling.source_rules import breach


def vetted_plan(task: Task, kernel: Kernel) -> LaunchPlan:
    """The launch plan, which fits the task at all of its shapes. Raises HostCodeError for a kernel that may not."""
    if kernel.language is Language.CONFIGURATION or not task.inputs:
        raise HostCodeError("A configuration of a recorded space is no kernel that could stand in a module.")
    if reason := breach(kernel):
        raise HostCodeError(reason)
    try:
        plan = plan_of(kernel)
        for shape in task.shapes:
            resolve(plan, task.names(shape, kernel), task.buffer_names)
    except LaunchPlanError as error:
        raise HostCodeError(str(error)) from error
    return plan
