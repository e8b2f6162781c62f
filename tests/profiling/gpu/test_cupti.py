"""The range profiler: against a CUPTI that plays its part in Python, and on a GPU against `ncu`."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from mctskernel.core.executor import CounterSet
from mctskernel.experiments.compare_counters import LAUNCHES, Workbench, compare, opened_workbench
from mctskernel.profiling.architecture import architecture_of
from mctskernel.profiling.counter_sets import DEFAULT_METRICS, METRICS, STAND_INS, counters_for, fewer_remarks
from mctskernel.profiling.counters import (
    DRAM_BYTES,
    L1_FROM_L2,
    L1_SECTORS,
    L2_READS,
    L2_SENDING,
    LOAD_SECTORS,
    STORE_SECTORS,
    TIME,
)
from mctskernel.profiling.gpu import cupti, cupti_api
from mctskernel.profiling.gpu.cuda_driver import Stopwatch, synchronize
from mctskernel.profiling.gpu.cupti import CountersUnavailableError, RangeProfiler, when_free
from mctskernel.profiling.utilisation import Unit, utilisation

UNITS = {"gpu__time_duration.sum": b"nanosecond", "dram__bytes.sum": b"byte", "a.ratio": b""}
VALUES = {b"gpu__time_duration.sum": 2500.0, b"dram__bytes.sum": 4096.0, b"a.ratio": float("nan")}
PASSES = 3


class FakeCupti:
    """Answers like CUPTI on a chip that has the metrics of `UNITS`; keeps the names of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, int] = {}
        self.launches = 0
        self.profiling = False
        self.alive: list[bytes] = []

    def launch(self) -> None:
        self.launches += self.profiling

    def call(self, params: cupti_api.Params) -> None:
        name = params.FUNCTION.removeprefix("cupti").removeprefix("Profiler")
        self.calls.append(name)
        if name in self.fails:
            raise cupti_api.CuptiError(params.FUNCTION, self.fails[name], "no")
        answer: Callable[..., None] | None = getattr(
            self, "answer_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None
        )
        if answer is not None:
            answer(params)

    def answer_device_get_chip_name(self, params: cupti_api.DeviceGetChipName) -> None:
        params.pChipName = b"GH100"

    def answer_get_counter_availability(self, params: cupti_api.ProfilerGetCounterAvailability) -> None:
        if params.pCounterAvailabilityImage is None:
            params.counterAvailabilityImageSize = 8

    def answer_host_initialize(self, params: cupti_api.HostInitialize) -> None:
        assert params.profilerType == cupti_api.RANGE_PROFILER
        assert params.pChipName == b"GH100"
        assert params.pCounterAvailabilityImage
        params.pHostObject = 1

    def answer_host_get_metric_properties(self, params: cupti_api.HostGetMetricProperties) -> None:
        unit = UNITS.get(params.pMetricName.decode())
        if unit is None:
            raise cupti_api.CuptiError(params.FUNCTION, 17, "invalid metric name")
        params.pDimUnit = unit

    def answer_host_config_add_metrics(self, params: cupti_api.HostConfigAddMetrics) -> None:
        assert all(params.ppMetricNames[index].decode() in UNITS for index in range(params.numMetrics))

    def answer_host_get_config_image_size(self, params: cupti_api.HostGetConfigImageSize) -> None:
        params.configImageSize = 16

    def answer_host_get_num_of_passes(self, params: cupti_api.HostGetNumOfPasses) -> None:
        assert params.configImageSize == 16
        params.numOfPasses = PASSES

    def answer_range_profiler_enable(self, params: cupti_api.RangeProfilerEnable) -> None:
        params.pRangeProfilerObject = 2

    def answer_range_profiler_get_counter_data_size(
        self, params: cupti_api.RangeProfilerGetCounterDataSize
    ) -> None:
        assert params.pRangeProfilerObject == 2
        assert params.maxNumOfRanges == params.maxNumRangeTreeNodes
        self.room = params.maxNumOfRanges
        params.counterDataSize = 32

    def answer_range_profiler_set_config(self, params: cupti_api.RangeProfilerSetConfig) -> None:
        assert (params.range, params.replayMode) == (cupti_api.AUTO_RANGE, cupti_api.USER_REPLAY)
        assert (params.configSize, params.counterDataImageSize) == (16, 32)
        assert params.maxRangesPerPass == self.room
        self.launches = 0

    def answer_range_profiler_start(self, _: cupti_api.RangeProfilerStart) -> None:
        self.profiling = True

    def answer_range_profiler_stop(self, _: cupti_api.RangeProfilerStop) -> None:
        self.profiling = False

    def answer_range_profiler_get_counter_data_info(
        self, params: cupti_api.RangeProfilerGetCounterDataInfo
    ) -> None:
        params.numTotalRanges = self.launches // PASSES

    def answer_host_evaluate_to_gpu_values(self, params: cupti_api.HostEvaluateToGpuValues) -> None:
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
    assert profiler.passes == PASSES


def test_calls_come_in_the_order_that_cupti_wants(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["dram__bytes.sum"])
    assert fake.calls == [
        "Initialize",
        "DeviceGetChipName",
        "GetCounterAvailability",
        "GetCounterAvailability",
        "HostInitialize",
        "HostGetMetricProperties",
        "HostConfigAddMetrics",
        "HostGetConfigImageSize",
        "HostGetConfigImage",
        "HostGetNumOfPasses",
    ]
    one_pass = ["RangeProfilerStart", "synchronize", "RangeProfilerStop"]
    measured = [
        "RangeProfilerCounterDataImageInitialize",
        "RangeProfilerSetConfig",
        *(one_pass * PASSES),
        "RangeProfilerDecodeData",
        "RangeProfilerGetCounterDataInfo",
        "HostEvaluateToGpuValues",
    ]
    fake.calls.clear()
    profiler.measure(fake.launch)
    assert fake.calls == ["RangeProfilerEnable", "RangeProfilerGetCounterDataSize", *measured]
    fake.calls.clear()
    profiler.measure(fake.launch)
    assert fake.calls == measured
    fake.calls.clear()
    profiler.close()
    profiler.close()
    assert fake.calls == ["RangeProfilerDisable", "HostDeinitialize"]


def test_room_is_made_once_for_as_many_launches_as_there_are(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["dram__bytes.sum"])
    made = []
    for launches in (1, 1, 3, 64):
        fake.calls.clear()
        profiler.measure(fake.launch, launches)
        made.append((fake.room, "RangeProfilerGetCounterDataSize" in fake.calls))
    assert made == [(1, True), (1, False), (3, True), (64, True)]


def test_metrics_that_the_chip_lacks_are_listed(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["nonsense.sum", "dram__bytes.sum", "launch__registers_per_thread"])
    assert profiler.missing == ("nonsense.sum", "launch__registers_per_thread")
    assert profiler.measure(fake.launch) == [{"dram__bytes.sum": 4096.0}]


def test_only_unknown_metrics_are_refused(fake: FakeCupti) -> None:
    with pytest.raises(CountersUnavailableError, match="none of the 1 counters on the GPU GH100"):
        RangeProfiler(["nonsense.sum"])


@pytest.mark.parametrize(
    ("function", "code", "fix"),
    [
        ("GetCounterAvailability", 35, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("Initialize", 15, "update the driver"),
        ("Initialize", 14, "update the driver"),
        ("HostInitialize", 46, "--upgrade nvidia-cuda-cupti"),
        ("GetCounterAvailability", 43, "MIG"),
        ("HostConfigAddMetrics", 999, "update CUPTI and the driver"),
    ],
)
def test_a_refusal_is_a_sentence_with_the_fix(fake: FakeCupti, function: str, code: int, fix: str) -> None:
    fake.fails[function] = code
    with pytest.raises(CountersUnavailableError) as caught:
        RangeProfiler(["dram__bytes.sum"])
    assert fix in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_no_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError("libcupti.so.13: cannot open shared object file")

    monkeypatch.setattr(cupti, "load_cupti", missing)
    with pytest.raises(CountersUnavailableError, match="pip install nvidia-cuda-cupti"):
        RangeProfiler(["dram__bytes.sum"])


def test_permission_lost_while_measuring_is_a_sentence_and_the_session_ends(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["dram__bytes.sum"])
    fake.fails["RangeProfilerStart"] = 35
    with pytest.raises(CountersUnavailableError, match="NVreg_RestrictProfilingToAdminUsers"):
        profiler.measure(fake.launch)
    assert fake.calls[-1] == "RangeProfilerDisable"
    fake.fails.clear()
    assert profiler.measure(fake.launch) == [{"dram__bytes.sum": 4096.0}]


def test_counters_that_another_process_has_are_waited_for_and_not_for_good(
    fake: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupti, "BUSY_POLL_SECONDS", 0.001)
    profiler = RangeProfiler(["dram__bytes.sum"])
    fake.fails["RangeProfilerEnable"] = 39
    tries = []

    def count() -> int:
        tries.append(1)
        if len(tries) == 3:
            fake.fails.clear()
        return len(profiler.measure(fake.launch))

    assert (when_free(count), len(tries)) == (1, 3)
    profiler.release()
    fake.fails["RangeProfilerEnable"] = 39
    monkeypatch.setattr(cupti, "BUSY_SECONDS", 0.01)
    with pytest.raises(CountersUnavailableError, match="Another profiler"):
        when_free(lambda: profiler.measure(fake.launch))
    fake.fails["RangeProfilerEnable"] = 33
    tries.clear()
    with pytest.raises(CountersUnavailableError, match="virtual GPU"):
        when_free(count)
    assert len(tries) == 1, "that is no use waiting for"


def test_what_the_run_raises_passes_through_and_the_next_measurement_starts_afresh(fake: FakeCupti) -> None:
    profiler = RangeProfiler(["dram__bytes.sum"])

    def broken() -> None:
        fake.launch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        profiler.measure(broken)
    assert fake.calls[-1] == "RangeProfilerDisable"
    fake.calls.clear()
    assert len(profiler.measure(fake.launch)) == 1
    assert fake.calls[0] == "RangeProfilerEnable"


def test_the_sets_name_nothing_twice_and_few_counters_none_of_l2() -> None:
    every, few, time_alone = (METRICS[each] for each in CounterSet)
    assert every == DEFAULT_METRICS
    assert all(len(set(each)) == len(each) for each in (every, few))
    assert set(few) - set(every) == set(STAND_INS)
    assert len(few) < len(every)
    assert not [name for name in few if name.startswith("lts__")]
    assert time_alone == (TIME,)


@pytest.mark.parametrize(
    ("gpus", "wanted", "read", "said"),
    [
        (1, None, CounterSet.ALL, 0),
        (2, None, CounterSet.FEW, 1),
        (8, CounterSet.ALL, CounterSet.ALL, 0),
        (1, CounterSet.TIME, CounterSet.TIME, 0),
    ],
)
def test_several_gpus_read_fewer_counters_and_say_so(
    gpus: int, wanted: CounterSet | None, read: CounterSet, said: int
) -> None:
    chosen = counters_for(gpus, wanted)
    assert (chosen, len(fewer_remarks(chosen, wanted))) == (read, said)


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with opened_workbench() as found:
        yield found


@pytest.fixture
def profiler(bench: Workbench) -> Iterator[RangeProfiler]:
    found = RangeProfiler(DEFAULT_METRICS)
    found.measure(bench.launches["copy"])
    yield found
    found.close()


@pytest.mark.gpu
def test_the_default_set_takes_four_passes_and_little_time(bench: Workbench, profiler: RangeProfiler) -> None:
    assert profiler.missing == ()
    assert profiler.passes <= 4
    costs = []
    for _ in range(5):
        began = time.perf_counter()
        profiler.measure(bench.launches["copy"])
        costs.append(time.perf_counter() - began)
    assert statistics.median(costs) <= 0.12


@pytest.mark.gpu
def test_few_counters_are_read_faster_and_are_those_of_all(bench: Workbench, profiler: RangeProfiler) -> None:
    whole = profiler.measure(bench.launches["copy"], 1)[0]
    profiler.close()
    for counters, most in ((CounterSet.FEW, 0.06), (CounterSet.TIME, 0.005)):
        fewer = RangeProfiler(METRICS[counters])
        costs, found = [], {}
        for _ in range(6):
            began = time.perf_counter()
            (found,) = fewer.measure(bench.launches["copy"], 1)
            costs.append(time.perf_counter() - began)
        fewer.close()
        assert statistics.median(costs[1:]) <= most
        assert set(found) == set(METRICS[counters])
        assert found[TIME] == pytest.approx(whole[TIME], rel=0.1)
        if counters is CounterSet.FEW:
            assert found[DRAM_BYTES] == pytest.approx(whole[DRAM_BYTES], rel=0.05)


@pytest.mark.gpu
def test_what_stands_in_for_dear_counters_says_the_same(bench: Workbench) -> None:
    wanted = (TIME, LOAD_SECTORS, STORE_SECTORS, L2_READS, L2_SENDING, *STAND_INS)
    dear = RangeProfiler(wanted)
    architecture = architecture_of(bench.gpu.architecture, bench.gpu.name)
    try:
        for name in ("copy", "transpose", "bank_conflicts", "block_sums"):
            (found,) = dear.measure(bench.launches[name], 1)
            sectors = found[LOAD_SECTORS] + found[STORE_SECTORS]
            assert found[L1_SECTORS] == pytest.approx(sectors, rel=0.02), name
            assert found[L1_FROM_L2] == pytest.approx(found[L2_READS], rel=0.02), name
            for reads in (L2_READS, L1_FROM_L2):
                busy = 100 * utilisation({TIME: found[TIME], reads: found[reads]}, architecture).of[Unit.L2]
                # The constant is an H100's: an H200's L2 is faster than its description says.
                assert busy == pytest.approx(found[L2_SENDING], rel=0.25, abs=2), name
    finally:
        dear.close()


@pytest.mark.gpu
def test_launches_beyond_the_room_are_not_read(bench: Workbench, profiler: RangeProfiler) -> None:
    def run() -> None:
        for _ in range(3):
            bench.launches["copy"]()

    assert [len(profiler.measure(run, room)) for room in (3, 4)] == [3, 3]


@pytest.mark.gpu
def test_each_launch_of_a_run_has_counters_of_its_own(bench: Workbench, profiler: RangeProfiler) -> None:
    names = ["copy", "block_sums", "copy", "multiply_adds"]
    alone = {name: profiler.measure(bench.launches[name])[0]["smsp__inst_executed.sum"] for name in LAUNCHES}
    found = profiler.measure(lambda: [bench.launches[name]() for name in names] and None)
    assert [each["smsp__inst_executed.sum"] for each in found] == [alone[name] for name in names]


@pytest.mark.gpu
def test_timing_is_the_same_before_and_after(bench: Workbench, profiler: RangeProfiler) -> None:
    launch = bench.launches["multiply_adds"]
    before = median_seconds(launch)
    profiler.measure(launch)
    assert median_seconds(launch) == pytest.approx(before, rel=0.02)
    assert profiler.measure(launch)[0][TIME] == pytest.approx(before, rel=0.05)


@pytest.mark.gpu
def test_counters_agree_with_ncu(bench: Workbench) -> None:
    comparison = compare(bench)
    assert {row.kernel for row in comparison.rows} == set(LAUNCHES)
    off = [row for row in comparison.rows if comparison.difference(row) > row.allowed]
    assert not off, off


def median_seconds(launch: Callable[[], None]) -> float:
    stopwatch, samples = Stopwatch(), []
    for _ in range(20):
        stopwatch.start()
        launch()
        stopwatch.stop()
        synchronize()
        samples.append(stopwatch.seconds)
    return statistics.median(samples)
