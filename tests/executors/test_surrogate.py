from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.executors import open_surrogate
from mctskernel.executors.surrogate import ModelSurrogate
from mctskernel.profiling.processes.worker import Limits
from tests.conftest import KERNEL

SPEC = DeviceSpec("model", Path())


def drain(surrogate: ModelSurrogate, count: int) -> dict[int, Prediction | None]:
    results: dict[int, Prediction | None] = {}
    while len(results) < count:
        finished = surrogate.wait(60)
        assert finished
        results.update(finished)
    return results


@pytest.mark.slow
def test_a_kernel_that_breaks_or_holds_its_process_has_no_prediction_and_costs_no_other(
    fakes: ModuleType,
) -> None:
    limits = Limits(seconds=0.5, opening_seconds=30.0)
    with ModelSurrogate(SPEC, workers=2, limits=limits, opener=fakes.Fake) as surrogate:
        assert surrogate.capacity == 2
        for ticket, source in enumerate(("ok a", "abort", "spin", "raise c", "ok b")):
            surrogate.submit(ticket, Kernel(source))
        found = drain(surrogate, 5)
        assert surrogate.wait(0.0) == []
    assert {ticket for ticket, prediction in found.items() if prediction is None} == {1, 2, 3}
    assert found[0] == Prediction(1.0, {})


def test_a_machine_that_cannot_predict_at_all_says_so(small_task: Path) -> None:
    with ModelSurrogate(DeviceSpec("model", small_task, architecture="VOODOO2")) as surrogate:
        surrogate.submit(0, Kernel(KERNEL))
        with pytest.raises(DeviceError, match="VOODOO2"):
            surrogate.wait(60)


@pytest.mark.slow
def test_it_prices_what_it_is_given_in_a_process_that_gives_way(small_task: Path) -> None:
    with ModelSurrogate(DeviceSpec("model", small_task)) as surrogate:
        surrogate.submit(0, Kernel(KERNEL))
        surrogate.submit(1, Kernel(KERNEL.replace("2.0f * x[i]", "sinf(x[i])")))
        found = drain(surrogate, 2)
        fast, slow = found[0], found[1]
        assert fast is not None
        assert slow is not None
        assert fast.seconds <= slow.seconds
        assert (
            0 < surrogate.uncertainty(fast, fast) < surrogate.uncertainty(fast, Prediction(1.0, {"L2": 1.0}))
        )


@pytest.mark.parametrize(("file", "gpu"), [("", "NVIDIA H200"), ("mine.toml", "NVIDIA H100 80GB HBM3")])
def test_on_a_gpu_the_description_is_that_of_the_gpu_unless_a_file_is_given(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, gpu: str
) -> None:
    opened: list[DeviceSpec] = []
    monkeypatch.setattr(
        "mctskernel.executors.surrogate.ModelSurrogate", lambda spec, workers: opened.append(spec)
    )
    spec = DeviceSpec("gpu", small_task, architecture=str(tmp_path / file) if file else "A100")
    open_surrogate(spec, {"device": "gpu", "gpu": gpu, "architecture": "sm_90"}, workers=1)
    assert (opened[0].kind, opened[0].task_folder) == ("model", small_task)
    assert opened[0].architecture == (str(tmp_path / file) if file else "H200")
