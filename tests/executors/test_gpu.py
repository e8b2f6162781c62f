"""The GPU executor against a GPU process that behaves as the kernel's name says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.profiling.gpu import cuda_driver, session

SERVICE = "fake_gpu:FakeGpu"
KERNEL = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
extern "C" __global__ void twice(const float* x, float* out, int n) { out[0] = x[0] + n; }
"""

FALTERING = """\
from pathlib import Path

from fake_gpu import FakeGpu

from mctskernel.profiling.gpu.protocol import Failed, Place


class FaltersOnce(FakeGpu):
    def open(self, request):
        marker = Path(__file__).with_name("opened")
        self.falters = not marker.exists()
        marker.touch()
        return super().open(request)

    def answer(self, request):
        if self.falters and isinstance(request, Place):
            return Failed("an unspecified launch failure", lost=True)
        return super().answer(request)


class FaltersAlways(FaltersOnce):
    falters = True

    def open(self, request):
        return FakeGpu.open(self, request)
"""


def kernel(name: str) -> Kernel:
    return Kernel(KERNEL.replace("twice", name))


@pytest.fixture
def executor(write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuExecutor]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(session, "RUN_SECONDS", 2.0)
    spec = DeviceSpec("gpu", write_task())
    with GpuExecutor(spec, service=SERVICE, gate_checks=()) as opened:
        yield opened


def evaluate(executor: GpuExecutor, name: str) -> Evaluation:
    executor.submit(0, kernel(name))
    ((ticket, evaluation),) = executor.wait()
    assert ticket == 0
    return evaluation


def test_a_right_kernel_is_timed_beside_the_starting_kernel_and_counted(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, "faster")
    assert evaluation.ok, evaluation.message
    (timing,) = evaluation.timings
    assert timing.seconds == pytest.approx(50e-6, rel=1e-3)
    assert timing.baseline_seconds == pytest.approx(100e-6, rel=1e-3)
    assert timing.low <= timing.seconds <= timing.high
    assert list(evaluation.stage_seconds) == ["build", "verify", "time", "counters"]
    assert evaluation.counters["gpu__time_duration.sum"] == 50e-6
    assert {check.shape for check in evaluation.checks} == {"n=1", "n=130", "n=4096"}


@pytest.mark.parametrize(
    ("name", "outcome", "sentence"),
    [
        ("wrong", Outcome.WRONG_RESULT, "'out' is wrong"),
        ("lazy", Outcome.WRONG_RESULT, "never written"),
        ("spoils", Outcome.WRONG_RESULT, "the input 'x' was changed in place"),
        ("tired", Outcome.WRONG_RESULT, "At n=4096"),
        ("overrun", Outcome.WRONG_RESULT, "4 bytes behind the buffer 'out'"),
        ("decoy", Outcome.REJECTED, "of the time is spent outside"),
        ("crash", Outcome.CRASH, "illegal memory access"),
        ("refuse", Outcome.LAUNCH_ERROR, "too many resources"),
        (
            "narrow",
            Outcome.LAUNCH_ERROR,
            "blocks of 64 threads; its registers and __launch_bounds__ allow 32",
        ),
        ("die", Outcome.CRASH, "was killed by SIGABRT"),
        ("hang", Outcome.TIMEOUT, "more than its limit of 2 s"),
    ],
)
def test_what_a_kernel_does_is_its_outcome_and_the_next_one_is_judged(
    executor: GpuExecutor, name: str, outcome: Outcome, sentence: str
) -> None:
    evaluation = evaluate(executor, name)
    assert (evaluation.outcome, sentence in evaluation.message) == (outcome, True), evaluation.message
    began = time.monotonic()
    assert evaluate(executor, "faster").ok
    assert time.monotonic() - began < 5.0


def test_a_kernel_with_variables_is_looked_at_after_many_runs(executor: GpuExecutor) -> None:
    source = KERNEL.replace("twice", "weary").replace('extern "C"', '__device__ int kept;\nextern "C"', 1)
    executor.submit(0, Kernel(source.replace("= x[0] + n", "= x[0] + n + kept++")))
    ((_, evaluation),) = executor.wait()
    assert (evaluation.outcome, evaluation.guard) == (Outcome.WRONG_RESULT, Guard.REPETITION)
    assert "followed 300 others" in evaluation.message
    assert evaluate(executor, "weary").ok, "without a variable there is nothing that wears"


CHEATS = [
    ("skips", Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS, "picked at random"),
    ("gambles", Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS, "picked at random"),
    ("copies_first", Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS, "'out' is wrong"),
    ("spoils_timed", Outcome.WRONG_RESULT, Guard.UNTOUCHED_INPUTS, "by 11 of 14 timed runs"),
    ("remembers", Outcome.REJECTED, Guard.GPU_TIME, "it keeps something from run to run"),
    ("overruns_timed", Outcome.WRONG_RESULT, Guard.GUARD_BYTES, "4 bytes behind"),
    ("trespasses", Outcome.WRONG_RESULT, Guard.GUARD_BYTES, "writes elsewhere"),
    ("trespasses_last", Outcome.WRONG_RESULT, Guard.GUARD_BYTES, "writes elsewhere"),
    ("outlasts", Outcome.REJECTED, Guard.GPU_TIME, "by the host's clock"),
    ("overrun", Outcome.WRONG_RESULT, Guard.GUARD_BYTES, "4 bytes behind"),
    ("decoy", Outcome.REJECTED, Guard.GPU_TIME, "outside"),
    ("forges", Outcome.CRASH, Guard.SEPARATE_PROCESS, "wasn't asked"),
]


def test_cheats_in_timed_runs_are_refused_by_what_noticed(executor: GpuExecutor) -> None:
    for name, outcome, guard, sentence in CHEATS:
        evaluation = evaluate(executor, name)
        found = evaluation.outcome, evaluation.guard, sentence in evaluation.message
        assert found == (outcome, guard, True), (name, evaluation.message)
    assert evaluate(executor, "faster").ok


def test_a_time_that_no_gpu_can_reach_is_quarantined(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, "impossible")
    assert "can't have done the work" in evaluation.quarantine
    assert evaluation.guard is Guard.ROOFLINE


def test_a_hiccup_of_the_baseline_makes_no_kernel_look_faster(executor: GpuExecutor) -> None:
    baselines = [evaluate(executor, "faster").timings[0].baseline_seconds for _ in range(7)]
    assert baselines == pytest.approx([100e-6] * 7, rel=1e-2)


def test_results_that_differ_from_run_to_run_are_remarked_on(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, "fickle")
    assert evaluation.ok
    assert any("differ" in flag for flag in evaluation.flags)
    assert any("timed runs left other bytes" in flag for flag in evaluation.flags)
    assert not any("differ" in flag for flag in evaluate(executor, "faster").flags)


def test_a_task_that_asks_for_determinism_refuses_results_that_differ(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    folder = write_task()
    (folder / "task.toml").write_text("deterministic = true\n" + (folder / "task.toml").read_text())
    with GpuExecutor(DeviceSpec("gpu", folder), service=SERVICE) as executor:
        assert evaluate(executor, "fickle").outcome is Outcome.WRONG_RESULT
        assert evaluate(executor, "faster").ok


def test_a_kernel_that_calls_what_it_does_not_define_is_rejected(executor: GpuExecutor) -> None:
    executor.submit(0, Kernel(KERNEL.replace("out[0] = x[0] + n;", "*(void**)out = malloc(n);")))
    ((_, evaluation),) = executor.wait()
    assert (evaluation.outcome, "'malloc'" in evaluation.message) == (Outcome.REJECTED, True)


def test_what_does_not_compile_never_reaches_the_gpu(executor: GpuExecutor) -> None:
    executor.submit(3, Kernel(KERNEL.replace("out[0]", "no_such_name")))
    ((ticket, evaluation),) = executor.wait()
    assert (ticket, evaluation.outcome) == (3, Outcome.BUILD_ERROR)
    assert list(evaluation.stage_seconds) == ["build"]


def test_many_in_flight_all_come_back(executor: GpuExecutor) -> None:
    names = ("faster", "wrong", "die", "twice", "refuse")
    for ticket, name in enumerate(names):
        executor.submit(ticket, kernel(name))
    results: dict[int, Evaluation] = {}
    while len(results) < len(names):
        results |= dict(executor.wait(60.0))
    outcomes = [results[ticket].outcome for ticket in range(len(names))]
    assert outcomes == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.CRASH, Outcome.OK, Outcome.LAUNCH_ERROR]
    assert executor.wait(0.0) == []


def test_the_last_gate_checks_the_held_out_shapes(executor: GpuExecutor) -> None:
    found = executor.last_gate(kernel("faster"), kernel("twice"))
    assert found.ok, found.message
    assert {check.shape for check in found.checks} == {"n=77", "n=5000"}
    assert [timing.shape for timing in found.timings] == ["n=5000"]
    assert found.timings[0].baseline_seconds == pytest.approx(100e-6, rel=1e-3)
    assert executor.last_gate(kernel("die"), kernel("twice")).outcome is Outcome.CRASH
    assert executor.last_gate(kernel("wrong"), kernel("twice")).outcome is Outcome.WRONG_RESULT


def test_the_last_gate_has_a_gpu_process_and_a_seed_of_its_own(executor: GpuExecutor) -> None:
    seeds = [executor.last_gate(kernel("faster"), kernel("twice")).checks[0].seed for _ in range(2)]
    assert seeds[0] != seeds[1]
    executor.last_gate(kernel("die"), kernel("twice"))
    assert evaluate(executor, "faster").ok


def test_a_gpu_process_that_dies_while_idle_is_replaced(executor: GpuExecutor) -> None:
    assert evaluate(executor, "faster").ok
    os.kill(executor._gpus.seats[0].evaluator.pid, signal.SIGKILL)
    evaluate(executor, "faster")
    assert evaluate(executor, "faster").ok


def test_a_gpu_process_whose_machine_falters_while_it_opens_is_replaced(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "faltering_gpu.py").write_text(FALTERING)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = DeviceSpec("gpu", write_task())
    with GpuExecutor(spec, service="faltering_gpu:FaltersOnce", gate_checks=()) as executor:
        assert evaluate(executor, "faster").ok


def test_a_gpu_process_that_falters_whenever_it_opens_is_given_up(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "faltering_gpu.py").write_text(FALTERING)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeviceError, match=r"can't be started: an unspecified launch failure"):
        GpuExecutor(DeviceSpec("gpu", write_task()), service="faltering_gpu:FaltersAlways")


def test_closing_ends_what_is_in_flight(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with GpuExecutor(DeviceSpec("gpu", write_task()), service=SERVICE) as executor:
        executor.submit(0, kernel("hang"))
        assert executor.wait(1.5) == []
        began = time.monotonic()
    assert time.monotonic() - began < 5.0


def test_without_counters_the_evaluation_goes_on(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with GpuExecutor(DeviceSpec("gpu", write_task()), metrics=(), service=SERVICE) as executor:
        assert executor.remarks == ("No counters here.",)
        assert evaluate(executor, "faster").ok


def test_a_machine_without_a_gpu_is_told_in_a_sentence(write_task: Callable[..., Path]) -> None:
    if not os.path.exists("/dev/nvidia0"):  # noqa: PTH110 - a device, not a file
        with pytest.raises(DeviceError, match="driver"):
            GpuExecutor(DeviceSpec("gpu", write_task()))


class FakeDriver:
    """Of another version than the compiler."""

    class CUresult:
        CUDA_SUCCESS = 0

    def __init__(self, version: int) -> None:
        self.version = version

    def cuInit(self, _flags: int) -> tuple[int]:  # noqa: N802 - the driver's name
        return (0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802 - the driver's name
        return 0, self.version


def test_a_driver_older_than_the_compiler_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "cu", FakeDriver(12040))
    with pytest.raises(DeviceError, match=r"too old: it supports CUDA 12\.4"):
        cuda_driver.open_gpu()
