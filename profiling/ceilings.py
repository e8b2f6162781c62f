"""What a GPU can do at most: copy bytes, multiply-add in fp32, multiply-add on tensor cores.

The roofline of Williams, Waterman and Patterson ("Roofline", 2009) is made of these. There are two sources: kernels of
our own, measured once for each GPU and driver (`measured_ceilings`), and what its documents promise
(`documented_ceilings`). A report divides by what was measured; a time is refused only when it beats both
(`highest`), because each of them can be too low: a measurement on a GPU that was busy, or whose clock was still
rising, and `mma.sync`, which reaches about two thirds of what `wgmma` does on Hopper and is all that can be measured
on later chips; and documents, where they don't know the chip.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import Task
from mctskernel.profiling.architecture import Architecture, known_architectures, load_architecture
from mctskernel.profiling.counters import TENSOR_ACTIVE, TENSOR_BUSY
from mctskernel.profiling.gpu.ceiling_kernels import copy_rate, fp32_rate, tensor_rate
from mctskernel.profiling.gpu.cuda_driver import Gpu
from mctskernel.profiling.gpu.lock import GpuLock
from mctskernel.profiling.guardrails import Peaks
from mctskernel.profiling.ptx_text import without_comments


class Ceilings(msgspec.Struct, frozen=True):
    """Bytes per second that a copy moves (read and written), and operations per second: a multiply-add is two."""

    copy_bytes_per_second: float
    fp32_flops_per_second: float
    tensor_flops_per_second: float


def measured_ceilings(gpu: Gpu, folder: Path) -> Ceilings:
    """The ceilings of the open GPU, from a file in `folder` or else measured, which takes about half a second alone.

    A file that can't be used is written anew; without a folder to write to, they are measured every time. Raises
    CudaError when the GPU lacks the memory for two buffers larger than its L2.
    """
    file = folder / f"ceilings-{gpu.uuid}-{gpu.driver}.json"
    with suppress(OSError, msgspec.MsgspecError):
        known = msgspec.json.decode(file.read_bytes(), type=Ceilings)
        if min(msgspec.structs.astuple(known)) > 0:
            return known
    with closing(GpuLock(gpu.uuid)) as lock, lock.held():
        found = Ceilings(copy_rate(gpu), fp32_rate(gpu), tensor_rate(gpu))
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(found))
        temporary.replace(file)
    return found


def documented_ceilings(gpu: Gpu) -> Ceilings:
    """What is promised of the GPU: its memory's peak rate, and the arithmetic of the architectures we describe.

    Of others, whatever is measured has to do (0 here), unless their tensor cores have instructions that our kernels
    don't: then nothing bounds them.
    """
    described = [
        architecture_ceilings(each)
        for each in map(load_architecture, known_architectures())
        if each.architecture == gpu.architecture
    ]
    return Ceilings(
        gpu.dram_bytes_per_second,
        max((each.fp32_flops_per_second for each in described), default=0.0),
        max(
            (each.tensor_flops_per_second for each in described),
            default=math.inf if gpu.architecture.startswith(_TCGEN05) else 0.0,
        ),
    )


_TCGEN05 = ("sm_10", "sm_11")
"""Data-centre Blackwell, whose tensor cores `mma.sync` doesn't fill."""


def architecture_ceilings(architecture: Architecture) -> Ceilings:
    """The ceilings of a GPU that is not present, from its description; tensor cores multiply 16-bit floats."""
    cycles = architecture.chip.sms * architecture.chip.clock_hz
    return Ceilings(
        architecture.memory.dram_bytes_per_second,
        2 * architecture.throughput.fma * cycles,
        2 * architecture.throughput.tensor_fma * cycles,
    )


def highest(first: Ceilings, second: Ceilings) -> Ceilings:
    """The larger of two for each rate: nothing on the GPU beats it."""
    return Ceilings(*map(max, msgspec.structs.astuple(first), msgspec.structs.astuple(second)))


def default_cache_folder() -> Path:
    """Where a user's measured ceilings are kept: `mctskernel` in XDG_CACHE_HOME, or else in ~/.cache."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG base directory specification says to ignore relative paths.
    base = configured if configured.is_absolute() else Path("~/.cache").expanduser()
    return base / "mctskernel"


IDLE_TENSOR_PIPE = 1.0
"""Percent. An H100 reports up to 0.4 of kernels without a tensor instruction; what beats the fp32 rate has over 5."""


def roofline(
    task: Task, ptx: Iterable[str], counters: Mapping[str, float], ceilings: Ceilings, l2_bytes: int
) -> Peaks:
    """The peaks that bind a kernel of the task, compiled to this PTX, of whose run these counters were read.

    Only tensor instructions reach the tensor rate, and only when they were really executed, which a counter says
    where there is one. Numbers of 8 bits are multiplied at twice the rate of 16-bit ones there; without
    tensor cores packed numbers narrower than 32 bits are at twice the fp32 rate.
    """
    narrowest = min(DTYPE_BYTES[tensor.dtype] for tensor in (*task.inputs, *task.outputs))
    if uses_tensor_cores(ptx, counters):
        flops = ceilings.tensor_flops_per_second * (2 if narrowest == 1 else 1)
    else:
        flops = ceilings.fp32_flops_per_second * (2 if narrowest < 4 else 1)
    return Peaks(ceilings.copy_bytes_per_second, flops, l2_bytes)


def uses_tensor_cores(ptx: Iterable[str], counters: Mapping[str, float]) -> bool:
    """Whether a kernel computes on tensor cores: it has instructions for it, and they keep the pipe busy."""
    busy = counters.get(TENSOR_BUSY, counters.get(TENSOR_ACTIVE, math.inf))
    return busy > IDLE_TENSOR_PIPE and any(_TENSOR.search(without_comments(text)) for text in ptx)


_TENSOR = re.compile(r"\b(?:mma|wmma|wgmma|tcgen05)\.")
