"""What a GPU refuses to launch, found before it is tried."""

from __future__ import annotations

from mctskernel.core.evaluation import Resources
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch
from mctskernel.profiling.architecture import Architecture, occupancy


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
