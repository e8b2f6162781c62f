"""A candidate's machine code on the GPU, and its launches bound to buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, LoadedModule, PreparedLaunch, copy_on_device
from mctskernel.profiling.gpu.memory import SCRATCH_POISON, Arena, GuardedBuffer, scratch_buffers
from mctskernel.profiling.gpu.protocol import Code, Packed, Plan


@dataclass(frozen=True)
class Variable:
    """A `__device__` variable, and what it held when its module was loaded."""

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
        for code in codes:
            self.modules.append(LoadedModule(code.cubin))
            self.variables += [_variable(self.modules[-1], name) for name in code.variables]

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

    def restore(self) -> None:
        """Nothing of an earlier run is left: inputs, outputs, scratch and variables. In stream order."""
        self.arena.restore()
        self.restore_own()

    def restore_own(self) -> None:
        """Nothing of an earlier run is left in outputs, scratch and variables. In stream order."""
        self.arena.poison_outputs()
        for buffer in self.scratch:
            buffer.fill(SCRATCH_POISON)
        for variable in self.kernel.variables:
            variable.restore()

    def run(self) -> None:
        """Run once, in stream order."""
        for buffer in self.zeroed:
            buffer.fill(0)
        for launch in self.launches:
            launch()

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


def _variable(module: LoadedModule, name: str) -> Variable:
    address, nbytes = module.variable(name)
    pristine = DeviceBuffer(nbytes)
    copy_on_device(pristine.address, address, nbytes)
    return Variable(address, pristine)
