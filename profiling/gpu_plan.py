"""A candidate on the GPU: its machine code loaded, its launch plan bound to buffers, ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mctskernel.core.evaluation import Outcome
from mctskernel.core.task import Array, Shape, Task
from mctskernel.profiling.candidate import Candidate, RefusedError
from mctskernel.profiling.cuda_driver import DeviceBuffer, Gpu, LoadedModule, PreparedLaunch
from mctskernel.profiling.verify import poison

POISON_WORD = 0xCBCBCBCB
"""What a scratch buffer holds before its kernel has written it."""


@dataclass(frozen=True)
class Arena:
    """The task's tensors on the GPU at one shape, by name."""

    shape: Shape
    buffers: Mapping[str, DeviceBuffer]


@contextmanager
def placed(task: Task, shape: Shape, inputs: Mapping[str, Array]) -> Iterator[Arena]:
    """Inputs copied to the GPU and outputs poisoned, for a while. Raises CudaError when the GPU is full."""
    with ExitStack() as stack:
        arena: dict[str, DeviceBuffer] = {}
        for tensor in (*task.inputs, *task.outputs):
            arena[tensor.name] = stack.enter_context(_allocated(tensor.nbytes(shape)))
            contents = inputs.get(tensor.name)
            arena[tensor.name].write(
                contents if contents is not None else poison(tensor.dtype, tensor.extents(shape))
            )
        yield Arena(shape, arena)


@dataclass(frozen=True)
class Loaded:
    """A candidate whose machine code is on the GPU."""

    candidate: Candidate
    module: LoadedModule

    @contextmanager
    def bound(self, task: Task, arena: Arena) -> Iterator[BoundPlan]:
        """The launch plan at the arena's shape, ready to run, with poisoned scratch buffers of its own."""
        candidate = self.candidate
        resolved = candidate.at(task, arena.shape)
        with ExitStack() as stack:
            scratch = {each.name: stack.enter_context(_allocated(each.nbytes)) for each in resolved.scratch}
            for buffer in scratch.values():
                buffer.fill(POISON_WORD)
            addresses = {name: buffer.address for name, buffer in (*arena.buffers.items(), *scratch.items())}
            launches = [
                PreparedLaunch(
                    self.module,
                    candidate.entry_of(launch),
                    launch,
                    candidate.arguments(launch, addresses),
                )
                for launch in resolved.launches
            ]
            yield BoundPlan(launches, [scratch[each.name] for each in resolved.scratch if each.zero])


@dataclass(frozen=True)
class BoundPlan:
    """Launches with their addresses, and the scratch buffers to fill with zeros before them."""

    launches: Sequence[PreparedLaunch]
    zeroed: Sequence[DeviceBuffer]

    def run(self) -> None:
        """Run once, in stream order."""
        for buffer in self.zeroed:
            buffer.fill(0)
        for launch in self.launches:
            launch()


@contextmanager
def loaded(task: Task, candidate: Candidate, gpu: Gpu) -> Iterator[Loaded]:
    """Put a candidate on the GPU for a while. Raises RefusedError when a launch asks for more than it has."""
    module = LoadedModule(candidate.builds[0].cubin)
    try:
        _refuse_oversized(task, candidate, module, gpu)
        yield Loaded(candidate, module)
    finally:
        module.unload()


def _refuse_oversized(task: Task, candidate: Candidate, module: LoadedModule, gpu: Gpu) -> None:
    made = candidate.builds[0]
    for shape in task.shapes:
        for launch in candidate.at(task, shape).launches:
            what = f"The launch of '{launch.kernel}'"
            most = module.max_threads(made.entries[launch.kernel])
            if launch.threads > most:
                raise RefusedError(
                    Outcome.LAUNCH_ERROR,
                    f"{what} has blocks of {launch.threads} threads; its registers and launch bounds allow {most}.",
                    candidate,
                )
            shared = made.resources_of(launch.kernel).shared_bytes + launch.shared_bytes
            if shared > gpu.max_shared_bytes:
                raise RefusedError(
                    Outcome.LAUNCH_ERROR,
                    f"{what} takes {shared} bytes of shared memory a block; {gpu.name} has {gpu.max_shared_bytes}.",
                    candidate,
                )


@contextmanager
def _allocated(nbytes: int) -> Iterator[DeviceBuffer]:
    buffer = DeviceBuffer(nbytes)
    try:
        yield buffer
    finally:
        buffer.free()
