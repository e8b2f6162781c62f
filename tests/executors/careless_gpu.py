"""GPU services that leave one of their duties undone: what each of them is for."""

from __future__ import annotations

from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer
from mctskernel.profiling.gpu.device_kernels import Scrub
from mctskernel.profiling.gpu.protocol import Load, Loaded, Opened, OpenGpu
from mctskernel.profiling.gpu.service import GpuService
from mctskernel.profiling.gpu.timing import Cleaner
from mctskernel.profiling.processes.channel import Broken


class NoScrub(Scrub):
    """Overwrites nothing."""

    def __call__(self, local_bytes: int = 0) -> None:
        """Do nothing."""


class LeavesItsStash(GpuService):
    """Overwrites no shared and no local memory."""

    def open(self, request: OpenGpu) -> Opened | Broken:
        reply = super().open(request)
        if isinstance(reply, Opened):
            self._cleaner = Cleaner(DeviceBuffer(2 * reply.gpu.l2_bytes), NoScrub(reply.gpu))
        return reply


class KeepsVariables(GpuService):
    """Restores no variables."""

    def _load(self, request: Load) -> Loaded:
        loaded = super()._load(request)
        self._kernels[request.slot].variables.clear()
        return loaded
