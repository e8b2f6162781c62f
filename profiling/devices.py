"""Opening a device from its description."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mctskernel.core.device import Device, DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task, task_of
from mctskernel.profiling.verify import HELD_OUT_SEED


def open_device(spec: DeviceSpec) -> Device:
    """Open the device that `spec` describes. Raises TaskError, and DeviceError on a machine that can't run it."""
    task = task_of(spec)
    if task.space:
        raise DeviceError(
            f"{task.name} is a search-space cache: its configurations can't be run on any device."
        )
    # Imported here: the one needs a driver, the other a compiler, and neither needs the other's.
    if spec.kind == "model":
        from mctskernel.profiling.model_device import ModelDevice  # noqa: PLC0415 - as said above

        in_final_validation = spec.trial is Trial.FINAL_VALIDATION
        searched = load_task(spec.task_folder, spec.language) if in_final_validation else None
        return ModelDevice(task, spec.architecture, spec.seed, searched)
    raise DeviceError(f"There is no device called '{spec.kind}' that evaluates kernels in a worker.")


@dataclass(frozen=True)
class _Sequence:
    """Evaluates on one device after the other, until one of them finds something wrong."""

    devices: tuple[Device, ...]

    def evaluate(self, kernel: Kernel) -> Evaluation:
        for device in self.devices:
            evaluation = device.evaluate(kernel)
            if not evaluation.ok or evaluation.quarantine:
                break
        return evaluation

    def fingerprint(self) -> dict[str, str]:
        return self.devices[0].fingerprint()


def open_for_check(spec: DeviceSpec) -> Device:
    """The device, then one with the held-out shapes, that check a starting kernel. Raises as `open_device` does."""
    held_out = replace(spec, trial=Trial.CHECK, seed=HELD_OUT_SEED)
    return _Sequence((open_device(spec), open_device(held_out)))


def default_kind() -> str:
    """`gpu` where there is a GPU that can be used, otherwise `model`."""
    try:
        from mctskernel.profiling.gpu.cuda_driver import describe_gpu  # noqa: PLC0415 - needs the driver's bindings

        describe_gpu()
    except (DeviceError, ImportError):
        return "model"
    return "gpu"
