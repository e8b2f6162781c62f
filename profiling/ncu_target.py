"""The program that Nsight Compute profiles: it runs one kernel's launch plan.

Run as `python -m mctskernel.profiling.ncu_target TASK_FOLDER KERNEL_FILE SEED FREEDOM`, in a folder of its own, under a
profiler that waits for cuProfilerStart (`ncu --profile-from-start off`). `FREEDOM` says whether the process confines
itself before it looks at the kernel (`Freedom`). What goes wrong is one sentence on standard error, after `COMPLAINT`:
exit status 1 where the kernel can't be run, `LOST` where the GPU gave up on it.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.kernel import Kernel, Language, language_of
from mctskernel.core.task import Array, Shape, Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling import build_cache
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.gpu.buffers import prepared
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    DeviceBuffer,
    Gpu,
    LoadedModule,
    call,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement, counter_capabilities, gpu_devices
from mctskernel.profiling.stages import Stages

COMPLAINT = "mctskernel: "
LOST = 3  # exit status when the kernel broke the context
WARM_UP = 2


PROGRAMS = 8  # how many compilers and disassemblers may run at a time

_TOOLS = (Path("/opt/nvidia"),)
"""Where Nsight's programs are installed, a part of which works inside of the process."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what the tools share with the process is there


class Freedom(enum.StrEnum):
    """Whether the kernel's process confines itself."""

    CONFINED = "confined"
    FREE = "free"


def profile(task_folder: Path, kernel_file: Path, seed: int, freedom: Freedom) -> None:
    """Run the plan at the first search shape on a cold cache; only the run after the warm-up is recorded."""
    task, gpu, candidate = _prepared(task_folder, kernel_file, freedom)
    shape = task.search_shapes[0]
    inputs = task.draw_inputs(shape, seed)
    run = _placed(task, candidate, shape, inputs, 2 * gpu.l2_bytes)
    for _ in range(WARM_UP):
        run()
    call(cu.cuProfilerStart)
    run()
    call(cu.cuProfilerStop)


def confinement(task_folder: Path, kernel_file: Path, scratch: Path) -> Confinement:
    """What running it on an open GPU takes, under a tool that is attached already: what its own process may, and the
    memory that the tool shares with it.
    """
    return Confinement(
        scratch=scratch,
        reads=(task_folder, kernel_file, *_TOOLS),
        devices=(*gpu_devices(), _SHARED_MEMORY),
        processes=PROGRAMS,
        capabilities=counter_capabilities(),
    )


def _prepared(task_folder: Path, kernel_file: Path, freedom: Freedom) -> tuple[Task, Gpu, Candidate]:
    """The task, the open GPU, and the kernel built for it: confined before the first byte of the kernel is read."""
    language = language_of(kernel_file) or Language.CUDA
    task = load_task(task_folder)
    gpu = open_gpu()
    # A process that compiles a candidate writes no builds for others.
    build_cache.disable()
    if freedom is Freedom.CONFINED:
        # Compilers keep files in the home.
        os.environ.update(HOME=str(Path.cwd()), TMPDIR=str(Path.cwd()))
        confine(confinement(task_folder, kernel_file, Path.cwd()))
    kernel = Kernel(kernel_file.read_text(encoding="utf-8"), language)
    return task, gpu, prepare(task, kernel, gpu.architecture, Stages())


def _placed(
    task: Task, candidate: Candidate, shape: Shape, inputs: Mapping[str, Array], flush_bytes: int
) -> Callable[[], None]:
    """What runs the plan at a shape and waits, after filling `flush_bytes` to empty L2. Ends with the process."""
    plan = candidate.at(task, shape)
    modules = [LoadedModule(made.cubin) for made in candidate.builds]
    buffers = {each.name: DeviceBuffer(each.nbytes(shape)) for each in (*task.inputs, *task.outputs)}
    for name, array in inputs.items():
        buffers[name].write(array)
    buffers |= {each.name: DeviceBuffer(each.nbytes) for each in plan.scratch}
    zeroed = [*(buffers[each.name] for each in plan.scratch if each.zero), DeviceBuffer(flush_bytes)]
    addresses = {name: buffer.address for name, buffer in buffers.items()}
    launches = prepared(candidate, plan, modules, addresses)

    def run() -> None:
        for buffer in zeroed:
            buffer.fill(0)
        for launch in launches:
            launch()
        synchronize()

    return run


def main(words: list[str]) -> None:
    """Replay as the words of the command line say; exit with a sentence where that isn't possible."""
    task_folder, kernel_file, seed, freedom = Path(words[0]), Path(words[1]), int(words[2]), Freedom(words[3])
    try:
        profile(task_folder, kernel_file, seed, freedom)
    except CudaError as error:
        print(f"{COMPLAINT}{error}", file=sys.stderr)
        sys.exit(LOST if error.sticky else 1)
    except (TaskError, DeviceError, RefusedError) as error:
        sys.exit(f"{COMPLAINT}{error}")


if __name__ == "__main__":
    main(sys.argv[1:])
