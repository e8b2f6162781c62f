"""The GPU executor on a real GPU: what kernels do to it is their outcome, and nothing is kept from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.gpu import GpuExecutor, open_gpus
from mctskernel.profiling.gpu.choice import chosen_gpus
from mctskernel.profiling.gpu.cuda_driver import visible_gpus
from mctskernel.tasks.builtin import builtin_tasks
from tests import hopper_kernels
from tests.executors.test_gpu_cheats import HEAD, INDEX, PLAN

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

RIGHT = PLAN + HEAD + INDEX + "    if (i < n) out[i] = 2.0f * x[i];\n}\n"


@pytest.fixture(scope="module")
def executor(small_task: Path) -> Iterator[GpuExecutor]:
    with GpuExecutor(DeviceSpec("gpu", small_task)) as opened:
        yield opened


@pytest.fixture
def wide_executor(wide_task: Path) -> Iterator[GpuExecutor]:
    with GpuExecutor(DeviceSpec("gpu", wide_task)) as opened:
        yield opened


def evaluate(executor: GpuExecutor, source: str) -> Evaluation:
    executor.submit(0, Kernel(source))
    ((_, evaluation),) = executor.wait()
    return evaluation


def body(text: str) -> str:
    return PLAN + HEAD + INDEX + text + "\n}\n"


@pytest.mark.parametrize(
    ("source", "outcome", "sentence"),
    [
        (body("    if (i < n) out[i] = 3.0f * x[i];"), Outcome.WRONG_RESULT, "'out' is wrong"),
        (body("    out[(size_t)1 << 40] = x[i];"), Outcome.CRASH, "illegal"),
        (body("    __trap();"), Outcome.CRASH, "refused the kernel"),
        (
            body(
                "    volatile const float* p = x; while (p[0] == x[0] || n > 0) { if (p[0] != p[0]) break; }"
            ),
            Outcome.TIMEOUT,
            "limit",
        ),
        (
            RIGHT.replace("[64]", "[1024]").replace("void twice", "void __launch_bounds__(128) twice"),
            Outcome.LAUNCH_ERROR,
            "allow 128",
        ),
        (
            RIGHT.replace("block = [64]", "block = [64]\nshared = 300000"),
            Outcome.LAUNCH_ERROR,
            "shared memory",
        ),
    ],
)
def test_faults_of_a_kernel_are_its_outcome_and_the_next_one_is_evaluated(
    executor: GpuExecutor, source: str, outcome: Outcome, sentence: str
) -> None:
    evaluation = evaluate(executor, source)
    assert (evaluation.outcome, sentence in evaluation.message) == (outcome, True), evaluation.message
    assert evaluate(executor, RIGHT).ok


def test_a_right_kernel_is_timed_counted_and_diagnosed(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, RIGHT)
    assert evaluation.ok, evaluation.message
    assert list(evaluation.stage_seconds) == ["build", "verify", "time", "counters"]
    assert 1e-6 < evaluation.timings[0].seconds < 50e-6
    if not executor.notes:
        assert len(evaluation.counters) >= 10
        assert evaluation.diagnosis is not None


@pytest.mark.parametrize("name", list(hopper_kernels.ALL))
def test_what_only_hopper_has_is_launched_verified_timed_and_counted(
    wide_executor: GpuExecutor, name: str
) -> None:
    if int(visible_gpus()[0].architecture.removeprefix("sm_")) < 90:
        pytest.skip("this GPU has neither clusters nor TMA")
    wide_executor.submit(0, hopper_kernels.ALL[name])
    ((_, evaluation),) = wide_executor.wait()
    assert evaluation.ok, f"{evaluation.outcome}: {evaluation.message}\n{evaluation.log}"
    assert not evaluation.quarantine, evaluation.quarantine
    if not wide_executor.notes:
        assert evaluation.counters


def test_the_gpu_tells_its_state_from_where_it_is_confined(executor: GpuExecutor) -> None:
    evaluation = evaluate(executor, RIGHT)
    (timing,) = evaluation.timings
    assert executor.notes == ()
    assert timing.conditions is not None
    for state in (timing.conditions.before, timing.conditions.after):
        assert 200 < (state.sm_mhz or 0) < 5000
        assert 10 < (state.celsius or 0) < 110
        assert 10 < (state.watts or 0) < 2000
    assert evaluation.gpu == executor.fingerprint()["uuid"]
    print(timing.conditions)


def test_repeated_timings_agree_within_two_percent(write_task: Callable[..., Path]) -> None:
    # So large that a tick of the GPU's clock is nothing.
    folder = write_task()
    (folder / "task.toml").write_text((folder / "task.toml").read_text().replace("4096", f"{1 << 24}"))
    with GpuExecutor(DeviceSpec("gpu", folder)) as large:
        medians = [evaluate(large, RIGHT).timings[0].seconds for _ in range(10)]
    assert max(medians) - min(medians) < 0.02 * min(medians)


@pytest.mark.parametrize("name", list(builtin_tasks()))
def test_the_starting_kernel_of_every_built_in_task_passes(
    name: str, record_property: Callable[..., None]
) -> None:
    folder: Path = builtin_tasks()[name]
    with GpuExecutor(DeviceSpec("gpu", folder)) as executor:
        executor.submit(0, load_task(folder).starting_kernel)
        ((_, evaluation),) = executor.wait()
    assert evaluation.ok, evaluation.message
    assert not evaluation.quarantine
    record_property("seconds", evaluation.timings[0].seconds)


def test_every_gpu_of_the_machine_judges(small_task: Path) -> None:
    gpus = chosen_gpus(()).uuids
    with open_gpus(DeviceSpec("gpu", small_task), 2) as executor:
        assert executor.fingerprint()["uuid"].split("+") == list(gpus)
        for ticket in range(3 * len(gpus)):
            executor.submit(ticket, Kernel(f"{RIGHT}// {ticket}\n"))
        found: dict[int, Evaluation] = {}
        while len(found) < 3 * len(gpus):
            found |= dict(executor.wait())
        assert all(evaluation.ok for evaluation in found.values())
        assert {evaluation.gpu for evaluation in found.values() if evaluation.gpu} <= set(gpus)


def test_a_gpu_is_opened_by_its_uuid(small_task: Path) -> None:
    last = visible_gpus()[-1]
    with GpuExecutor(DeviceSpec("gpu", small_task, gpu=last.uuid)) as executor:
        assert executor.fingerprint()["uuid"] == last.uuid
        assert evaluate(executor, RIGHT).ok
    with pytest.raises(DeviceError, match="isn't here any more"):
        GpuExecutor(DeviceSpec("gpu", small_task, gpu="00" * 16))
