"""Hardware counters of the kernels that this process launches, read in-process by CUPTI's range profiler.

Values, names and units are those of Nsight Compute, except that times are in seconds.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from cuda.pathfinder import DynamicLibNotFoundError

from mctskernel.core.launch_plan import MAX_LAUNCHES
from mctskernel.profiling.gpu import cupti_api as api
from mctskernel.profiling.gpu.cuda_driver import current_device, synchronize
from mctskernel.profiling.gpu.cupti_api import load_cupti

Bytes: TypeAlias = "ctypes.Array[ctypes.c_uint8]"

_BASE_UNITS = {"nanosecond": 1e-9}
"""What a value is multiplied by, for the units that aren't base units already."""


class CountersUnavailableError(RuntimeError):
    """Hardware counters can't be read here; the message is one sentence with the fix."""


class CountersBusyError(CountersUnavailableError):
    """Another process reads counters on this GPU."""


BUSY_SECONDS = 3.0
"""How long to wait for another process to release the counters: an idle one does so after half a second."""

BUSY_POLL_SECONDS = 0.1
USUAL_LAUNCHES = 8  # launches that a session has room for, unless there are more

Found = TypeVar("Found")


def when_free(count: Callable[[], Found]) -> Found:
    """The result of counting, tried again while another process has the counters. Raises its errors."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return count()
        except CountersBusyError:
            if time.monotonic() > deadline:
                raise
        time.sleep(BUSY_POLL_SECONDS)


class RangeProfiler:
    """Reads counters of every kernel that a function launches.

    The CUDA context must be current, and there is one of these at a time: from its first measurement until it is
    released, it holds the GPU's counters. Metrics that the GPU doesn't know are left out. Raises
    CountersUnavailableError.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self._cupti = _load()
        self._session: _Session | None = None
        self._brief: _Schedule | None = None
        with _sentences():
            self._chip, self._available = self._examine_gpu()
            self._whole = self._schedule(metrics)

    def measure(
        self, run: Callable[[], None], launches: int = MAX_LAUNCHES, *, brief: bool = False
    ) -> list[dict[str, float]]:
        """The counters of each launch that `run` makes, in order; metrics without a value are left out.

        With `brief` they are those, from the first on, that one pass reads. `run` is called once for each pass and must
        do the same every time, on memory that it may have written before. Nothing but launches of kernels is counted:
        it may also fill and copy. It makes up to `launches`; more aren't read. Raises CountersUnavailableError, and
        whatever `run` raises.
        """
        with _sentences():
            schedule = self._one_pass() if brief else self._whole
            if self._session is not None and not self._session.fits(schedule, launches):
                self.release()
            if self._session is None:
                self._session = self._enable(schedule, max(USUAL_LAUNCHES, launches))
            try:
                return self._measured(self._session, run)
            except BaseException:
                # The passes are incomplete, and perhaps the context is lost: the next time starts afresh.
                self.release()
                raise

    def _examine_gpu(self) -> tuple[bytes, Bytes]:
        """The name of the current device's chip, and which of its counters are there."""
        self._cupti.call(api.ProfilerInitialize())
        chip = api.DeviceGetChipName(deviceIndex=current_device())
        self._cupti.call(chip)
        size = api.ProfilerGetCounterAvailability()
        self._cupti.call(size)
        image = (ctypes.c_uint8 * size.counterAvailabilityImageSize)()
        self._cupti.call(
            api.ProfilerGetCounterAvailability(
                counterAvailabilityImageSize=len(image), pCounterAvailabilityImage=ctypes.addressof(image)
            )
        )
        return chip.pChipName, image

    def _schedule(self, metrics: Sequence[str]) -> _Schedule:
        return _Schedule(self._cupti, self._chip, self._available, metrics)

    def _one_pass(self) -> _Schedule:
        """The longest beginning of the metrics that one pass reads; at least the first of them."""
        if self._brief is None:
            self._brief = self._schedule(self._whole.metrics[:1])
            enough, too_many = 1, len(self._whole.metrics) + 1
            while too_many - enough > 1:
                middle = (enough + too_many) // 2
                tried = self._schedule(self._whole.metrics[:middle])
                if tried.passes == 1:
                    self._brief.close()
                    self._brief, enough = tried, middle
                else:
                    tried.close()
                    too_many = middle
        return self._brief

    def _enable(self, schedule: _Schedule, launches: int) -> _Session:
        """Prepare the current context. Kernels that run outside of `measure` are as fast as before."""
        enable = api.RangeProfilerEnable()
        self._cupti.call(enable)
        size = api.RangeProfilerGetCounterDataSize(
            pRangeProfilerObject=enable.pRangeProfilerObject,
            pMetricNames=ctypes.cast(schedule.names, api.Names),
            numMetrics=len(schedule.metrics),
            maxNumOfRanges=launches,
            maxNumRangeTreeNodes=launches,
        )
        self._cupti.call(size)
        image = (ctypes.c_uint8 * size.counterDataSize)()
        return _Session(enable.pRangeProfilerObject, schedule, launches, image)

    def release(self) -> None:
        """Let other processes read counters on this GPU; the next measurement sets them up again."""
        if self._session is not None:
            with suppress(api.CuptiError):
                self._cupti.call(api.RangeProfilerDisable(pRangeProfilerObject=self._session.profiler))
            self._session = None

    def _measured(self, session: _Session, run: Callable[[], None]) -> list[dict[str, float]]:
        profiler, schedule, image = session.profiler, session.schedule, session.image
        self._cupti.call(
            api.RangeProfilerCounterDataImageInitialize(
                pRangeProfilerObject=profiler,
                counterDataSize=len(image),
                pCounterData=ctypes.addressof(image),
            )
        )
        self._cupti.call(
            api.RangeProfilerSetConfig(
                pRangeProfilerObject=profiler,
                configSize=len(schedule.config),
                pConfig=ctypes.addressof(schedule.config),
                counterDataImageSize=len(image),
                pCounterDataImage=ctypes.addressof(image),
                range=api.AUTO_RANGE,
                replayMode=api.USER_REPLAY,
                maxRangesPerPass=session.launches,
                numNestingLevels=1,
                minNestingLevel=1,
                targetNestingLevel=1,
            )
        )
        for _ in range(schedule.passes):
            self._cupti.call(api.RangeProfilerStart(pRangeProfilerObject=profiler))
            run()
            synchronize()
            self._cupti.call(api.RangeProfilerStop(pRangeProfilerObject=profiler))
        self._cupti.call(api.RangeProfilerDecodeData(pRangeProfilerObject=profiler))
        found = api.RangeProfilerGetCounterDataInfo(
            pCounterDataImage=ctypes.addressof(image), counterDataImageSize=len(image)
        )
        self._cupti.call(found)
        return [schedule.values(image, index) for index in range(found.numTotalRanges)]


class _Schedule:
    """Metrics that the chip knows, over as few passes as they take."""

    def __init__(self, cupti: api.Cupti, chip: bytes, available: Bytes, metrics: Sequence[str]) -> None:
        self._cupti = cupti
        host = api.HostInitialize(
            profilerType=api.RANGE_PROFILER,
            pChipName=chip,
            pCounterAvailabilityImage=ctypes.addressof(available),
        )
        cupti.call(host)
        self._host = host.pHostObject
        units = {name: self._unit(name) for name in metrics}
        self.metrics = tuple(name for name, unit in units.items() if unit is not None)
        self._scales = [_BASE_UNITS.get(units[name] or "", 1.0) for name in self.metrics]
        if not self.metrics:
            raise CountersUnavailableError(
                f"CUPTI knows none of the {len(metrics)} counters on the GPU {chip.decode()}: "
                "pip install --upgrade nvidia-cuda-cupti."
            )
        # CUPTI reads the names through pointers whenever it is called: they must stay alive.
        self.names = (ctypes.c_char_p * len(self.metrics))(*(name.encode() for name in self.metrics))
        self.config = self._configure()
        passes = api.HostGetNumOfPasses(
            configImageSize=len(self.config), pConfigImage=ctypes.addressof(self.config)
        )
        cupti.call(passes)
        self.passes = int(passes.numOfPasses)

    def values(self, image: Bytes, index: int) -> dict[str, float]:
        """The values of one range, in base units; a ratio whose denominator is 0 has none."""
        values = (ctypes.c_double * len(self.metrics))()
        self._cupti.call(
            api.HostEvaluateToGpuValues(
                pHostObject=self._host,
                pCounterDataImage=ctypes.addressof(image),
                counterDataImageSize=len(image),
                rangeIndex=index,
                ppMetricNames=ctypes.cast(self.names, api.Names),
                numMetrics=len(self.metrics),
                pMetricValues=values,
            )
        )
        return {
            name: scale * value
            for name, scale, value in zip(self.metrics, self._scales, values, strict=True)
            if math.isfinite(value)
        }

    def close(self) -> None:
        """Free CUPTI's object."""
        with suppress(api.CuptiError):
            self._cupti.call(api.HostDeinitialize(pHostObject=self._host))

    def _unit(self, metric: str) -> str | None:
        """The metric's unit, or None when the chip has no such metric."""
        properties = api.HostGetMetricProperties(pHostObject=self._host, pMetricName=metric.encode())
        try:
            self._cupti.call(properties)
        except api.CuptiError as error:
            if error.code == _INVALID_METRIC_NAME:
                return None
            raise
        return (properties.pDimUnit or b"").decode()

    def _configure(self) -> Bytes:
        """The schedule of the metrics over passes."""
        self._cupti.call(
            api.HostConfigAddMetrics(
                pHostObject=self._host,
                ppMetricNames=ctypes.cast(self.names, api.Names),
                numMetrics=len(self.metrics),
            )
        )
        size = api.HostGetConfigImageSize(pHostObject=self._host)
        self._cupti.call(size)
        image: Bytes = (ctypes.c_uint8 * size.configImageSize)()
        self._cupti.call(
            api.HostGetConfigImage(
                pHostObject=self._host, configImageSize=len(image), pConfigImage=ctypes.addressof(image)
            )
        )
        return image


@dataclass(frozen=True)
class _Session:
    """The range profiler of a context for some metrics of so many launches at a time, and room for their counters.

    It counts others wrongly: launches beyond these are dropped, and other metrics are read of launches that were none.
    """

    profiler: int
    schedule: _Schedule
    launches: int
    image: Bytes
    """Clearing one for 64 launches, 24 MB, takes 5 ms."""

    def fits(self, schedule: _Schedule, launches: int) -> bool:
        return self.schedule is schedule and self.launches >= launches


_INVALID_METRIC_NAME = 17

COUNTERS_FORBIDDEN = (
    "The driver lets only administrators read GPU counters: load the kernel module with "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root or with CAP_SYS_ADMIN."
)
_ANOTHER = "Another profiler holds the GPU's counters: end it and start again."
_TOO_OLD = (
    "The NVIDIA driver is too old for this CUPTI: update the driver, or pip install the nvidia-cuda-cupti of "
    "the driver's own CUDA version."
)
_ELSEWHERE = "GPU counters aren't available {}: use a GPU of its own on a Linux host."

_FIXES = {
    7: _ANOTHER,
    14: _TOO_OLD,
    15: _TOO_OLD,
    26: _ANOTHER,
    27: "CUPTI has no range profiler for this GPU: it needs compute capability 7.0 or newer.",
    33: _ELSEWHERE.format("on this virtual GPU"),
    35: COUNTERS_FORBIDDEN,
    39: _ANOTHER,
    40: _ELSEWHERE.format("on this virtual GPU, whose hypervisor forbids them"),
    41: _ELSEWHERE.format("under confidential computing"),
    42: _ELSEWHERE.format("on a mining GPU"),
    43: _ELSEWHERE.format("on a MIG slice of this kind"),
    44: _ELSEWHERE.format("under SLI"),
    45: _ELSEWHERE.format("under this WSL"),
    46: "CUPTI doesn't know this GPU yet: pip install --upgrade nvidia-cuda-cupti.",
}
"""By CUptiResult; `cupti_result.h` has the names."""


def _load() -> api.Cupti:
    try:
        return load_cupti()
    except (DynamicLibNotFoundError, OSError) as error:
        raise CountersUnavailableError("There is no libcupti here: pip install nvidia-cuda-cupti.") from error


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except api.CuptiError as error:
        fix = _FIXES.get(
            error.code, f"CUPTI can't read the GPU's counters ({error}): update CUPTI and the driver."
        )
        kind = CountersBusyError if fix == _ANOTHER else CountersUnavailableError
        raise kind(fix) from error
