"""What actors open in tests: fake GPUs, of which the third is of another kind and one breaks when a file says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
from fake_devices import Fake
from fake_gpu import FakeGpu

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import Executor, ExecutorOptions
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.executors.local import LocalExecutor
from mctskernel.profiling.gpu.protocol import GpuReply, GpuRequest, Opened, OpenGpu
from mctskernel.profiling.processes.channel import Broken

FOLDER = "CUDA_TEST_FOLDER"
"""The variable with the folder of the file `broken-gpu`, which holds a GPU's number."""

FALLEN = Broken("The GPU has fallen off the bus.")


class AssortedGpu(FakeGpu):
    """The GPU that Ray shows to its process, by its number."""

    def open(self, request: OpenGpu) -> Opened | Broken:
        """As always, with a UUID of its own and, of the third one, another name."""
        folder, number = Path(os.environ[FOLDER]), os.environ["CUDA_VISIBLE_DEVICES"]
        # Once it is confined, the process opens no files.
        self.broken = (folder / "broken-gpu").open()
        self.number = number
        opened = super().open(request)
        if self.is_broken() or isinstance(opened, Broken):
            return FALLEN
        name = "Other GPU" if number == "2" else opened.gpu.name
        return msgspec.structs.replace(opened, gpu=replace(opened.gpu, name=name, uuid=f"fake{number}"))

    def answer(self, request: GpuRequest) -> GpuReply:
        """As always, unless it is broken."""
        return FALLEN if self.is_broken() else super().answer(request)

    def is_broken(self) -> bool:
        """Whether it was told to break."""
        self.broken.seek(0)
        return self.broken.read() == self.number


@contextmanager
def open_fake(spec: DeviceSpec, workers: int, options: ExecutorOptions) -> Iterator[Executor]:
    """What an actor opens in tests: a fake device on `model`, and on `gpu` the fake GPU that Ray gave it."""
    if spec.kind == "model":
        with LocalExecutor(spec, workers=workers, opener=Fake) as executor:
            yield executor
    else:
        with GpuExecutor(spec, workers=workers, service="assorted_gpus:AssortedGpu") as executor:
            yield executor
