"""A GPU that fails as a file says: the file that the variable `CUDA_FAULT` names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fake_gpu import FakeGpu

from mctskernel.profiling.gpu.protocol import Broken, Failed, GpuReply, GpuRequest, Opened, OpenGpu

GONE = "No GPU can be used: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)."


class FaultyGpu(FakeGpu):
    """`gone`: every request is lost and nothing can be opened again. `stuck`: opening takes for ever."""

    def open(self, request: OpenGpu) -> Opened | Broken:
        """Open, unless the file says otherwise."""
        match fault():
            case "gone":
                return Broken(GONE)
            case "stuck":
                time.sleep(1000)
        return super().open(request)

    def answer(self, request: GpuRequest) -> GpuReply:
        """Answer, unless the file says otherwise."""
        if fault():
            return Failed("The GPU refused the kernel: CUDA_ERROR_DEVICE_UNAVAILABLE.", lost=True)
        time.sleep(0.01)
        return super().answer(request)


def fault() -> str:
    """What is wrong just now; empty for nothing."""
    path = Path(os.environ["CUDA_FAULT"])
    return path.read_text().strip() if path.exists() else ""
