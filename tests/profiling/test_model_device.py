from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Guard, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling import emulated_verification
from mctskernel.profiling.emulator import Limits
from mctskernel.profiling.model_device import ModelDevice
from tests.conftest import KERNEL, TASK_TOML, WriteTask


@pytest.fixture
def device(write_task: WriteTask) -> ModelDevice:
    return ModelDevice(load_task(write_task()))


def test_the_starting_kernel_is_built_verified_and_priced(device: ModelDevice) -> None:
    evaluation = device.evaluate(Kernel(KERNEL))
    assert evaluation.outcome is Outcome.OK, evaluation.message
    assert evaluation.source is Source.MODELLED
    assert [timing.shape for timing in evaluation.timings] == ["n=4096"]
    assert evaluation.checks
    assert evaluation.resources[0].kernel == "twice"
    assert {"build", "verify", "price"} <= evaluation.stage_seconds.keys()
    assert evaluation.diagnosis is not None
    assert evaluation.quarantine == ""


@pytest.mark.parametrize(
    ("before", "after", "outcome", "sentence"),
    [
        ("2.0f * x[i]", "2.1f * x[i]", Outcome.WRONG_RESULT, "elements"),
        ("if (i < n) {", "if (i < n - 1) {", Outcome.WRONG_RESULT, "never written"),
        ("out[i] = 2", "out[0] = 2", Outcome.RACE, "twice"),
        ("if (i < n) {", "while (n) { __nanosleep(1); } {", Outcome.TIMEOUT, "twice"),
        ("float* out", "flout* out", Outcome.BUILD_ERROR, "flout"),
        ('"out", "n"]', '"out"]', Outcome.LAUNCH_ERROR, "2 arguments"),
        ('block = ["BLOCK"]', 'block = ["BLOCK"]\nshared = 232449', Outcome.LAUNCH_ERROR, "shared memory"),
        ("__global__ void", "__global__ void __launch_bounds__(32)", Outcome.LAUNCH_ERROR, "launch_bounds"),
        ("#define", '#include "/etc/passwd"\n#define', Outcome.REJECTED, "#include"),
        (
            "int i =",
            'asm volatile("wgmma.fence.sync.aligned;"); int i =',
            Outcome.UNVERIFIABLE,
            "wgmma.fence.sync.aligned (source line 11), so the kernel can't be verified here",
        ),
    ],
)
def test_a_planted_fault_has_its_outcome(  # noqa: PLR0917 - pytest passes them by name
    device: ModelDevice,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    outcome: Outcome,
    sentence: str,
) -> None:
    monkeypatch.setattr(emulated_verification, "LIMITS", Limits(seconds=1.0))
    assert before in KERNEL
    evaluation = device.evaluate(Kernel(KERNEL.replace(before, after)))
    assert evaluation.outcome is outcome, evaluation.message
    assert sentence in evaluation.message


COUNTER = "__device__ int kept;\n"


@pytest.mark.parametrize(
    ("change", "is_right"),
    [
        ("if (i == 0) kept = 7;", True),
        ("if (i == 0) { atomicAdd(&kept, 1); atomicExch(&kept, 0); }", True),
        ("if (i == 0 && atomicAdd(&kept, 1) > 15) return;", False),
        ("if (i == 0 && atomicExch(&kept, n) == 130) return;", False),
    ],
    ids=["writes only", "puts it back", "lazy after a while", "knows the last run"],
)
def test_what_a_kernel_keeps_in_a_variable_must_not_spoil_its_later_runs(
    device: ModelDevice, change: str, is_right: bool
) -> None:
    counting = KERNEL.replace('extern "C"', COUNTER + 'extern "C"', 1)
    evaluation = device.evaluate(Kernel(counting.replace("if (i < n) {", f"if (i < n) {{ {change}", 1)))
    assert evaluation.ok == is_right, evaluation.message
    if not is_right:
        assert evaluation.guard is Guard.REPETITION
        assert "Its first run was right" in evaluation.message


def test_times_from_other_constants_are_of_another_device(write_task: WriteTask, tmp_path: Path) -> None:
    """A file may change between a run and its resumption; the times before and after can't be compared."""
    task = load_task(write_task())
    file = tmp_path / "mine.toml"
    shipped = Path(__file__).parents[2] / "profiling" / "architectures" / "h100.toml"
    file.write_text(shipped.read_text())
    before = ModelDevice(task, str(file)).fingerprint()
    assert before == ModelDevice(task, "H100").fingerprint()
    file.write_text(shipped.read_text().replace("sms = 132", "sms = 114"))
    assert ModelDevice(task, str(file)).fingerprint() != before
    file.write_text("sms = 132")
    with pytest.raises(DeviceError, match=r"mine.toml' describes no GPU"):
        ModelDevice(task, str(file))


def test_a_text_that_compiles_to_the_same_code_is_judged_once(write_task: WriteTask) -> None:
    task = load_task(write_task())
    device = ModelDevice(task)
    first = device.evaluate(task.starting_kernel)
    again = device.evaluate(Kernel(KERNEL.replace("2.0f * x[i]", "x[i] * 2.0f")))
    other = device.evaluate(Kernel(KERNEL.replace("2.0f * x[i]", "x[i] * 3.0f")))
    assert replace(again, stage_seconds={}) == replace(first, stage_seconds={})
    assert again.stage_seconds.keys() == {"build"}
    assert other.outcome is Outcome.WRONG_RESULT


def test_contents_that_are_too_large_to_draw_may_not_matter_on_an_older_gpu(write_task: WriteTask) -> None:
    device = ModelDevice(load_task(write_task(toml=TASK_TOML.replace("n = 4096", "n = 536870912"))))
    loop = "for (int s = 0; s < 3 && x[i] > s; ++s) __nanosleep(1);"
    newer = KERNEL.replace("out[i] =", f"\n#if __CUDA_ARCH__ >= 900\n{loop}\n#endif\nout[i] =")
    evaluation = device.evaluate(Kernel(newer))
    assert evaluation.outcome is Outcome.OK, evaluation.message
    assert any("depends on 'x', which is too large to draw" in flag for flag in evaluation.flags)
    with pytest.raises(MemoryError):
        device.evaluate(Kernel(KERNEL.replace("out[i] =", f"{loop} out[i] =")))
