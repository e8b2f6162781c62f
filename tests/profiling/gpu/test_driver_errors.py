"""What the driver's refusals to start are told as."""

from __future__ import annotations

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.profiling.gpu import cuda_driver


def test_a_driver_that_cannot_name_its_threads_is_told_from_one_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(name: str) -> str:
        def refuse(*_: object) -> None:
            raise cuda_driver.CudaError(name, "a description")

        monkeypatch.setattr(cuda_driver, "call", refuse)
        with pytest.raises(DeviceError, match=name) as refusal:
            cuda_driver.visible_gpus()
        return str(refusal.value)

    assert "sandbox" in told("CUDA_ERROR_OPERATING_SYSTEM")
    assert "sandbox" not in told("CUDA_ERROR_NO_DEVICE")
