"""A host's inputs and outputs in a GPU's memory that two processes map, and the copies that are the referee's alone.

The memory is the referee's; a host maps it through file descriptors (CUDA's virtual memory management, section 4.16
of the programming guide). What is to be hidden from a host until the clock runs is in memory that has no descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.task import Array
from mctskernel.profiling.gpu.cuda_driver import CudaError, call
from mctskernel.profiling.pytorch.memory import Left, poisoned
from mctskernel.profiling.pytorch.structures import Slot

_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@dataclass(frozen=True)
class SharedBuffer:
    """Memory of the GPU behind a file descriptor, mapped at `pointer`; `size` is `nbytes` rounded up."""

    descriptor: int
    pointer: int
    nbytes: int
    size: int
    handle: Any

    def close(self) -> None:
        """Unmap it and give the descriptor back; another process that maps it keeps the memory alive."""
        unmap(self.pointer, self.size, self.handle)
        os.close(self.descriptor)


class DeviceMemory:
    """The outputs of a host's calls and the inputs of the last two. Needs a current context.

    Calls take turns with the memory of their inputs: what a module gives may be one of them, where it works in place,
    and must still be there after the next call.
    """

    def __init__(self, outputs: Sequence[Slot], inputs_bytes: int) -> None:
        poison = poisoned(outputs)
        self._outputs = shared_buffer(poison.nbytes)
        self._turns = (shared_buffer(inputs_bytes), shared_buffer(inputs_bytes))
        self._turn = 0
        self._staged = int(_call(cu.cuMemAlloc, inputs_bytes))
        self._poison = int(_call(cu.cuMemAlloc, poison.nbytes))
        self._taken = int(_call(cu.cuMemAlloc, poison.nbytes))
        _call(cu.cuMemcpyHtoD, self._poison, poison.ctypes.data, poison.nbytes)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a host maps once and for all."""
        return self._outputs.descriptor, *(each.descriptor for each in self._turns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their sizes in bytes, as they are mapped."""
        return self._outputs.size, *(each.size for each in self._turns)

    @property
    def turn(self) -> int:
        """Which of the two memories holds the inputs that are prepared."""
        return self._turn

    def prepare(self, content: Array, rng: np.random.Generator) -> None:  # noqa: ARG002 - nothing is left to chance
        """Before the clock runs: poison the outputs, and bring the inputs to where no host sees them."""
        self._turn = 1 - self._turn
        self.poison()
        _call(cu.cuMemcpyHtoD, self._staged, content.ctypes.data, content.nbytes)
        _call(cu.cuCtxSynchronize)

    def lend(self) -> tuple[int, ...]:
        """Copy the inputs to where the host sees them; no descriptors go with the word go."""
        _call(cu.cuMemcpyDtoD, self._inputs.pointer, self._staged, self._inputs.nbytes)
        _call(cu.cuCtxSynchronize)
        return ()

    def probe(self) -> None:
        """Copy the outputs to where no host reaches them."""
        _call(cu.cuMemcpyDtoD, self._taken, self._outputs.pointer, self._outputs.nbytes)
        _call(cu.cuCtxSynchronize)

    def collect(self) -> Left:
        """What was there when the clock stopped, all of it: so it doesn't matter what becomes of it later."""
        taken = _downloaded(self._taken, self._outputs.nbytes)
        return Left(taken, _downloaded(self._inputs.pointer, self._inputs.nbytes), settled=True)

    def poison(self) -> None:
        """Overwrite every output, so that what isn't written again is seen."""
        _call(cu.cuMemcpyDtoD, self._outputs.pointer, self._poison, self._outputs.nbytes)
        _call(cu.cuCtxSynchronize)

    def outputs(self) -> Array:
        """The outputs as they are now."""
        return _downloaded(self._outputs.pointer, self._outputs.nbytes)

    def close(self) -> None:
        """Give it back."""
        for shared in (self._outputs, *self._turns):
            shared.close()
        for pointer in (self._staged, self._poison, self._taken):
            _call(cu.cuMemFree, pointer)

    @property
    def _inputs(self) -> SharedBuffer:
        return self._turns[self._turn]


def shared_buffer(nbytes: int) -> SharedBuffer:
    """Fresh memory of the current context's GPU that another process can map."""
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location()
    properties.requestedHandleTypes = _DESCRIPTOR
    minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granularity = int(_call(cu.cuMemGetAllocationGranularity, properties, minimum))
    size = -(-nbytes // granularity) * granularity
    handle = _call(cu.cuMemCreate, size, properties, 0)
    descriptor = int(_call(cu.cuMemExportToShareableHandle, handle, _DESCRIPTOR, 0))
    return SharedBuffer(descriptor, _mapped(handle, size), nbytes, size, handle)


def imported(descriptor: int, size: int) -> int:
    """Where another process's memory is mapped in this one; closes the descriptor."""
    handle = _call(cu.cuMemImportFromShareableHandle, descriptor, _DESCRIPTOR)
    os.close(descriptor)
    return _mapped(handle, size)


def unmap(pointer: int, size: int, handle: Any) -> None:
    """Undo a mapping."""
    _call(cu.cuMemUnmap, pointer, size)
    _call(cu.cuMemAddressFree, pointer, size)
    _call(cu.cuMemRelease, handle)


def _mapped(handle: Any, size: int) -> int:
    pointer = int(_call(cu.cuMemAddressReserve, size, 0, 0, 0))
    _call(cu.cuMemMap, pointer, size, 0, handle, 0)
    access = cu.CUmemAccessDesc()
    access.location = _location()
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    _call(cu.cuMemSetAccess, pointer, size, [access], 1)
    return pointer


def _location() -> Any:
    location = cu.CUmemLocation()
    location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = int(_call(cu.cuCtxGetDevice))
    return location


def _downloaded(pointer: int, nbytes: int) -> Array:
    content = np.empty(nbytes, np.uint8)
    _call(cu.cuMemcpyDtoH, content.ctypes.data, pointer, nbytes)
    return content


def _call(function: Any, *arguments: Any) -> Any:
    """Call a driver function. Raises DeviceError: what fails here is nothing that a module did to its own context."""
    try:
        return call(function, *arguments)
    except CudaError as error:
        raise DeviceError(f"The GPU's memory can't be shared with modules: {error}") from error
