"""The GPU executor against a GPU process that behaves as the kernel's name says."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.core.device import DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Guard, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.executors import gpu
from mctskernel.executors.gpu import (
    Checked,
    GpuExecutor,
    Likely,
    begin_validation,
    emulated,
    validate_finally,
)
from mctskernel.executors.tickets import Interrupt
from mctskernel.profiling import emulated_verification
from mctskernel.profiling.emulated_verification import PARTLY
from mctskernel.profiling.emulator import Limits
from mctskernel.profiling.gpu import cuda_driver, worker
from mctskernel.profiling.gpu.evaluator import GpuEvaluator
from mctskernel.profiling.processes.worker import compile_worker
from mctskernel.profiling.processes.worker_process import Prepared
from mctskernel.report.view import load_view
from mctskernel.tree.events import Retimed
from mctskernel.tree.journal import read_events
from tests import hopper_kernels
from tests.conftest import TASK_TOML, WriteTask

SERVICE = "fake_gpu:FakeGpu"
PLAN = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
"""
KERNEL = f"""\
{PLAN}
extern "C" __global__ void twice(const float* x, float* out, int n) {{ out[0] = x[0] + n; }}
"""


def kernel(name: str) -> Kernel:
    return Kernel(KERNEL.replace("twice", name))


@pytest.fixture(scope="module")
def fake() -> Iterator[pytest.MonkeyPatch]:
    """Lets child processes import `fake_gpu`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield patch


@pytest.fixture(scope="module")
def executor(small_task: Path, fake: pytest.MonkeyPatch) -> Iterator[GpuExecutor]:
    fake.setattr(worker, "RUN_SECONDS", 2.0)
    spec = DeviceSpec("gpu", small_task)
    with GpuExecutor(spec, architecture="sm_90", service=SERVICE, check=None) as opened:
        yield opened


def evaluate(executor: GpuExecutor, name: str) -> Evaluation:
    executor.submit(0, kernel(name))
    ((ticket, evaluation),) = executor.wait()
    assert ticket == 0
    return evaluation


@pytest.mark.parametrize("name", ["cluster", "tensor-maps", "large-shared", "descriptors"])
def test_what_only_hopper_has_reaches_the_gpu_process(
    wide_task: Path, fake: pytest.MonkeyPatch, name: str
) -> None:
    with GpuExecutor(DeviceSpec("gpu", wide_task), service=SERVICE, check=None) as opened:
        opened.submit(0, hopper_kernels.ALL[name])
        ((_, evaluation),) = opened.wait()
    assert evaluation.ok, evaluation.message


def test_what_was_begun_ahead_too_late_is_built_where_it_is_needed(
    small_task: Path, fake: pytest.MonkeyPatch
) -> None:
    names, submitted = ("slow", "slower", "faster"), threading.Event()

    def likely(_: int) -> Iterator[Kernel]:
        assert submitted.wait(60)
        yield from map(kernel, names)

    spec = DeviceSpec("gpu", small_task)
    with GpuExecutor(spec, architecture="sm_90", service=SERVICE, check=None, likely=likely) as opened:
        for ticket, name in enumerate(names):
            opened.submit(ticket, kernel(name))
        submitted.set()
        found = [each for _ in names for each in opened.wait(60)]
    assert [evaluation.ok for _, evaluation in found] == [True] * 3


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


def test_a_kernel_without_a_time_among_its_counters_has_none(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, "has_no_time")
    assert evaluation.ok, evaluation.message
    assert "sm__cycles_elapsed.max" not in evaluation.counters
    assert evaluation.flags == ("It has no counters: the GPU gave no time of a launch.",)


@pytest.mark.parametrize(
    ("name", "outcome", "guard", "sentence"),
    [
        ("wrong", Outcome.WRONG_RESULT, None, "'out' is wrong"),
        ("lazy", Outcome.WRONG_RESULT, Guard.POISON, "never written"),
        ("spoils", Outcome.WRONG_RESULT, Guard.UNTOUCHED_INPUTS, "the input 'x' was changed in place"),
        ("overrun", Outcome.WRONG_RESULT, Guard.GUARD_BYTES, "4 bytes behind the buffer 'out'"),
        ("refuse", Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, "too many resources"),
        ("narrow", Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS, "blocks of 64 threads; its registers and"),
        ("skips", Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS, "picked at random"),
        ("copies_first", Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS, "'out' is wrong"),
        ("spoils_timed", Outcome.WRONG_RESULT, Guard.UNTOUCHED_INPUTS, "by 11 of 14 timed runs"),
        ("remembers", Outcome.REJECTED, Guard.GPU_TIME, "it keeps something from run to run"),
        ("overruns_timed", Outcome.WRONG_RESULT, Guard.GUARD_BYTES, "4 bytes behind"),
        ("outlasts", Outcome.REJECTED, Guard.GPU_TIME, "by the host's clock"),
        ("decoy", Outcome.REJECTED, Guard.GPU_TIME, "of the time is spent outside"),
        ("impossible", Outcome.OK, Guard.ROOFLINE, ""),
    ],
)
def test_faults_and_cheats_are_refused_by_the_guard_that_noticed(
    executor: GpuExecutor, name: str, outcome: Outcome, guard: Guard | None, sentence: str
) -> None:
    evaluation = evaluate(executor, name)
    assert (evaluation.outcome, sentence in evaluation.message) == (outcome, True), evaluation.message
    assert guard is None or evaluation.guard is guard
    assert bool(evaluation.quarantine) is (guard is Guard.ROOFLINE)


def test_a_kernel_that_was_disturbed_on_new_inputs_is_timed_in_a_process_that_has_seen_none(
    executor: GpuExecutor,
) -> None:
    assert evaluate(executor, "faster").ok
    pid = executor._gpus.evaluators[0]._open_worker._process.pid
    evaluation = evaluate(executor, "disturbed")
    assert evaluation.ok, evaluation.message
    assert executor._gpus.evaluators[0]._open_worker._process.pid != pid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcome", "sentence"),
    [
        ("crash", Outcome.CRASH, "illegal memory access"),
        ("die", Outcome.CRASH, "was killed by SIGABRT"),
        ("hang", Outcome.TIMEOUT, "more than its limit of 2 s"),
        ("forges", Outcome.CRASH, "unexpected reply"),
        ("foreign_writees", Outcome.WRONG_RESULT, "writes elsewhere"),
        ("foreign_writees_last", Outcome.WRONG_RESULT, "writes elsewhere"),
    ],
)
def test_a_kernel_that_costs_its_process_costs_one_evaluation(
    executor: GpuExecutor, name: str, outcome: Outcome, sentence: str
) -> None:
    evaluation = evaluate(executor, name)
    assert (evaluation.outcome, sentence in evaluation.message) == (outcome, True), evaluation.message
    assert evaluate(executor, "faster").ok


def test_a_kernel_with_variables_is_checked_after_many_runs(executor: GpuExecutor) -> None:
    source = KERNEL.replace("twice", "weary").replace('extern "C"', '__device__ int kept;\nextern "C"', 1)
    executor.submit(0, Kernel(source.replace("= x[0] + n", "= x[0] + n + kept++")))
    ((_, evaluation),) = executor.wait()
    assert (evaluation.outcome, evaluation.guard) == (Outcome.WRONG_RESULT, Guard.REPETITION)
    assert "followed 300 others" in evaluation.message
    assert evaluate(executor, "weary").ok, "without a variable nothing wears"


def test_results_that_differ_from_run_to_run_are_flagged(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, "fickle")
    assert evaluation.ok
    assert any("differ" in flag for flag in evaluation.flags)
    assert any("timed runs left other bytes" in flag for flag in evaluation.flags)
    assert not any("differ" in flag for flag in evaluate(executor, "faster").flags)


@pytest.mark.slow
def test_the_final_validation_has_held_out_shapes_and_a_process_and_a_seed_of_its_own(
    executor: GpuExecutor,
) -> None:
    found = [executor.final_validation(kernel("faster"), kernel("twice")) for _ in range(2)]
    assert found[0].ok, found[0].message
    assert {check.shape for check in found[0].checks} == {"n=77", "n=5000"}
    assert [timing.shape for timing in found[0].timings] == ["n=5000"]
    assert found[0].timings[0].baseline_seconds == pytest.approx(100e-6, rel=1e-3)
    assert found[0].checks[0].seed != found[1].checks[0].seed
    pid = executor._gpus.evaluators[0]._open_worker._process.pid
    assert executor.final_validation(kernel("die"), kernel("twice")).outcome is Outcome.CRASH
    assert executor._gpus.evaluators[0]._open_worker._process.pid == pid


@pytest.mark.slow
def test_a_gpu_process_that_dies_while_idle_is_replaced(executor: GpuExecutor) -> None:
    assert evaluate(executor, "faster").ok
    os.kill(executor._gpus.evaluators[0]._open_worker._process.pid, signal.SIGKILL)
    evaluate(executor, "faster")
    assert evaluate(executor, "faster").ok


@pytest.mark.slow
def test_a_task_that_asks_for_determinism_refuses_results_that_differ(
    write_task: Callable[..., Path], fake: pytest.MonkeyPatch
) -> None:
    folder = write_task()
    (folder / "task.toml").write_text("deterministic = true\n" + (folder / "task.toml").read_text())
    with GpuExecutor(DeviceSpec("gpu", folder), service=SERVICE, metrics=()) as executor:
        assert executor.notes == ("No counters here.",)
        assert evaluate(executor, "fickle").outcome is Outcome.WRONG_RESULT
        assert evaluate(executor, "faster").ok
        executor.submit(0, kernel("hang"))
    assert executor.capacity, "closing ends what is in flight"


def test_a_search_on_a_gpu_end_to_end(
    small_task: Path, fake: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = ["a0" * 16]

    expected: list[Kernel] = []

    def open_fake(spec: DeviceSpec, workers: int, _: object, likely: Likely | None = None) -> GpuExecutor:
        expected.extend(likely(2) if likely is not None else ())
        return GpuExecutor(spec, workers=workers, gpus=here, service=SERVICE, check=None, likely=likely)

    monkeypatch.setattr(gpu, "open_gpus", open_fake)
    words = ["search", str(small_task), "--device", "gpu", "--workers", "1", "--budget", "6"]
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    view = load_view(tmp_path / "run")
    assert view.manifest.fingerprint["gpu"] == "Fake GPU"
    assert (tmp_path / "run" / "best" / "answer.json").exists()
    tried = [node.kernel.identity for node in view.tree.nodes]
    assert [each.identity for each in expected] == tried[1:3], "built before they are tried"
    here[0] = "b0" * 16
    for budget in ("8", "9"):
        done = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--budget", budget])
        assert done.exit_code == 0, done.output
        retimed = [each for each in read_events(view.folder.journal) if isinstance(each, Retimed)]
        assert retimed[0].node == 0
        assert view.best.id in {each.node for each in retimed}
        assert {each.evaluation.gpu for each in retimed} == set(here)
        assert len(retimed) == len({each.node for each in retimed}), "once, however often it is resumed"
    again = load_view(tmp_path / "run")
    assert [each["uuid"] for each in again.manifest.moved_to] == here
    assert again.tree.evaluations == 9
    assert again.tree.nodes[0].reward_sum == pytest.approx(
        sum(node.reward for node in again.tree.nodes if node.evaluation)
    )
    written = view.folder.manifest.read_text("utf-8").replace('"Fake GPU"', '"Another GPU"')
    view.folder.manifest.write_text(written, "utf-8")
    refused = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--budget", "10"])
    assert "--device gpu` measures the best kernels here" in " ".join(refused.output.split())


PASSED = Evaluation(Outcome.OK, Source.MEASURED, flags=("seen before",))
RIGHT = f"""{PLAN}
extern "C" __global__ void twice(const float* x, float* out, int n) {{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}}
"""
RACE = f"""{PLAN}
extern "C" __global__ void twice(const float* x, float* out, int n) {{
    __shared__ float kept[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) kept[63 - threadIdx.x] = x[i];
    if (i < n) out[i] = 2 * x[i] + 0 * kept[threadIdx.x];
}}
"""


@pytest.mark.slow
def test_a_final_validation_times_special_values(write_task: WriteTask, fake: pytest.MonkeyPatch) -> None:
    folder = write_task('independent = "n"\n' + TASK_TOML)
    with GpuExecutor(DeviceSpec("gpu", folder), service=SERVICE, check=None) as executor:
        assert evaluate(executor, "swallows").ok
        found = executor.final_validation(kernel("swallows"), kernel("twice"))
        assert found.guard is Guard.TIMED_OUTPUTS
        assert "At n=5000, NaN values" in found.message


def test_a_gpu_process_that_is_started_ahead_is_taken_over_once_and_closed_if_nobody_does(
    small_task: Path, fake: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "GPU_SERVICE", SERVICE)
        with worker.started_ahead(["", "another"], ["counter"]):
            pids = [process.pid for _, process in worker._ahead.values()]
            for is_first in (True, False):
                with closing(GpuEvaluator(DeviceSpec("gpu", small_task), ["counter"], SERVICE)) as evaluator:
                    evaluator.open()
                    assert (evaluator._open_worker._process.pid == pids[0]) is is_first
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_the_emulator_refuses_races_that_the_gpu_survived_and_decides_no_results(small_task: Path) -> None:
    spec = DeviceSpec("gpu", small_task).in_final_validation
    assert emulated(Kernel(RIGHT), spec, Interrupt()).added_to(PASSED) == PASSED
    found = emulated(Kernel(RACE), spec, Interrupt())
    assert (found.outcome, found.guard) == (Outcome.RACE, Guard.RACE_CHECKS)
    assert found.message.startswith("The emulator: At n=")
    (note,) = emulated(Kernel(RIGHT.replace("2 *", "3 *")), spec, Interrupt()).notes
    assert note.startswith("The emulator could not check the kernel for races: ")


@pytest.mark.parametrize(
    ("instructions", "outcome", "said"),
    [
        (100_000, Outcome.OK, ""),
        (5_000, Outcome.OK, f"{PARTLY} 1 of 2 shapes; for n=2000 it was too slow."),
        (10, Outcome.TIMEOUT, ""),
    ],
)
def test_a_check_for_defects_takes_small_shapes_first(
    write_task: WriteTask, monkeypatch: pytest.MonkeyPatch, instructions: int, outcome: Outcome, said: str
) -> None:
    folder = write_task(TASK_TOML.replace("held_out = [", "held_out = [{ n = 2000 }, "))
    limits = Limits(lane_instructions=instructions)
    monkeypatch.setattr(emulated_verification, "LIMITS", limits)
    check = emulated_verification.DefectCheck(DeviceSpec("model", folder, trial=Trial.CHECK))
    found = check.evaluate(Kernel(RIGHT))
    assert (found.outcome, " ".join(found.flags)) == (outcome, said)
    if outcome is Outcome.OK:
        assert check.evaluate(Kernel(RACE)).guard is Guard.RACE_CHECKS


@pytest.mark.slow
def test_the_fastest_kernel_is_checked_while_others_are_evaluated(
    small_task: Path, fake: pytest.MonkeyPatch
) -> None:
    fake.setattr("os.cpu_count", lambda: 2)
    begun: queue.SimpleQueue[str] = queue.SimpleQueue()

    def check(checked: Kernel, _spec: DeviceSpec, interrupt: Interrupt) -> Checked:
        ended = threading.Event()
        with interrupt.calls(ended.set):
            begun.put(checked.identity)
            if checked.identity == kernel("twice").identity:
                assert ended.wait(60)  # until a faster one is there
        return Checked(notes=("It was checked.",))

    with GpuExecutor(DeviceSpec("gpu", small_task), service=SERVICE, check=check) as executor:
        for name in ("twice", "faster", "twice"):
            assert evaluate(executor, name).ok
        assert [begun.get(timeout=60) for _ in range(2)] == [
            kernel("twice").identity,
            kernel("faster").identity,
        ]
        assert "It was checked." in executor.final_validation(kernel("faster"), kernel("twice")).flags
    assert begun.empty()


@pytest.mark.slow
def test_an_interrupt_ends_a_final_validation(small_task: Path, fake: pytest.MonkeyPatch) -> None:
    interrupt, ended = Interrupt(), threading.Event()

    def endless(_kernel: Kernel, _spec: DeviceSpec, ends: Interrupt) -> Checked:
        with ends.calls(ended.set):
            interrupt.set()
            assert ended.wait(60)
        return Checked()

    spec = DeviceSpec("gpu", small_task)
    for check in (endless, None):
        begun = [
            begin_validation(spec, kernel(name), "sm_90", check, interrupt) for name in ("faster", "twice")
        ]
        with pytest.raises(DeviceError):
            validate_finally(spec, *begun, interrupt, SERVICE)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["SlowerGpu", "DriftingGpu", "HotAtFirstGpu", "start"])
def test_kernels_compare_by_the_baseline_beside_them_whatever_the_gpu_does(
    small_task: Path, tmp_path: Path, fake: pytest.MonkeyPatch, service: str
) -> None:
    """A much faster start takes the baseline's place; ratios stay those to the starting kernel."""
    folder = shutil.copytree(small_task, tmp_path / "task")
    spec = DeviceSpec("gpu", folder)
    if service == "start":
        (folder / "start_faster.cu").write_text(kernel("faster").source)
        fake.setattr("mctskernel.profiling.gpu.evaluator.MUCH_FASTER", 1.5)
        service = "SlowerGpu"
    with closing(compile_worker(spec, "sm_90")) as compiler:
        faster, twice = (compiler.prepare(kernel(name)) for name in ("faster", "twice"))
    assert isinstance(faster, Prepared)
    assert isinstance(twice, Prepared)
    with closing(GpuEvaluator(spec, (), f"uneven_gpus:{service}")) as evaluator:
        evaluator.open()
        evaluator.use_baseline(twice.candidate)
        found = [evaluator.evaluate(faster) for _ in range(5)]
    ratios = [each.timings[0].seconds / (each.timings[0].baseline_seconds or 0.0) for each in found]
    assert ratios == pytest.approx([0.5] * 5, rel=1e-2)
    disturbed = [any("less certain" in flag for flag in each.flags) for each in found]
    assert disturbed == [service == "HotAtFirstGpu", False, False, False, False]


def test_a_machine_without_a_gpu_says_so(small_task: Path) -> None:
    if not Path("/dev/nvidia0").exists():
        with pytest.raises(DeviceError, match="driver"):
            GpuExecutor(DeviceSpec("gpu", small_task))


class FakeDriver:
    """Of another version than the compiler."""

    class CUresult:
        CUDA_SUCCESS = 0

    def cuInit(self, _flags: int) -> tuple[int]:  # noqa: N802 - the driver's name
        return (0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802 - the driver's name
        return 0, 12040


def test_a_driver_older_than_the_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "cu", FakeDriver())
    with pytest.raises(DeviceError, match=r"too old: it supports CUDA 12\.4"):
        cuda_driver.open_gpu()
