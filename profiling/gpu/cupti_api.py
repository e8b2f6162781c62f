"""The part of CUPTI's C interface that the range profiler needs, one structure for each function.

Layouts are those of CUPTI 13 (`cupti_profiler_target.h`, `cupti_target.h`, `cupti_profiler_host.h` and
`cupti_range_profiler.h`), whose C names the classes and fields keep; a test compares them with the headers.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_void_p
from typing import Any, ClassVar

from cuda.pathfinder import load_nvidia_dynamic_lib

RANGE_PROFILER = 0
"""CUpti_ProfilerType: CUPTI_PROFILER_TYPE_RANGE_PROFILER."""

AUTO_RANGE = 1
"""CUpti_ProfilerRange: every launch of a kernel is a range."""

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


def _params(function: str, structure: str, **fields: Any) -> type[Params]:
    """The parameters of a function; `structure` is their name in C, `fields` are in the order of the header."""
    members: dict[str, Any] = {"FUNCTION": function, "STRUCTURE": structure}
    if fields:
        # ctypes puts the fields of the base class first.
        members["_fields_"] = list(fields.items())
    return type(structure, (Params,), members)


ProfilerInitialize = _params("cuptiProfilerInitialize", "CUpti_Profiler_Initialize_Params")
DeviceGetChipName = _params(
    "cuptiDeviceGetChipName", "CUpti_Device_GetChipName_Params", deviceIndex=c_size_t, pChipName=c_char_p
)
ProfilerGetCounterAvailability = _params(
    "cuptiProfilerGetCounterAvailability",
    "CUpti_Profiler_GetCounterAvailability_Params",
    ctx=c_void_p,
    counterAvailabilityImageSize=c_size_t,
    pCounterAvailabilityImage=c_void_p,
)
HostInitialize = _params(
    "cuptiProfilerHostInitialize",
    "CUpti_Profiler_Host_Initialize_Params",
    profilerType=c_int,
    pChipName=c_char_p,
    pCounterAvailabilityImage=c_void_p,
    pHostObject=c_void_p,
)
HostDeinitialize = _params(
    "cuptiProfilerHostDeinitialize", "CUpti_Profiler_Host_Deinitialize_Params", pHostObject=c_void_p
)
HostGetMetricProperties = _params(
    "cuptiProfilerHostGetMetricProperties",
    "CUpti_Profiler_Host_GetMetricProperties_Params",
    pHostObject=c_void_p,
    pMetricName=c_char_p,
    pDescription=c_char_p,
    pHwUnit=c_char_p,
    pDimUnit=c_char_p,
    metricType=c_int,
)
HostConfigAddMetrics = _params(
    "cuptiProfilerHostConfigAddMetrics",
    "CUpti_Profiler_Host_ConfigAddMetrics_Params",
    pHostObject=c_void_p,
    ppMetricNames=Names,
    numMetrics=c_size_t,
)
HostGetConfigImageSize = _params(
    "cuptiProfilerHostGetConfigImageSize",
    "CUpti_Profiler_Host_GetConfigImageSize_Params",
    pHostObject=c_void_p,
    configImageSize=c_size_t,
)
HostGetConfigImage = _params(
    "cuptiProfilerHostGetConfigImage",
    "CUpti_Profiler_Host_GetConfigImage_Params",
    pHostObject=c_void_p,
    configImageSize=c_size_t,
    pConfigImage=c_void_p,
)
HostGetNumOfPasses = _params(
    "cuptiProfilerHostGetNumOfPasses",
    "CUpti_Profiler_Host_GetNumOfPasses_Params",
    configImageSize=c_size_t,
    pConfigImage=c_void_p,
    numOfPasses=c_size_t,
)
HostEvaluateToGpuValues = _params(
    "cuptiProfilerHostEvaluateToGpuValues",
    "CUpti_Profiler_Host_EvaluateToGpuValues_Params",
    pHostObject=c_void_p,
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    rangeIndex=c_size_t,
    ppMetricNames=Names,
    numMetrics=c_size_t,
    pMetricValues=POINTER(c_double),
)
# A null `ctx` is the current context.
RangeProfilerEnable = _params(
    "cuptiRangeProfilerEnable",
    "CUpti_RangeProfiler_Enable_Params",
    ctx=c_void_p,
    pRangeProfilerObject=c_void_p,
)
RangeProfilerDisable = _params(
    "cuptiRangeProfilerDisable", "CUpti_RangeProfiler_Disable_Params", pRangeProfilerObject=c_void_p
)
RangeProfilerGetCounterDataSize = _params(
    "cuptiRangeProfilerGetCounterDataSize",
    "CUpti_RangeProfiler_GetCounterDataSize_Params",
    pRangeProfilerObject=c_void_p,
    pMetricNames=Names,
    numMetrics=c_size_t,
    maxNumOfRanges=c_size_t,
    maxNumRangeTreeNodes=c_uint32,
    counterDataSize=c_size_t,
)
RangeProfilerCounterDataImageInitialize = _params(
    "cuptiRangeProfilerCounterDataImageInitialize",
    "CUpti_RangeProfiler_CounterDataImage_Initialize_Params",
    pRangeProfilerObject=c_void_p,
    counterDataSize=c_size_t,
    pCounterData=c_void_p,
)
RangeProfilerSetConfig = _params(
    "cuptiRangeProfilerSetConfig",
    "CUpti_RangeProfiler_SetConfig_Params",
    pRangeProfilerObject=c_void_p,
    configSize=c_size_t,
    pConfig=c_void_p,
    counterDataImageSize=c_size_t,
    pCounterDataImage=c_void_p,
    range=c_int,
    replayMode=c_int,
    maxRangesPerPass=c_size_t,
    numNestingLevels=c_uint16,
    minNestingLevel=c_uint16,
    passIndex=c_size_t,
    targetNestingLevel=c_uint16,
)
RangeProfilerStart = _params(
    "cuptiRangeProfilerStart", "CUpti_RangeProfiler_Start_Params", pRangeProfilerObject=c_void_p
)
RangeProfilerStop = _params(
    "cuptiRangeProfilerStop",
    "CUpti_RangeProfiler_Stop_Params",
    pRangeProfilerObject=c_void_p,
    passIndex=c_size_t,
    targetNestingLevel=c_size_t,
    isAllPassSubmitted=c_uint8,
)
RangeProfilerDecodeData = _params(
    "cuptiRangeProfilerDecodeData",
    "CUpti_RangeProfiler_DecodeData_Params",
    pRangeProfilerObject=c_void_p,
    numOfRangeDropped=c_size_t,
)
RangeProfilerGetCounterDataInfo = _params(
    "cuptiRangeProfilerGetCounterDataInfo",
    "CUpti_RangeProfiler_GetCounterDataInfo_Params",
    pCounterDataImage=c_void_p,
    counterDataImageSize=c_size_t,
    numTotalRanges=c_size_t,
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
    """Find libcupti in a wheel (nvidia-cuda-cupti) or a CUDA toolkit, and load it.

    Raises cuda.pathfinder's DynamicLibNotFoundError or OSError.
    """
    return Cupti(ctypes.CDLL(load_nvidia_dynamic_lib("cupti").abs_path))
