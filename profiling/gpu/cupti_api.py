"""The part of CUPTI's C interface that the range profiler needs, one structure for each function.

Layouts are those of CUPTI 13 (`cupti_profiler_target.h`, `cupti_target.h`, `cupti_profiler_host.h` and
`cupti_range_profiler.h`), whose C names the classes and fields keep; a test compares them with the headers.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_void_p
from typing import Any, ClassVar

from cuda.pathfinder import load_nvidia_dynamic_lib

RANGE_PROFILER = 0  # CUpti_ProfilerType: CUPTI_PROFILER_TYPE_RANGE_PROFILER
AUTO_RANGE = 1  # CUpti_ProfilerRange: every launch of a kernel is a range

USER_REPLAY = 3
"""CUpti_ProfilerReplayMode: we launch everything again for each pass.

In kernel replay (2) CUPTI does so for each launch and restores memory in between, which costs in proportion to the
launches and to the memory in use.
"""

Names = POINTER(c_char_p)


class CuptiError(RuntimeError):
    """CUPTI refused a call; `code` is its CUptiResult."""

    def __init__(self, function: str, code: int, description: str) -> None:
        super().__init__(f"{function} failed: {description} (CUptiResult {code})")
        self.code = code


class Params(ctypes.Structure):
    """The parameters of one function: every such structure begins with its own size and a null pointer."""

    FUNCTION: ClassVar[str]
    STRUCTURE: ClassVar[str]
    _fields_: ClassVar[Any] = [("structSize", c_size_t), ("pPriv", c_void_p)]

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        last: Any = getattr(type(self), type(self)._fields_[-1][0])
        self.structSize = last.offset + last.size


_TYPES: dict[str, Any] = {
    "size_t ": c_size_t,
    "int ": c_int,
    "uint8_t ": c_uint8,
    "uint16_t ": c_uint16,
    "uint32_t ": c_uint32,
    "char *": c_char_p,
    "char **": Names,
    "double *": POINTER(c_double),
    "void *": c_void_p,
}
"""What the structures are made of; a type is all that stands before a field's name."""


def _params(name: str, fields: str = "") -> type[Params]:
    """The parameters of `cupti` + NAME, as CUpti_NAME_Params; `fields` as the header declares them, with commas."""
    structure = f"CUpti_{name}_Params"
    members: dict[str, Any] = {"FUNCTION": f"cupti{name.replace('_', '')}", "STRUCTURE": structure}
    declared = [re.fullmatch(r"(.*?)(\w+)", field) for field in fields.split(", ") if field]
    if declared:
        # ctypes puts the fields of the base class first.
        members["_fields_"] = [(field[2], _TYPES[field[1]]) for field in declared if field]
    return type(structure, (Params,), members)


ProfilerInitialize = _params("Profiler_Initialize")
DeviceGetChipName = _params("Device_GetChipName", "size_t deviceIndex, char *pChipName")
ProfilerGetCounterAvailability = _params(
    "Profiler_GetCounterAvailability",
    "void *ctx, size_t counterAvailabilityImageSize, void *pCounterAvailabilityImage",
)
HostInitialize = _params(
    "Profiler_Host_Initialize",
    "int profilerType, char *pChipName, void *pCounterAvailabilityImage, void *pHostObject",
)
HostDeinitialize = _params("Profiler_Host_Deinitialize", "void *pHostObject")
HostGetMetricProperties = _params(
    "Profiler_Host_GetMetricProperties",
    "void *pHostObject, char *pMetricName, char *pDescription, char *pHwUnit, char *pDimUnit, int metricType",
)
HostConfigAddMetrics = _params(
    "Profiler_Host_ConfigAddMetrics", "void *pHostObject, char **ppMetricNames, size_t numMetrics"
)
HostGetConfigImageSize = _params(
    "Profiler_Host_GetConfigImageSize", "void *pHostObject, size_t configImageSize"
)
HostGetConfigImage = _params(
    "Profiler_Host_GetConfigImage", "void *pHostObject, size_t configImageSize, void *pConfigImage"
)
HostGetNumOfPasses = _params(
    "Profiler_Host_GetNumOfPasses", "size_t configImageSize, void *pConfigImage, size_t numOfPasses"
)
HostEvaluateToGpuValues = _params(
    "Profiler_Host_EvaluateToGpuValues",
    "void *pHostObject, void *pCounterDataImage, size_t counterDataImageSize, size_t rangeIndex, "
    "char **ppMetricNames, size_t numMetrics, double *pMetricValues",
)
# A null `ctx` is the current context.
RangeProfilerEnable = _params("RangeProfiler_Enable", "void *ctx, void *pRangeProfilerObject")
RangeProfilerDisable = _params("RangeProfiler_Disable", "void *pRangeProfilerObject")
RangeProfilerGetCounterDataSize = _params(
    "RangeProfiler_GetCounterDataSize",
    "void *pRangeProfilerObject, char **pMetricNames, size_t numMetrics, size_t maxNumOfRanges, "
    "uint32_t maxNumRangeTreeNodes, size_t counterDataSize",
)
RangeProfilerCounterDataImageInitialize = _params(
    "RangeProfiler_CounterDataImage_Initialize",
    "void *pRangeProfilerObject, size_t counterDataSize, void *pCounterData",
)
RangeProfilerSetConfig = _params(
    "RangeProfiler_SetConfig",
    "void *pRangeProfilerObject, size_t configSize, void *pConfig, size_t counterDataImageSize, "
    "void *pCounterDataImage, int range, int replayMode, size_t maxRangesPerPass, "
    "uint16_t numNestingLevels, uint16_t minNestingLevel, size_t passIndex, "
    "uint16_t targetNestingLevel",
)
RangeProfilerStart = _params("RangeProfiler_Start", "void *pRangeProfilerObject")
RangeProfilerStop = _params(
    "RangeProfiler_Stop",
    "void *pRangeProfilerObject, size_t passIndex, size_t targetNestingLevel, uint8_t isAllPassSubmitted",
)
RangeProfilerDecodeData = _params(
    "RangeProfiler_DecodeData", "void *pRangeProfilerObject, size_t numOfRangeDropped"
)
RangeProfilerGetCounterDataInfo = _params(
    "RangeProfiler_GetCounterDataInfo",
    "void *pCounterDataImage, size_t counterDataImageSize, size_t numTotalRanges",
)


class Cupti:
    """A loaded libcupti."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, params: Params) -> None:
        """Call the function that the parameters belong to, which may write into them. Raises CuptiError."""
        code = getattr(self._library, params.FUNCTION)(ctypes.byref(params))
        if code:
            raise CuptiError(params.FUNCTION, code, self._describe(code))

    def _describe(self, code: int) -> str:
        text = c_char_p()
        if self._library.cuptiGetErrorMessage(c_int(code), ctypes.byref(text)) or text.value is None:
            return "no description"
        return text.value.decode(errors="replace").rstrip(".")


def load_cupti() -> Cupti:
    """Load libcupti from a wheel or a CUDA toolkit. Raises DynamicLibNotFoundError (cuda.pathfinder) or OSError."""
    return Cupti(ctypes.CDLL(load_nvidia_dynamic_lib("cupti").abs_path))
