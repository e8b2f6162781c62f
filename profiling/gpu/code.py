"""A candidate's machine code on the GPU, and its launches bound to buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mctskernel.profiling.gpu.cuda_driver import (
    CudaError,
    DeviceBuffer,
    LoadedModule,
    PreparedLaunch,
    copy_on_device,
)
from mctskernel.profiling.gpu.digests import Segment
from mctskernel.profiling.gpu.memory import SCRATCH_POISON, Arena, GuardedBuffer, scratch_buffers
from mctskernel.profiling.gpu.protocol import Code, Packed, Plan


@dataclass(frozen=True)
class Variable:
    """A `__device__` or `__constant__` variable, and what it held when its module was loaded."""

    address: int
    pristine: DeviceBuffer

    def restore(self) -> None:
        """What launches left in it must not reach the next run. In stream order."""
        copy_on_device(self.address, self.pristine.address, self.pristine.nbytes)


class LoadedKernel:
    """The modules of one kernel. Raises CudaError when the GPU can't load them."""

    def __init__(self, codes: Sequence[Code]) -> None:
        self.modules: list[LoadedModule] = []
        self.variables: list[Variable] = []
        self.local_bytes = 0
        """The most local memory that a thread of any of its kernels has."""
        for code in codes:
            module = LoadedModule(code.cubin)
            self.modules.append(module)
            found = (_variable(module, name) for name in code.variables)
            self.variables += [variable for variable in found if variable is not None]
            self.local_bytes = max([self.local_bytes, *map(module.local_bytes, code.entries)])

    @property
    def kept(self) -> list[Segment]:
        """What its variables are restored from."""
        return [Segment(each.pristine.address, each.pristine.nbytes) for each in self.variables]

    def max_threads(self, codes: Sequence[Code]) -> dict[str, int]:
        """The most threads that a block of each kernel can have: its registers and launch bounds decide."""
        return {
            entry: module.max_threads(entry)
            for module, code in zip(self.modules, codes, strict=True)
            for entry in code.entries
        }

    def unload(self) -> None:
        """Give everything back."""
        for variable in self.variables:
            variable.pristine.free()
        for module in self.modules:
            module.unload()


@dataclass(frozen=True)
class BoundPlan:
    """A plan with its addresses, ready to run on an arena."""

    arena: Arena
    kernel: LoadedKernel
    launches: Sequence[PreparedLaunch]
    scratch: Sequence[GuardedBuffer]
    zeroed: Sequence[GuardedBuffer]

    def restore(self, variant: int = 0) -> None:
        """Nothing of an earlier run is left: inputs, outputs, scratch and variables. In stream order."""
        self.arena.restore(variant)
        self.restore_own()

    def restore_own(self) -> None:
        """Nothing of an earlier run is left in scratch and variables. In stream order."""
        self.restore_scratch()
        for variable in self.kernel.variables:
            variable.restore()

    def restore_scratch(self) -> None:
        """Nothing of an earlier run is left in scratch. In stream order."""
        for buffer in self.scratch:
            buffer.fill(SCRATCH_POISON)

    def run(self) -> None:
        """Run once, in stream order."""
        for buffer in self.zeroed:
            buffer.fill(0)
        for launch in self.launches:
            launch()

    @property
    def guards(self) -> list[Segment]:
        """What lies around the buffers that it may write."""
        return [*self.arena.guards, *(guard for each in self.scratch for guard in each.guards)]

    def overrun(self) -> str:
        """A sentence about the first buffer that was written beyond its ends."""
        return self.arena.overrun() or next((found for each in self.scratch if (found := each.overrun())), "")


@contextmanager
def bound(plan: Plan, arena: Arena, kernel: LoadedKernel) -> Iterator[BoundPlan]:
    """Bind a plan, with scratch buffers of its own, for a while."""
    with scratch_buffers(plan.scratch) as scratch:
        addresses = {name: tensor.buffer.address for name, tensor in arena.tensors.items()}
        addresses |= {name: buffer.address for name, buffer in scratch.items()}
        launches = [
            PreparedLaunch(
                kernel.modules[launch.code],
                launch.entry,
                grid=launch.grid,
                block=launch.block,
                shared_bytes=launch.shared_bytes,
                arguments=[
                    each.data if isinstance(each, Packed) else addresses[each].to_bytes(8, "little")
                    for each in launch.arguments
                ],
            )
            for launch in plan.launches
        ]
        zeroed = [scratch[each.name] for each in plan.scratch if each.zero]
        yield BoundPlan(arena, kernel, launches, list(scratch.values()), zeroed)


def _variable(module: LoadedModule, name: str) -> Variable | None:
    """A variable of a module; None for one that the machine code doesn't have, because nothing uses it."""
    try:
        address, nbytes = module.variable(name)
    except CudaError as error:
        if error.name == "CUDA_ERROR_NOT_FOUND":
            return None
        raise
    pristine = DeviceBuffer(nbytes)
    copy_on_device(pristine.address, address, nbytes)
    return Variable(address, pristine)
