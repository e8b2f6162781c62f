"""From times to constants: a GPU on paper, whose constants are known, is recovered from what it answers."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.profiling.architecture import (
    Architecture,
    load_architecture,
    parse_architecture,
    read_architecture,
)
from mctskernel.profiling.calibration.calibration import (
    SECONDS,
    Calibration,
    calibrate_gpu,
    closest_architecture,
    constants,
    describe_gpu,
)
from mctskernel.profiling.calibration.catalogue import clock, microbenchmarks
from mctskernel.profiling.calibration.derivation import derived
from mctskernel.profiling.calibration.document import document
from mctskernel.profiling.calibration.fit import LEVEL_REPEATS, Measured, Refused, fit, time_benchmark
from mctskernel.profiling.calibration.machine import ring
from mctskernel.profiling.calibration.memory import runs_of
from mctskernel.profiling.calibration.microbenchmark import Board, Grows, Microbenchmark, Ring
from mctskernel.profiling.gpu.cuda_driver import CudaError
from tests.profiling.calibration import paper_gpu
from tests.profiling.calibration.paper_gpu import PaperGpu

H100 = load_architecture("H100")
A100 = load_architecture("A100")

DERIVED = {"chip.schedulers", "memory.dram_bytes_per_run"}
"""What isn't the law's own constant."""


def truth_of(gpu: Architecture, factor: float = 1.0) -> Architecture:
    """The same GPU with every constant that isn't whole changed by a factor of its own near this one."""
    document = asdict(gpu)
    for index, (path, value) in enumerate(constants(gpu)):
        section, field = path.split(".")
        if isinstance(value, float):
            document[section][field] = value * factor ** (1 + index % 3)
    if gpu.throughput.tensor_fma == gpu.throughput.tensor_sync_fma:
        document["throughput"]["tensor_fma"] = document["throughput"]["tensor_sync_fma"]
    return msgspec.convert(document, Architecture)


@pytest.mark.parametrize("name", ["A100", "H100", "H200", "RTX4090", "B200"])
@pytest.mark.parametrize("factor", [1.0, 0.9, 1.15])
def test_the_constants_of_a_gpu_on_paper_are_found_within_two_per_cent(name: str, factor: float) -> None:
    truth = truth_of(load_architecture(name), factor)
    gpu = PaperGpu(truth)
    found = calibrate_gpu(gpu, like=A100 if name != "A100" else H100)
    assert not found.refused
    expected = dict(constants(truth))
    for path, value in constants(found.architecture):
        if path in found.measured and path not in DERIVED:
            assert value == pytest.approx(expected[path], rel=0.02), path
    assert found.architecture.chip.schedulers == 4
    # A difference of some nine per cent, with noise in both of its ends.
    lost = found.architecture.memory.dram_bytes_per_run
    assert lost == pytest.approx(truth.memory.dram_bytes_per_run, rel=0.15)
    others = found.others
    assert others["DRAM latency, idle"].value == pytest.approx(paper_gpu.IDLE_DRAM, rel=0.02)
    assert others["integer multiply-adds"].value == pytest.approx(paper_gpu.INTEGER_MULTIPLY, rel=0.02)
    assert others["DRAM reads"].value == pytest.approx(paper_gpu.DRAM_READ, rel=0.02)
    assert gpu.held == ""


def test_what_is_measured_and_what_is_kept() -> None:
    found = calibrate_gpu(PaperGpu(H100), like=A100)
    kept = {path for path, source in found.sources.items() if source.startswith("not measured")}
    # What no microbenchmark is for: rules of the programming model, and what only whole kernels show.
    assert kept >= {"limits.register_unit", "limits.l1_bytes", "throughput.uniform", "memory.sector_bytes"}
    assert kept.isdisjoint(found.measured)
    assert {path for path in found.sources if path.startswith(("chip.", "overheads."))}.isdisjoint(kept)
    assert len(found.measured.keys() & found.sources.keys()) >= 27
    assert found.architecture.limits.shared_bytes == H100.limits.shared_bytes
    assert found.sources["limits.shared_bytes"] == "the driver"


@pytest.mark.parametrize(
    ("short", "long", "lost"),
    [(2.7e12, 3.0e12, 7.12), (3.0e12, 3.0e12, None), (3.1e12, 3.0e12, None), (1e10, 3e12, None)],
)
def test_what_ends_of_runs_cost_is_never_less_than_nothing(
    short: float, long: float, lost: float | None
) -> None:
    found = {
        runs_of(run): Measured(runs_of(run), value, 0.01, "") for run, value in ((64, short), (4096, long))
    }
    made = derived(found, PaperGpu(H100).board).get("memory.dram_bytes_per_run")
    assert (made and made.value) == (lost if lost is None else pytest.approx(lost, rel=0.02))


def test_tensor_cores_that_mma_does_not_fill_keep_what_is_described() -> None:
    b200 = load_architecture("B200")
    found = calibrate_gpu(PaperGpu(b200), like=H100)
    assert found.architecture.throughput.tensor_fma == H100.throughput.tensor_fma
    assert found.architecture.throughput.tensor_sync_fma == pytest.approx(
        b200.throughput.tensor_sync_fma, rel=0.02
    )
    ada = load_architecture("RTX4090")
    found = calibrate_gpu(PaperGpu(ada), like=H100)
    assert found.architecture.throughput.tensor_fma == pytest.approx(ada.throughput.tensor_fma, rel=0.02)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda length: 1e-3, "doesn't grow with the work"),
        (lambda length: 1e-3 / length, "doesn't grow"),
        (lambda length: 1e-9 * length**2, "doesn't grow evenly"),
        (paper_gpu.refuse, "the GPU refused it: out of memory"),
    ],
)
def test_a_fit_that_looks_wrong_keeps_the_shipped_value_and_says_so(answer, reason: str) -> None:
    gpu = PaperGpu(H100, broken={"throughput.alu": answer})
    found = calibrate_gpu(gpu, like=A100)
    assert [each.constant for each in found.refused] == ["throughput.alu"]
    assert reason in found.refused[0].reason
    assert found.architecture.throughput.alu == A100.throughput.alu
    assert found.sources["throughput.alu"].startswith(
        f"not measured: {found.refused[0].reason}; as described"
    )
    assert found.architecture.throughput.fma == pytest.approx(H100.throughput.fma, rel=0.02)


def test_repeats_that_differ_are_not_believed() -> None:
    wild = itertools.cycle([0.5, 1.0, 1.6, 0.7, 1.4])
    gpu = PaperGpu(H100, broken={"latency.l2": lambda length: 1e-6 * length * next(wild)})
    found = calibrate_gpu(gpu, like=A100)
    assert [each.constant for each in found.refused] == ["latency.l2"]
    assert found.architecture.latency.l2 == A100.latency.l2


def test_a_few_hiccups_change_nothing() -> None:
    count = itertools.count()

    def law(length: int) -> float:
        return length * 32 * H100.latency.l2 / H100.chip.clock_hz * (3.0 if next(count) % 11 == 0 else 1.0)

    found = calibrate_gpu(PaperGpu(H100, broken={"latency.l2": law}), like=A100)
    assert found.architecture.latency.l2 == pytest.approx(H100.latency.l2, rel=0.02)


def test_without_a_clock_the_described_one_serves() -> None:
    gpu = PaperGpu(H100, broken={"chip.clock_hz": lambda length: 1e-3})
    found = calibrate_gpu(gpu, like=H100)
    assert found.architecture.chip.clock_hz == H100.chip.clock_hz
    assert found.architecture.throughput.fma == pytest.approx(128, rel=0.02)


def test_a_clock_that_changes_is_remarked() -> None:
    asked = itertools.count()

    def law(length: int) -> float:
        # The warm-up and the first measurement are some sixty runs.
        return length / (1.98e9 if next(asked) < 60 else 1.6e9)

    found = calibrate_gpu(PaperGpu(H100, noise=0.0, broken={"chip.clock_hz": law}), like=H100)
    (remark,) = found.remarks
    assert "-19%" in remark
    assert not calibrate_gpu(PaperGpu(H100), like=H100).remarks


def test_a_lost_gpu_ends_it() -> None:
    def lost(length: int) -> float:
        raise CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal address")

    with pytest.raises(CudaError, match="illegal"):
        calibrate_gpu(PaperGpu(H100, broken={"latency.l2": lost}), like=H100)


def test_a_description_follows_from_the_times_alone() -> None:
    gpu = PaperGpu(H100)
    found = calibrate_gpu(gpu, like=A100)
    asked = len(gpu.asked)
    assert describe_gpu(gpu.board, found.timings, A100) == found
    assert len(gpu.asked) == asked


def test_when_time_is_up_the_rest_is_kept() -> None:
    ticks = itertools.count(step=SECONDS / 10)
    found = calibrate_gpu(PaperGpu(H100), like=A100, now=lambda: next(ticks))
    assert {each.reason for each in found.refused} == {"there was no time left for it"}
    assert 20 < len(found.refused) < 40
    assert found.architecture.overheads.block_launch == A100.overheads.block_launch


@pytest.mark.parametrize("name", ["A100", "H100", "RTX4090", "B200"])
def test_the_gpu_is_busy_for_seconds_not_minutes(name: str) -> None:
    """The sum of what all runs take on paper, delays and the host's work aside."""

    class Counting(PaperGpu):
        total = 0.0

        def seconds(self, benchmark: Microbenchmark, length: int) -> float:
            seconds = super().seconds(benchmark, length)
            self.total += seconds
            return seconds

    gpu = Counting(load_architecture(name))
    calibrate_gpu(gpu, like=H100)
    assert gpu.total < 10
    assert len(gpu.asked) < 2000


@pytest.mark.parametrize("name", ["A100", "H100", "RTX4090", "B200"])
def test_no_run_leaves_its_buffers_nor_reads_a_line_of_dram_twice(name: str) -> None:
    """PaperGpu refuses runs that are longer than `most`; here the bytes that those touch are counted."""

    class Walking(PaperGpu):
        steps = 0

        def seconds(self, benchmark: Microbenchmark, length: int) -> float:
            if benchmark.constant == "DRAM latency, idle":
                self.steps += length * benchmark.loop["LDG"]
            return super().seconds(benchmark, length)

    gpu = Walking(load_architecture(name))
    calibrate_gpu(gpu, like=H100)
    board = gpu.board
    found = {each.constant: each for each in microbenchmarks(board)}
    for each in found.values():
        if each.grows is Grows.BLOCKS and each.buffers:
            moved = each.amount / len(each.buffers)
            assert all(each.most * moved <= buffer.nbytes for buffer in each.buffers)
    loaded = found["latency.dram"]
    assert loaded.most * loaded.loop["LDG"] * board.sms * loaded.threads * 4 <= loaded.buffers[0].nbytes
    (far,) = found["DRAM latency, idle"].buffers
    assert isinstance(far, Ring)
    assert far.nbytes >= 4 * board.l2_bytes
    assert gpu.steps < far.nbytes // far.stride - 1
    # The first runs, which warm up, go round the whole ring that L2 holds.
    (near,) = found["latency.l2"].buffers
    assert isinstance(near, Ring)
    assert near.nbytes < board.l2_bytes / 4
    assert 4e-3 / 2 / (gpu.truth.latency.l2 / gpu.truth.chip.clock_hz) > near.nbytes / near.stride


@given(
    slope=st.floats(1e-9, 1e-5),
    begin=st.floats(0, 1e-4),
    amount=st.floats(1, 1e9),
)
@settings(max_examples=50, deadline=None)
def test_where_the_line_begins_does_not_matter(slope: float, begin: float, amount: float) -> None:
    class Line:
        board = PaperGpu(H100).board

        def seconds(self, benchmark: Microbenchmark, length: int) -> float:
            return begin + slope * length

        def release(self) -> None: ...

    benchmark = replace(clock(Line.board), amount=amount, first=1)
    found = fit(benchmark, time_benchmark(benchmark, Line()), 1e9, 132)
    if isinstance(found, Refused):
        # Rounding drowns a slope that is a billionth of where it begins.
        assert begin > 1e4 * slope
    else:
        assert found.value == pytest.approx(amount / slope, rel=1e-3)


def test_a_level_is_the_median_of_many() -> None:
    gpu = PaperGpu(H100, noise=0.03)
    benchmark = next(each for each in microbenchmarks(gpu.board) if each.grows is Grows.NOTHING)
    found = fit(benchmark, time_benchmark(benchmark, gpu), 1e9, 132)
    assert isinstance(found, Measured)
    assert len(gpu.asked) == LEVEL_REPEATS + 1
    assert found.value == pytest.approx(H100.overheads.launch, rel=0.02)
    assert 0 < found.spread < 0.1


@given(
    places=st.integers(2, 300),
    words=st.integers(2, 32),
    address=st.integers(1, 1 << 40).map(lambda number: 256 * number),
)
@settings(deadline=None)
def test_a_ring_visits_every_place_once(places: int, words: int, address: int) -> None:
    stride = 8 * words
    content = ring(Ring((places + 1) * stride, stride), address)
    at = int(content[0])
    seen = []
    for _ in range(places):
        seen.append(at)
        at = int(content[(at - address) // 8])
    assert at == seen[0]
    assert sorted(seen) == [address + stride * (1 + place) for place in range(places)]
    assert np.count_nonzero(content) == places + 1


def test_a_gpu_that_nobody_described_is_likened_to_the_nearest() -> None:
    assert closest_architecture("sm_90", "NVIDIA H200").name == "NVIDIA H200"
    assert closest_architecture("sm_86", "NVIDIA GeForce RTX 3090").name == "NVIDIA GeForce RTX 4090"
    assert closest_architecture("sm_103", "NVIDIA B300").name == "NVIDIA B200"
    assert closest_architecture("sm_70", "Tesla V100").name == A100.name


FINGERPRINT = {"gpu": "NVIDIA H100", "driver": "13.0", "date": "2026-01-01T00:00:00+00:00"}


def test_the_written_file_reads_as_what_was_measured(tmp_path: Path) -> None:
    found = calibrate_gpu(PaperGpu(H100), like=A100, name="mine")
    path = tmp_path / "mine.toml"
    path.write_text(document(found, FINGERPRINT))
    again = read_architecture(path)
    assert again == found.architecture
    assert again.name == "mine"
    text = path.read_text()
    assert 'driver = "13.0"' in text
    for line in text.splitlines():
        constant = line.split(" = ")[0]
        if constant in {path.split(".")[1] for path in found.sources}:
            assert " # " in line, line


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    document = asdict(H100)
    document["name"] = draw(
        st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=40) | st.just('a"b\\c')
    )
    for path, value in constants(H100):
        section, field = path.split(".")
        whole = isinstance(value, int)
        document[section][field] = draw(st.integers(1, 10**9) if whole else st.floats(1e-12, 1e15))
    return msgspec.convert(document, Architecture)


@given(architectures())
@settings(max_examples=25, deadline=None)
def test_any_description_survives_being_written(gpu: Architecture) -> None:
    sources = {path: "measured: \x1b # \n something" for path, _ in constants(gpu)}
    calibration = Calibration(gpu, H100, sources, {}, (), {})
    assert parse_architecture(document(calibration, FINGERPRINT), "written.toml") == gpu


def test_a_board_knows_what_its_l2_holds() -> None:
    for l2_bytes in (4 << 20, 40 << 20, 50 << 20, 72 << 20, 126 << 20):
        board = Board("", "sm_90", 1, l2_bytes, 0)
        assert board.l2_resident_bytes <= l2_bytes // 4
        assert board.beyond_l2_bytes >= 4 * l2_bytes
