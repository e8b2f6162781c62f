"""A PTX emulator on numpy: runs kernels without a GPU, finds what is wrong with them and counts what they do.

`parse_ptx` reads what NVRTC or Triton wrote, `execute` runs every block with every check on, `count` counts memory
traffic and instructions of sampled blocks at the true shape.
"""

from mctskernel.profiling.emulator.checking import Execution, execute, unsupported
from mctskernel.profiling.emulator.counting import (
    AccessCounts,
    BasicBlockCounts,
    Counts,
    Trace,
    count,
    is_sampled,
)
from mctskernel.profiling.emulator.findings import Finding
from mctskernel.profiling.emulator.lanes import Geometry
from mctskernel.profiling.emulator.machine import Limits
from mctskernel.profiling.emulator.memory import GlobalMemory
from mctskernel.profiling.emulator.parser import parse_ptx
from mctskernel.profiling.emulator.ptx import Function, Module, Parameter, UnsupportedPtxError

__all__ = [
    "AccessCounts",
    "BasicBlockCounts",
    "Counts",
    "Execution",
    "Finding",
    "Function",
    "Geometry",
    "GlobalMemory",
    "Limits",
    "Module",
    "Parameter",
    "Trace",
    "UnsupportedPtxError",
    "count",
    "execute",
    "is_sampled",
    "parse_ptx",
    "unsupported",
]
