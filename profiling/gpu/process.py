"""The process that holds a GPU. Run as `python -m mctskernel.profiling.gpu.process SOCKET LIFELINE WINDOW`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Protocol

from mctskernel.profiling.gpu.protocol import GPU_REQUESTS, Failed, GpuReply, GpuRequest, Opened, OpenGpu
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement, counter_capabilities, gpu_devices
from mctskernel.profiling.processes.channel import Broken, serve
from mctskernel.profiling.processes.shared_window import SharedWindow

PROGRAMS = 8  # how many disassemblers may run at a time


def confinement(request: OpenGpu, scratch: Path) -> Confinement:
    """What running kernels on an open GPU needs: its device files, and the right to read counters."""
    return Confinement(
        scratch=scratch,
        devices=gpu_devices(),
        processes=PROGRAMS,
        memory_bytes=request.memory_bytes,
        capabilities=counter_capabilities(),
    )


class Service(Protocol):
    """Answers requests: `GpuService`, or a fake in tests."""

    def open(self, request: OpenGpu) -> Opened | Broken:
        """Open the GPU."""

    def answer(self, request: GpuRequest) -> GpuReply:
        """The reply to any later request."""


class Session:
    """The service that the first request names."""

    def __init__(self, window: SharedWindow) -> None:
        self._window = window
        self._service: Service | None = None

    def answer(self, request: GpuRequest) -> tuple[GpuReply, bool]:
        """The reply, and whether the process must end after sending it."""
        if isinstance(request, OpenGpu):
            module, _, name = request.service.partition(":")
            self._service = getattr(importlib.import_module(module), name)(self._window)
            reply: GpuReply = self._service.open(request)
            confine(confinement(request, Path.cwd()))
        elif self._service is None:
            reply = Broken("No GPU is open.")
        else:
            reply = self._service.answer(request)
        return reply, isinstance(reply, Broken) or (isinstance(reply, Failed) and reply.lost)


if __name__ == "__main__":
    serve(GPU_REQUESTS, Session(SharedWindow(int(sys.argv[3]))).answer)
