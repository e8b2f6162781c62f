"""How far the starting kernel of a run is from the floor of its task."""

from __future__ import annotations

import math

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import Task
from mctskernel.profiling.architecture import Architecture
from mctskernel.profiling.ceilings import architecture_ceilings
from mctskernel.profiling.guardrails import Peaks, floor_seconds
from mctskernel.profiling.reward import is_eligible
from mctskernel.report.roofline import described_gpu
from mctskernel.report.view import View


def log_headroom(view: View) -> float | None:
    """The logarithm of the starting kernel's time over the floor, the mean over the search shapes.

    None where the GPU isn't described, where nothing but recorded times is known, and where a kernel beats the floor,
    which then is none. Raises TaskError.
    """
    root = view.tree.nodes[0].evaluation if view.tree.nodes else None
    gpu = described_gpu(view)
    if root is None or not is_eligible(root) or gpu is None:
        return None
    task = view.folder.load_task()
    if task.space:
        return None
    peaks = task_peaks(task, gpu)
    floors = (floor_seconds(task, shape, peaks) for shape in task.search_shapes)
    logs = [
        math.log(timing.seconds / floor) if floor > 0 else math.inf
        for timing, floor in zip(root.timings, floors, strict=True)
    ]
    found = math.fsum(logs) / len(logs)
    return found if 0 < found < math.inf else None


def task_peaks(task: Task, gpu: Architecture) -> Peaks:
    """What a GPU can do at most for a task: tensor cores multiply numbers of 16 bits and fewer, and no others."""
    ceilings = architecture_ceilings(gpu)
    narrowest = min(DTYPE_BYTES[tensor.dtype] for tensor in (*task.inputs, *task.outputs))
    tensor = ceilings.tensor_flops_per_second * (2 if narrowest == 1 else 1)
    flops = tensor if narrowest < 4 else ceilings.fp32_flops_per_second
    return Peaks(ceilings.copy_bytes_per_second, flops, gpu.memory.l2_bytes)
