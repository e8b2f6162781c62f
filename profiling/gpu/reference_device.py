"""The GPU on which PyTorch computes expected outputs, in the search's own process: never in one that runs candidates.

Its memory is another process's than the candidates', who can't read it. It is overwritten before it is given back.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.task import Task, TaskError
from mctskernel.core.tensor_array import on_device
from mctskernel.profiling.gpu.cuda_driver import visible_gpus
from mctskernel.profiling.gpu.lock import GpuLock
from mctskernel.profiling.sampling import draw_sample

LEAST_BYTES = 16 << 20
"""Inputs and outputs of a shape that is worth a GPU's context."""

SMALL_PIECE = 1 << 20
"""The largest request that PyTorch's allocator serves from its small segments."""


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


class _Waiting(threading.local):
    lock: GpuLock | None = None
    held: ExitStack | None = None


_WAITING = _Waiting()


@contextmanager
def holding(lock: GpuLock | None) -> Iterator[None]:
    """Have this thread hold a GPU's lock from the first `hold`, where references are computed, to the block's end."""
    with ExitStack() as held:
        _WAITING.lock, _WAITING.held = lock, held
        try:
            yield
        finally:
            _WAITING.lock = _WAITING.held = None


def hold() -> None:
    """Hold the lock that this thread is to hold, if it is to and doesn't yet."""
    lock, held = _WAITING.lock, _WAITING.held
    if lock is not None and held is not None:
        held.enter_context(lock.held())
        _WAITING.lock = None


def give_back_memory(device: str) -> None:
    """Overwrite and free what PyTorch keeps of a GPU's memory, taken from it meanwhile; nothing for the CPU."""
    if not device:
        return
    import torch  # noqa: PLC0415 - as above

    gc.collect()
    number = torch.device(device).index
    torch.cuda.synchronize(number)
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    kept = []
    with suppress(torch.OutOfMemoryError):  # another thread was faster, and uses it
        for segment in segments:
            if segment["device"] == number and not segment["allocated_size"]:
                total = segment["total_size"]
                piece = SMALL_PIECE if segment["segment_type"] == "small" else total
                kept += [torch.zeros(piece, dtype=torch.uint8, device=device) for _ in range(0, total, piece)]
    del kept
    torch.cuda.synchronize(number)
    with torch.cuda.device(number):
        torch.cuda.empty_cache()
