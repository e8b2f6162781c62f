"""Runs one kernel's launch plan at its task's small shapes, for compute-sanitizer to watch.

Run as `python -m mctskernel.profiling.sanitized_replay TASK_FOLDER KERNEL_FILE SEED SECONDS FREEDOM [GPU]` under
`compute-sanitizer`, in a folder of its own; see `mctskernel.profiling.replay_process` for `FREEDOM`. `GPU` is a UUID.
Buffers are exactly as large as their tensors, and outputs and scratch memory are left as they were allocated: what a
profiler's replay fills or rounds up would hide what is looked for here. Each shape begins a line on standard output.
What goes wrong is one sentence on standard error, after `COMPLAINT`: exit status 1 where the kernel can't be replayed,
`LOST` where the GPU gave up on it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Array, Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    LoadedModule,
    call,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.replay_process import COMPLAINT, Freedom, confine_replay, prepared_launches
from mctskernel.profiling.stages import Stages

LOST = 3
"""Exit status when the kernel broke the context."""

AT_SHAPE = "at shape "


def main(
    task_folder: Path, kernel_file: Path, seed: int, seconds: float, freedom: Freedom, *, gpu: str
) -> None:
    """Run the plan once at every verify and held-out shape, the smallest first, until `seconds` have passed."""
    end = time.monotonic() + seconds
    language = Language.TRITON if kernel_file.suffix == Language.TRITON.suffix else Language.CUDA
    task = load_task(task_folder)
    architecture = open_gpu(gpu).architecture
    confine_replay(freedom, task_folder, kernel_file)
    kernel = Kernel(kernel_file.read_text(encoding="utf-8"), language)
    candidate = prepare(task, kernel, architecture, Stages())
    modules = [LoadedModule(made.cubin) for made in candidate.builds]
    shapes = task.verify_shapes + task.held_out_shapes or task.search_shapes
    for shape in sorted(shapes, key=task.compulsory_bytes):
        if time.monotonic() > end:
            break
        print(f"{AT_SHAPE}{shape_label(shape)}", flush=True)
        with placed_plan(task, candidate, modules, shape, task.draw_inputs(shape, seed)) as (_, run):
            run()


@contextmanager
def placed_plan(
    task: Task,
    candidate: Candidate,
    modules: Sequence[LoadedModule],
    shape: Shape,
    inputs: Mapping[str, Array],
) -> Iterator[tuple[Mapping[str, int], Callable[[], None]]]:
    """Where a case's tensors are on the GPU, and what runs the plan on them and waits."""
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
        for scratch in plan.scratch:
            addresses[scratch.name] = allocated(scratch.nbytes)
            if scratch.zero:
                call(cu.cuMemsetD8, addresses[scratch.name], 0, scratch.nbytes)
        launches = prepared_launches(candidate, plan, modules, addresses)

        def run() -> None:
            for launch in launches:
                launch()
            synchronize()

        yield addresses, run


if __name__ == "__main__":
    try:
        seed, seconds, freedom = int(sys.argv[3]), float(sys.argv[4]), Freedom(sys.argv[5])
        main(Path(sys.argv[1]), Path(sys.argv[2]), seed, seconds, freedom, gpu="".join(sys.argv[6:7]))
    except CudaError as error:
        print(f"{COMPLAINT}{error}", file=sys.stderr)
        sys.exit(LOST if error.sticky else 1)
    except (TaskError, DeviceError, RefusedError) as error:
        sys.exit(f"{COMPLAINT}{error}")
