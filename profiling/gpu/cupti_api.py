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
    _fields_: ClassVar[Any] = [("structSize", c_size_t), ("pPriv", c_void_p)]

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        last: Any = getattr(type(self), type(self)._fields_[-1][0])
        self.structSize = last.offset + last.size


class ProfilerInitialize(Params):
    """CUpti_Profiler_Initialize_Params."""

    FUNCTION = "cuptiProfilerInitialize"


class DeviceGetChipName(Params):
    """CUpti_Device_GetChipName_Params."""

    FUNCTION = "cuptiDeviceGetChipName"
    _fields_: ClassVar[Any] = [("deviceIndex", c_size_t), ("pChipName", c_char_p)]


class ProfilerGetCounterAvailability(Params):
    """CUpti_Profiler_GetCounterAvailability_Params; a null context is the current one."""

    FUNCTION = "cuptiProfilerGetCounterAvailability"
    _fields_: ClassVar[Any] = [
        ("ctx", c_void_p),
        ("counterAvailabilityImageSize", c_size_t),
        ("pCounterAvailabilityImage", c_void_p),
    ]


class HostInitialize(Params):
    """CUpti_Profiler_Host_Initialize_Params."""

    FUNCTION = "cuptiProfilerHostInitialize"
    _fields_: ClassVar[Any] = [
        ("profilerType", c_int),
        ("pChipName", c_char_p),
        ("pCounterAvailabilityImage", c_void_p),
        ("pHostObject", c_void_p),
    ]


class HostDeinitialize(Params):
    """CUpti_Profiler_Host_Deinitialize_Params."""

    FUNCTION = "cuptiProfilerHostDeinitialize"
    _fields_: ClassVar[Any] = [("pHostObject", c_void_p)]


class HostGetMetricProperties(Params):
    """CUpti_Profiler_Host_GetMetricProperties_Params."""

    FUNCTION = "cuptiProfilerHostGetMetricProperties"
    _fields_: ClassVar[Any] = [
        ("pHostObject", c_void_p),
        ("pMetricName", c_char_p),
        ("pDescription", c_char_p),
        ("pHwUnit", c_char_p),
        ("pDimUnit", c_char_p),
        ("metricType", c_int),
    ]


class HostConfigAddMetrics(Params):
    """CUpti_Profiler_Host_ConfigAddMetrics_Params."""

    FUNCTION = "cuptiProfilerHostConfigAddMetrics"
    _fields_: ClassVar[Any] = [("pHostObject", c_void_p), ("ppMetricNames", Names), ("numMetrics", c_size_t)]


class HostGetConfigImageSize(Params):
    """CUpti_Profiler_Host_GetConfigImageSize_Params."""

    FUNCTION = "cuptiProfilerHostGetConfigImageSize"
    _fields_: ClassVar[Any] = [("pHostObject", c_void_p), ("configImageSize", c_size_t)]


class HostGetConfigImage(Params):
    """CUpti_Profiler_Host_GetConfigImage_Params."""

    FUNCTION = "cuptiProfilerHostGetConfigImage"
    _fields_: ClassVar[Any] = [
        ("pHostObject", c_void_p),
        ("configImageSize", c_size_t),
        ("pConfigImage", c_void_p),
    ]


class HostGetNumOfPasses(Params):
    """CUpti_Profiler_Host_GetNumOfPasses_Params."""

    FUNCTION = "cuptiProfilerHostGetNumOfPasses"
    _fields_: ClassVar[Any] = [
        ("configImageSize", c_size_t),
        ("pConfigImage", c_void_p),
        ("numOfPasses", c_size_t),
    ]


class HostEvaluateToGpuValues(Params):
    """CUpti_Profiler_Host_EvaluateToGpuValues_Params."""

    FUNCTION = "cuptiProfilerHostEvaluateToGpuValues"
    _fields_: ClassVar[Any] = [
        ("pHostObject", c_void_p),
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("rangeIndex", c_size_t),
        ("ppMetricNames", Names),
        ("numMetrics", c_size_t),
        ("pMetricValues", POINTER(c_double)),
    ]


class RangeProfilerEnable(Params):
    """CUpti_RangeProfiler_Enable_Params; a null context is the current one."""

    FUNCTION = "cuptiRangeProfilerEnable"
    _fields_: ClassVar[Any] = [("ctx", c_void_p), ("pRangeProfilerObject", c_void_p)]


class RangeProfilerDisable(Params):
    """CUpti_RangeProfiler_Disable_Params."""

    FUNCTION = "cuptiRangeProfilerDisable"
    _fields_: ClassVar[Any] = [("pRangeProfilerObject", c_void_p)]


class RangeProfilerGetCounterDataSize(Params):
    """CUpti_RangeProfiler_GetCounterDataSize_Params."""

    FUNCTION = "cuptiRangeProfilerGetCounterDataSize"
    _fields_: ClassVar[Any] = [
        ("pRangeProfilerObject", c_void_p),
        ("pMetricNames", Names),
        ("numMetrics", c_size_t),
        ("maxNumOfRanges", c_size_t),
        ("maxNumRangeTreeNodes", c_uint32),
        ("counterDataSize", c_size_t),
    ]


class RangeProfilerCounterDataImageInitialize(Params):
    """CUpti_RangeProfiler_CounterDataImage_Initialize_Params."""

    FUNCTION = "cuptiRangeProfilerCounterDataImageInitialize"
    _fields_: ClassVar[Any] = [
        ("pRangeProfilerObject", c_void_p),
        ("counterDataSize", c_size_t),
        ("pCounterData", c_void_p),
    ]


class RangeProfilerSetConfig(Params):
    """CUpti_RangeProfiler_SetConfig_Params."""

    FUNCTION = "cuptiRangeProfilerSetConfig"
    _fields_: ClassVar[Any] = [
        ("pRangeProfilerObject", c_void_p),
        ("configSize", c_size_t),
        ("pConfig", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("pCounterDataImage", c_void_p),
        ("range", c_int),
        ("replayMode", c_int),
        ("maxRangesPerPass", c_size_t),
        ("numNestingLevels", c_uint16),
        ("minNestingLevel", c_uint16),
        ("passIndex", c_size_t),
        ("targetNestingLevel", c_uint16),
    ]


class RangeProfilerStart(Params):
    """CUpti_RangeProfiler_Start_Params."""

    FUNCTION = "cuptiRangeProfilerStart"
    _fields_: ClassVar[Any] = [("pRangeProfilerObject", c_void_p)]


class RangeProfilerStop(Params):
    """CUpti_RangeProfiler_Stop_Params."""

    FUNCTION = "cuptiRangeProfilerStop"
    _fields_: ClassVar[Any] = [
        ("pRangeProfilerObject", c_void_p),
        ("passIndex", c_size_t),
        ("targetNestingLevel", c_size_t),
        ("isAllPassSubmitted", c_uint8),
    ]


class RangeProfilerDecodeData(Params):
    """CUpti_RangeProfiler_DecodeData_Params."""

    FUNCTION = "cuptiRangeProfilerDecodeData"
    _fields_: ClassVar[Any] = [("pRangeProfilerObject", c_void_p), ("numOfRangeDropped", c_size_t)]


class RangeProfilerGetCounterDataInfo(Params):
    """CUpti_RangeProfiler_GetCounterDataInfo_Params."""

    FUNCTION = "cuptiRangeProfilerGetCounterDataInfo"
    _fields_: ClassVar[Any] = [
        ("pCounterDataImage", c_void_p),
        ("counterDataImageSize", c_size_t),
        ("numTotalRanges", c_size_t),
    ]


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
