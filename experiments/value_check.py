"""Runs one kernel on a GPU and compares its outputs with the reference: the check that knows of values alone.

    python -m mctskernel.experiments.value_check TASK_FOLDER KERNEL_FILE SEED

Prints `right` or what is wrong. Races and stray accesses are nobody's business here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Array
from mctskernel.core.task_file import load_task
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.gpu.cuda_driver import CudaError, LoadedModule, call, open_gpu
from mctskernel.profiling.poison import poison
from mctskernel.profiling.sanitized_replay import placed_plan
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import draw_cases, judge

RIGHT = "right"


def main(task_folder: Path, kernel_file: Path, seed: int) -> str:
    """What the comparison says of a kernel at the verify shapes."""
    language = Language.TRITON if kernel_file.suffix == Language.TRITON.suffix else Language.CUDA
    task = load_task(task_folder)
    gpu = open_gpu()
    try:
        kernel = Kernel(kernel_file.read_text(encoding="utf-8"), language)
        candidate = prepare(task, kernel, gpu.architecture, Stages())
        modules = [LoadedModule(made.cubin) for made in candidate.builds]
        for case in draw_cases(task, task.verify_shapes, seed):
            with placed_plan(task, candidate, modules, case.shape, case.inputs) as (addresses, run):
                outputs: dict[str, Array] = {}
                for output in task.outputs:
                    blank = np.ascontiguousarray(poison(output.dtype, output.extents(case.shape)))
                    call(cu.cuMemcpyHtoD, addresses[output.name], blank.ctypes.data, blank.nbytes)
                run()
                for output in task.outputs:
                    found = np.empty(output.extents(case.shape), numpy_dtype(output.dtype))
                    call(cu.cuMemcpyDtoH, found.ctypes.data, addresses[output.name], found.nbytes)
                    outputs[output.name] = found
            check = judge(case, outputs)
            if not check.passed:
                return check.message
    except (CudaError, RefusedError) as error:
        return str(error)
    return RIGHT


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
