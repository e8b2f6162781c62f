"""Runs one kernel's launch plan for a tool of NVIDIA's to watch: a profiler, or compute-sanitizer.

Run as `python -m mctskernel.profiling.replay TASK_FOLDER KERNEL_FILE SEED FREEDOM [SECONDS [GPU]]`, in a folder of its
own. `FREEDOM` says whether the process confines itself before it looks at the kernel (`Freedom`). Without `SECONDS` it
is under a profiler that waits for cuProfilerStart (`ncu --profile-from-start off`); with it, under compute-sanitizer
for about so long, on the GPU with the UUID `GPU`. What goes wrong is one sentence on standard error, after `COMPLAINT`:
exit status 1 where the kernel can't be replayed, `LOST` where the GPU gave up on it.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.kernel import Kernel, Language, language_of
from mctskernel.core.task import Array, Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling import build_cache
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    Gpu,
    LoadedModule,
    PreparedLaunch,
    call,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.gpu.lock import GpuLock
from mctskernel.profiling.gpu.tensor_maps import encoded
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement, counter_capabilities, gpu_devices
from mctskernel.profiling.stages import Stages

COMPLAINT = "mctskernel: "
AT_SHAPE = "at shape "
"""Begins a line on standard output for each shape that compute-sanitizer watches."""

LOST = 3
"""Exit status when the kernel broke the context."""

WARM_UP = 2

WATCHED_BYTES = 1 << 28
"""The most bytes of inputs and outputs that compute-sanitizer watches."""

PROGRAMS = 8
"""How many compilers and disassemblers may run at a time."""

_TOOLS = (Path("/opt/nvidia"),)
"""Where Nsight's programs are installed, a part of which works inside of the process."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what the tools share with the process is there


class Freedom(enum.StrEnum):
    """Whether a replayed kernel's process confines itself."""

    CONFINED = "confined"
    FREE = "free"


def profile(task_folder: Path, kernel_file: Path, seed: int, freedom: Freedom) -> None:
    """Run the plan at the first search shape on a cold cache; only the run after the warm-up is recorded."""
    task, gpu, candidate = _prepared(task_folder, kernel_file, freedom)
    shape = task.search_shapes[0]
    inputs = task.draw_inputs(shape, seed)
    modules = [LoadedModule(made.cubin) for made in candidate.builds]
    with _placed(task, candidate, modules, shape, inputs, flush_bytes=2 * gpu.l2_bytes) as run:
        for _ in range(WARM_UP):
            run()
        call(cu.cuProfilerStart)
        run()
        call(cu.cuProfilerStop)


def sanitize(
    task_folder: Path, kernel_file: Path, seed: int, freedom: Freedom, *, seconds: float, gpu: str = ""
) -> None:
    """Run the plan once at every shape that is watched, the smallest first, until `seconds` have passed.

    The GPU's lock is held meanwhile, and not while the kernel is built.
    """
    end = time.monotonic() + seconds
    lock = GpuLock(gpu)  # opened before this process confines itself
    task, _, candidate = _prepared(task_folder, kernel_file, freedom, gpu)
    modules = [LoadedModule(made.cubin) for made in candidate.builds]
    watched, _ = watched_shapes(task)
    for shape in watched:
        if time.monotonic() > end:
            break
        print(f"{AT_SHAPE}{shape_label(shape)}", flush=True)
        with _placed(task, candidate, modules, shape, task.draw_inputs(shape, seed)) as run, lock.held():
            run()


def watched_shapes(task: Task) -> tuple[list[Shape], list[Shape]]:
    """The verify and held-out shapes that compute-sanitizer watches, the smallest first, and those that it doesn't.

    The inputs of more than `WATCHED_BYTES` alone take longer to draw than a tool has. The smallest shape always counts.
    """
    shapes = task.verify_shapes + task.held_out_shapes or task.search_shapes
    first, *others = sorted(shapes, key=task.compulsory_bytes)
    small = [shape for shape in others if task.compulsory_bytes(shape) <= WATCHED_BYTES]
    return [first, *small], others[len(small) :]


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


def _prepared(
    task_folder: Path, kernel_file: Path, freedom: Freedom, uuid: str = ""
) -> tuple[Task, Gpu, Candidate]:
    """The task, the open GPU, and the kernel built for it: confined before the first byte of the kernel is read."""
    language = language_of(kernel_file) or Language.CUDA
    task = load_task(task_folder)
    gpu = open_gpu(uuid)
    # A process that compiles a candidate writes no builds for others.
    build_cache.disable()
    if freedom is Freedom.CONFINED:
        # Compilers keep files in the home.
        os.environ.update(HOME=str(Path.cwd()), TMPDIR=str(Path.cwd()))
        confine(confinement(task_folder, kernel_file, Path.cwd()))
    kernel = Kernel(kernel_file.read_text(encoding="utf-8"), language)
    return task, gpu, prepare(task, kernel, gpu.architecture, Stages())


@contextmanager
def _placed(
    task: Task,
    candidate: Candidate,
    modules: Sequence[LoadedModule],
    shape: Shape,
    inputs: Mapping[str, Array],
    *,
    flush_bytes: int = 0,
) -> Iterator[Callable[[], None]]:
    """What runs the plan at a shape and waits, after filling `flush_bytes` to empty L2.

    Buffers are exactly as large as their tensors, and outputs and scratch memory are left as they were allocated: what
    is filled or rounded up would hide what compute-sanitizer looks for.
    """
    plan = candidate.at(task, shape)
    with ExitStack() as stack:

        def allocated(nbytes: int) -> int:
            pointer = call(cu.cuMemAlloc, max(1, nbytes))
            stack.callback(cu.cuMemFree, pointer)
            return int(pointer)

        tensors = (*task.inputs, *task.outputs)
        addresses = {tensor.name: allocated(tensor.nbytes(shape)) for tensor in tensors}
        for name, array in inputs.items():
            data = np.ascontiguousarray(array)
            call(cu.cuMemcpyHtoD, addresses[name], data.ctypes.data, data.nbytes)
        addresses |= {scratch.name: allocated(scratch.nbytes) for scratch in plan.scratch}
        maps = {each.name: encoded(each, addresses[each.tensor]) for each in plan.tensor_maps}
        zeroed = [(addresses[each.name], each.nbytes) for each in plan.scratch if each.zero]
        if flush_bytes:
            zeroed.append((allocated(flush_bytes), flush_bytes))
        launches = [
            PreparedLaunch(
                modules[candidate.index_of(launch)],
                candidate.entry_of(launch),
                grid=launch.grid,
                block=launch.block,
                shared_bytes=launch.shared_bytes,
                arguments=candidate.arguments(launch, {**addresses, **maps}),
                cluster=launch.cluster,
                programmatic=launch.programmatic,
            )
            for launch in plan.launches
        ]

        def run() -> None:
            for address, nbytes in zeroed:
                call(cu.cuMemsetD8, address, 0, nbytes)
            for launch in launches:
                launch()
            synchronize()

        yield run


def main(words: list[str]) -> None:
    """Replay as the words of the command line say; exit with a sentence where that isn't possible."""
    task_folder, kernel_file, seed, freedom = Path(words[0]), Path(words[1]), int(words[2]), Freedom(words[3])
    try:
        if len(words) > 4:
            sanitize(
                task_folder, kernel_file, seed, freedom, seconds=float(words[4]), gpu="".join(words[5:6])
            )
        else:
            profile(task_folder, kernel_file, seed, freedom)
    except CudaError as error:
        print(f"{COMPLAINT}{error}", file=sys.stderr)
        sys.exit(LOST if error.sticky else 1)
    except (TaskError, DeviceError, RefusedError) as error:
        sys.exit(f"{COMPLAINT}{error}")


if __name__ == "__main__":
    main(sys.argv[1:])
