"""Runs one kernel's launch plan once, with its warm-up outside of what a profiler records.

Run as `python -m mctskernel.profiling.replay_process TASK_FOLDER KERNEL_FILE SEED FREEDOM` under a profiler that waits
for cuProfilerStart (`ncu --profile-from-start off`), in a folder of its own. `FREEDOM` says whether it confines itself
before it looks at the kernel (`Freedom`). The inputs are those of the first search shape; the L2 holds
nothing of them. What goes wrong is one sentence on standard error, after `COMPLAINT`, and exit status 1.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import ResolvedPlan
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    DeviceBuffer,
    Gpu,
    LoadedModule,
    PreparedLaunch,
    call,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement, counter_capabilities, gpu_devices
from mctskernel.profiling.stages import Stages

COMPLAINT = "mctskernel: "
WARM_UP = 2

PROGRAMS = 8
"""How many compilers and disassemblers may run at a time."""

_TOOLS = (Path("/opt/nvidia"),)
"""Where Nsight's programs are installed, a part of which works inside of the process."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what the tools share with the process is there


class Freedom(enum.StrEnum):
    """Whether a replayed kernel's process confines itself."""

    CONFINED = "confined"
    FREE = "free"


def confinement(task_folder: Path, kernel_file: Path, scratch: Path) -> Confinement:
    """What replaying on an open GPU takes, under a tool that is attached already: what its own process may, and the
    memory that the tool shares with it.
    """
    return Confinement(
        scratch=scratch,
        reads=(task_folder, kernel_file, *_TOOLS),
        devices=(*gpu_devices(), _SHARED_MEMORY),
        processes=PROGRAMS,
        capabilities=counter_capabilities(),
    )


def confine_replay(freedom: Freedom, task_folder: Path, kernel_file: Path) -> None:
    """To be called when the task and the GPU are open, and before the first byte of the kernel is read."""
    if freedom is Freedom.CONFINED:
        # Compilers keep files in the home.
        os.environ.update(HOME=str(Path.cwd()), TMPDIR=str(Path.cwd()))
        confine(confinement(task_folder, kernel_file, Path.cwd()))


def main(task_folder: Path, kernel_file: Path, seed: int, freedom: Freedom) -> None:
    """Build the kernel, place its tensors, warm up, and run the plan once while the profiler records."""
    language = Language.TRITON if kernel_file.suffix == Language.TRITON.suffix else Language.CUDA
    task = load_task(task_folder, language)
    gpu = open_gpu()
    confine_replay(freedom, task_folder, kernel_file)
    candidate = prepare(
        task, Kernel(kernel_file.read_text(encoding="utf-8"), language), gpu.architecture, Stages()
    )
    with _bound(task, candidate, gpu, seed) as run:
        for _ in range(WARM_UP):
            run()
        call(cu.cuProfilerStart)
        run()
        call(cu.cuProfilerStop)


def prepared_launches(
    candidate: Candidate, plan: ResolvedPlan, modules: Sequence[LoadedModule], addresses: Mapping[str, int]
) -> list[PreparedLaunch]:
    """A plan's launches, ready to be made, given the modules of its builds and where its buffers are."""
    return [
        PreparedLaunch(
            modules[candidate.index_of(launch)],
            candidate.entry_of(launch),
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            arguments=candidate.arguments(launch, addresses),
        )
        for launch in plan.launches
    ]


@contextmanager
def _bound(task: Task, candidate: Candidate, gpu: Gpu, seed: int) -> Iterator[Callable[[], None]]:
    """The plan at the first search shape as a function that runs it on a cold cache and waits."""
    shape = task.search_shapes[0]
    inputs = task.draw_inputs(shape, seed)
    plan = candidate.at(task, shape)
    with ExitStack() as stack:

        def buffer(nbytes: int) -> DeviceBuffer:
            made = DeviceBuffer(nbytes)
            stack.callback(made.free)
            return made

        buffers = {tensor.name: buffer(tensor.nbytes(shape)) for tensor in (*task.inputs, *task.outputs)}
        for name, array in inputs.items():
            buffers[name].write(array)
        scratch = {each.name: buffer(each.nbytes) for each in plan.scratch}
        flush = buffer(2 * gpu.l2_bytes)
        addresses = {name: each.address for name, each in (buffers | scratch).items()}
        modules = [LoadedModule(made.cubin) for made in candidate.builds]
        for module in modules:
            stack.callback(module.unload)
        launches = prepared_launches(candidate, plan, modules, addresses)

        def run() -> None:
            for each in plan.scratch:
                if each.zero:
                    scratch[each.name].fill(0)
            flush.fill(0)
            for launch in launches:
                launch()
            synchronize()

        yield run


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Freedom(sys.argv[4]))
    except (TaskError, DeviceError, CudaError, RefusedError) as error:
        sys.exit(f"{COMPLAINT}{error}")
