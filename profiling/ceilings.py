"""What a GPU can do at most: copy bytes, multiply-add in fp32, multiply-add on tensor cores.

The roofline of Williams, Waterman and Patterson ("Roofline", 2009) is made of these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import Task
from mctskernel.profiling.architecture import Architecture, known_architectures, load_architecture
from mctskernel.profiling.counters import TENSOR_ACTIVE, TENSOR_BUSY
from mctskernel.profiling.gpu.cuda_driver import Gpu
from mctskernel.profiling.guardrails import Peaks
from mctskernel.profiling.ptx_text import without_comments


class Ceilings(msgspec.Struct, frozen=True):
    """Bytes per second that a copy moves (read and written), and operations per second: a multiply-add is two."""

    copy_bytes_per_second: float
    fp32_flops_per_second: float
    tensor_flops_per_second: float


def documented_ceilings(gpu: Gpu) -> Ceilings:
    """What is promised: the memory's peak rate, and the arithmetic of architectures that we describe."""
    described = [
        architecture_ceilings(each)
        for each in map(load_architecture, known_architectures())
        if each.architecture == gpu.architecture
    ]
    return Ceilings(
        gpu.dram_bytes_per_second,
        max((each.fp32_flops_per_second for each in described), default=math.inf),
        max((each.tensor_flops_per_second for each in described), default=math.inf),
    )


def architecture_ceilings(architecture: Architecture) -> Ceilings:
    """The ceilings of a GPU that is not present, from its description; tensor cores multiply 16-bit floats."""
    cycles = architecture.chip.sms * architecture.chip.clock_hz
    return Ceilings(
        architecture.memory.dram_bytes_per_second,
        2 * architecture.throughput.fma * cycles,
        2 * architecture.throughput.tensor_fma * cycles,
    )


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
