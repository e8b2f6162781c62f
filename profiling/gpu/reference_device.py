"""The GPU on which PyTorch computes expected outputs, in the search's own process: never in one that runs candidates.

Its memory is another process's than the candidates', who can't read it. It is overwritten before it is given back.
"""

from __future__ import annotations

import gc
import threading
import time
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


TURN_SECONDS = 0.3
"""How long a GPU is held for expected outputs while others wait: as long as an evaluation takes, which each then has
in turn."""


class _Turn(threading.local):
    lock: GpuLock | None = None
    device = ""
    held: ExitStack | None = None
    since = 0.0


_TURN = _Turn()


@contextmanager
def holding(lock: GpuLock | None, device: str = "") -> Iterator[None]:
    """Have this thread hold a GPU's lock from `hold` to `let_go`, or to the end of the block.

    References call `hold` where they are computed there, on PyTorch's `device`. Those who wait for the GPU meanwhile
    have it between two of them, one after the other.
    """
    _TURN.lock, _TURN.device = lock, device
    try:
        yield
    finally:
        let_go()
        _TURN.lock = None


def hold() -> None:
    """Hold the lock that this thread is to hold, if it is to; those who wait have a turn where it was held for long."""
    if _TURN.lock is None:
        return
    if time.monotonic() - _TURN.since > TURN_SECONDS and _TURN.held is not None and _TURN.lock.is_contended:
        let_go()
    if _TURN.held is None:
        with ExitStack() as held:
            held.enter_context(_TURN.lock.held())
            _TURN.held, _TURN.since = held.pop_all(), time.monotonic()


def let_go() -> None:
    """Leave the GPU to others until the next `hold`, once it has done what this thread has begun there."""
    if _TURN.held is None:
        return
    try:
        if _TURN.device:
            import torch  # noqa: PLC0415 - as above

            torch.cuda.synchronize(_TURN.device)
    finally:
        _TURN.held.close()
        _TURN.held = None


def give_back_memory(device: str) -> None:
    """Overwrite and free what PyTorch keeps of a GPU's memory, taken from it meanwhile; nothing for the CPU."""
    if not device:
        return
    import torch  # noqa: PLC0415 - as above

    gc.collect()
    hold()
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
