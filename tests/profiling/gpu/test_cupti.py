"""The range profiler: against a fake CUPTI, and on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from mctskernel.profiling.gpu import cupti, cupti_api
from mctskernel.profiling.gpu.cupti import CountersUnavailableError, RangeProfiler

UNITS = {"gpu__time_duration.sum": b"nanosecond", "dram__bytes.sum": b"byte", "a.ratio": b""}
VALUES = {b"gpu__time_duration.sum": 2500.0, b"dram__bytes.sum": 4096.0, b"a.ratio": float("nan")}
PASSES = 3


class FakeCupti:
    """Answers like CUPTI on a chip that has the metrics of `UNITS`; keeps the names of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, int] = {}
        self.launches = self.metrics = self.started = 0
        self.profiling = False

    def launch(self) -> None:
        self.launches += self.profiling and self.launches < self.most * self.started

    def call(self, params: Any) -> None:  # noqa: C901, PLR0912 - a table
        name = params.FUNCTION.removeprefix("cupti").removeprefix("Profiler")
        self.calls.append(name)
        if name in self.fails:
            raise cupti_api.CuptiError(params.FUNCTION, self.fails[name], "no")
        match name:
            case "DeviceGetChipName":
                params.pChipName = b"GH100"
            case "GetCounterAvailability" if params.pCounterAvailabilityImage is None:
                params.counterAvailabilityImageSize = 8
            case "HostInitialize":
                assert (params.profilerType, params.pChipName) == (cupti_api.RANGE_PROFILER, b"GH100")
                params.pHostObject = 1
            case "HostGetMetricProperties":
                if params.pMetricName.decode() not in UNITS:
                    raise cupti_api.CuptiError(params.FUNCTION, 17, "invalid metric name")
                params.pDimUnit = UNITS[params.pMetricName.decode()]
            case "HostGetConfigImageSize":
                params.configImageSize = 16
            case "HostGetNumOfPasses":
                assert params.configImageSize == 16
                params.numOfPasses = PASSES if self.metrics > 1 else 1
            case "HostConfigAddMetrics":
                self.metrics = params.numMetrics
            case "RangeProfilerEnable":
                params.pRangeProfilerObject = 2
                self.most = self.config = 0
            case "RangeProfilerGetCounterDataSize":
                assert params.maxNumOfRanges == params.maxNumRangeTreeNodes
                params.counterDataSize = 32
            case "RangeProfilerSetConfig":
                assert (params.range, params.replayMode) == (cupti_api.AUTO_RANGE, cupti_api.USER_REPLAY)
                assert (params.configSize, params.counterDataImageSize) == (16, 32)
                self.launches = self.started = 0
                # As the driver does until it is enabled anew.
                self.most, self.config = self.most or params.maxRangesPerPass, self.config or params.pConfig
                self.is_stale = params.pConfig != self.config
            case "RangeProfilerStart" | "RangeProfilerStop":
                self.profiling = name == "RangeProfilerStart"
                self.started += self.profiling
            case "RangeProfilerGetCounterDataInfo":
                params.numTotalRanges = self.most if self.is_stale else self.launches // self.started
            case "HostEvaluateToGpuValues":
                for index in range(params.numMetrics):
                    params.pMetricValues[index] = VALUES[params.ppMetricNames[index]] + params.rangeIndex


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    found = FakeCupti()
    monkeypatch.setattr(cupti, "load_cupti", lambda: found)
    monkeypatch.setattr(cupti, "current_device", lambda: 0)
    monkeypatch.setattr(cupti, "synchronize", lambda: found.calls.append("synchronize"))
    return found


def test_every_launch_gets_its_counters_in_base_units(fake: FakeCupti) -> None:
    profiler = RangeProfiler(list(UNITS))

    def run() -> None:
        fake.launch()
        fake.launch()

    first, second = profiler.measure(run)
    assert first == {"gpu__time_duration.sum": pytest.approx(2.5e-6), "dram__bytes.sum": 4096.0}
    assert second == {"gpu__time_duration.sum": pytest.approx(2.501e-6), "dram__bytes.sum": 4097.0}
    assert fake.started == PASSES
    assert profiler.measure(run, brief=True) == [
        {"gpu__time_duration.sum": pytest.approx(each)} for each in (2.5e-6, 2.501e-6)
    ]
    assert fake.started == 1
    assert len(profiler.measure(run)) == 2


def test_a_plan_of_many_launches_behind_one_of_few_is_counted_whole(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["dram__bytes.sum"])
    for launches in (1, 3, 20):

        def run(launches: int = launches) -> None:
            for _ in range(launches):
                fake.launch()

        assert len(profiler.measure(run, launches)) == launches


@pytest.mark.parametrize(
    ("function", "code", "fix"),
    [
        ("GetCounterAvailability", 35, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("Initialize", 15, "update the driver"),
        ("HostInitialize", 46, "--upgrade nvidia-cuda-cupti"),
        ("GetCounterAvailability", 43, "MIG"),
    ],
)
def test_a_refusal_is_a_sentence_with_the_fix(fake: FakeCupti, function: str, code: int, fix: str) -> None:
    fake.fails[function] = code
    with pytest.raises(CountersUnavailableError) as caught:
        RangeProfiler(["dram__bytes.sum"])
    assert fix in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_permission_lost_while_measuring_is_a_sentence_and_the_session_ends(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["dram__bytes.sum"])
    fake.fails["RangeProfilerStart"] = 35
    with pytest.raises(CountersUnavailableError, match="NVreg_RestrictProfilingToAdminUsers"):
        profiler.measure(fake.launch)
    assert fake.calls[-1] == "RangeProfilerDisable"
    fake.fails.clear()
    assert profiler.measure(fake.launch) == [{"dram__bytes.sum": 4096.0}]
