"""Which of a GPU's ceilings bind a kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import Task
from mctskernel.profiling.ceilings import Ceilings
from mctskernel.profiling.counters import TENSOR_ACTIVE, TENSOR_BUSY
from mctskernel.profiling.guardrails import Peaks
from mctskernel.profiling.ptx_text import without_comments

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
