"""What a GPU refuses to launch, found before it is tried."""

from __future__ import annotations

from mctskernel.core.evaluation import Resources
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch
from mctskernel.profiling.architecture import Architecture, occupancy


def check_launch(
    launch: ResolvedLaunch, resources: Resources, max_threads: int | None, gpu: Architecture
) -> None:
    """Raise LaunchPlanError, with a sentence, for a launch that asks for more than an SM has.

    `max_threads` is the kernel's own `__launch_bounds__`, if it has any.
    """
    what = f"The launch of '{launch.kernel}'"
    if max_threads is not None and launch.threads > max_threads:
        raise LaunchPlanError(
            f"{what} has blocks of {launch.threads} threads; its __launch_bounds__ allow {max_threads}."
        )
    shared, limit = resources.shared_bytes + launch.shared_bytes, gpu.limits.max_shared_bytes_per_block
    if shared > limit:
        raise LaunchPlanError(
            f"{what} takes {shared} bytes of shared memory a block ({resources.shared_bytes} static, "
            f"{launch.shared_bytes} dynamic); {gpu.name} has {limit}."
        )
    if occupancy(gpu, launch.threads, resources.registers, shared).blocks < 1:
        raise LaunchPlanError(
            f"{what} takes {resources.registers} registers in each of {launch.threads} threads; "
            f"{gpu.name} has {gpu.limits.registers} for a block."
        )
