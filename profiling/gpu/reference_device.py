"""The GPU on which PyTorch computes expected outputs, in the search's own process: never in one that runs candidates.

Its memory is another process's than the candidates', who can't read it. It is overwritten before it is given back.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from functools import partial

import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.task import Task, TaskError
from mctskernel.core.tensor_array import on_device
from mctskernel.profiling.gpu.cuda_driver import fill_words, synchronize, visible_gpus
from mctskernel.profiling.sampling import draw_sample

LEAST_BYTES = 16 << 20
"""Inputs and outputs of a shape that is worth a GPU's context."""


def reference_device(task: Task, uuid: str) -> str:
    """PyTorch's name of a GPU that computes a task's reference; empty where the CPU does."""
    if not task.takes_tensors or max(map(task.compulsory_bytes, task.search_shapes)) < LEAST_BYTES:
        return ""
    try:
        import torch  # noqa: PLC0415 - an extra

        if not torch.cuda.is_available():
            return ""
        return next((f"cuda:{gpu.index}" for gpu in visible_gpus() if gpu.uuid == uuid), "")
    except (ImportError, DeviceError):
        return ""


def open_reference_device(task: Task, uuid: str) -> None:
    """Compute the reference once at a small shape: its libraries take a second to load, and nobody is kept waiting."""
    device = reference_device(task, uuid)
    if not (device and task.verify_shapes):
        return
    shape = min(task.verify_shapes, key=task.compulsory_bytes)
    with suppress(TaskError):  # what it is will be told where it is computed in earnest
        draw_sample(task, shape, 0, np.random.default_rng(0), put=partial(on_device, device=device))


def give_back_memory(device: str) -> None:
    """Overwrite and free what PyTorch keeps of a GPU's memory for later; nothing for the CPU."""
    if not device:
        return
    import torch  # noqa: PLC0415 - as above

    gc.collect()
    number = torch.device(device).index
    with torch.cuda.device(number):
        torch.cuda.synchronize()
        segments: list[dict[str, int]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        for segment in segments:
            if segment["device"] == number and not segment["allocated_size"]:
                fill_words(segment["address"], 0, segment["total_size"] // 4)
        synchronize()
        torch.cuda.empty_cache()
