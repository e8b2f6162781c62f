"""Runs modules on the CPU through Triton's interpreter, and prints the largest error of each as JSON.

A process of its own: the interpreter is chosen by an environment variable when Triton is imported.
"""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mctskernel.core.kernel import Language
from mctskernel.core.task import Shape, Task, Tensor
from mctskernel.core.task_file import load_task


def widened(task: Task) -> Task:
    """The task in float32 where it is in bfloat16, whose products are wrong in Triton's interpreter."""

    def wide(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype="float32") if tensor.dtype == "bfloat16" else tensor

    return replace(task, inputs=tuple(map(wide, task.inputs)), outputs=tuple(map(wide, task.outputs)))


def small_shape(task: Task) -> Shape:
    """The smallest shape in which no dimension is 1."""
    shapes = [shape for shape in task.verify_shapes if min(shape.values()) > 1]
    return min(shapes, key=task.compulsory_bytes)


def main(folder: Path) -> None:
    errors = {}
    for path in sorted(folder.glob("*.py")):
        task = widened(load_task(Path("mctskernel/tasks/builtin") / path.stem, Language.TRITON))
        shape = small_shape(task)
        drawn = task.draw_inputs(shape, 0)
        given = [torch.from_numpy(array) for array in drawn.values()]
        run = runpy.run_path(str(path))
        result = run["run"](*given)
        outputs = list(result) if isinstance(result, tuple) else [result]
        wide = {
            key: array.astype(np.float64) if array.dtype.kind == "f" else array
            for key, array in drawn.items()
        }
        errors[path.stem] = max(
            float(np.max(np.abs(found.double().numpy() - true) / (1 + np.abs(true))))
            for found, true in zip(outputs, task.expected(wide, shape).values(), strict=True)
        )
    print(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
