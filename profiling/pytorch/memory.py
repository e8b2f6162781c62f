"""A worker's inputs and outputs in shared memory, as the module evaluator sees them.

A candidate that watched its memory could start before the clock does. So the inputs of a call are in a window of
their own, whose descriptor the worker gets with the request to run and not before.

On a GPU the evaluator allocates the memory and a worker maps it through file descriptors (CUDA's virtual memory
management, section 4.16 of the programming guide); inputs are staged in memory without a descriptor.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.task import Array
from mctskernel.profiling.gpu.cuda_driver import CudaError, call
from mctskernel.profiling.pytorch.protocol import TensorSpec, arrays, places
from mctskernel.profiling.verify import poison

PROBES = 512
"""How many elements of each output are read at the moment when the clock stops."""

_ONE_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Window:
    """A descriptor of shared memory, and its bytes."""

    descriptor: int
    bytes: Array

    def close(self) -> None:
        """Close the descriptor; views keep the memory alive."""
        os.close(self.descriptor)


def new_window(nbytes: int) -> Window:
    """Fresh shared memory, all zeros."""
    descriptor = os.memfd_create("mctskernel-module", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    # A worker could shrink it, and reading what is gone would end this process.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ONE_SIZE)
    return opened(descriptor)


def opened(descriptor: int) -> Window:
    """Shared memory that another process made."""
    size = os.fstat(descriptor).st_size
    return Window(descriptor, np.frombuffer(mmap.mmap(descriptor, size), np.uint8))


def window_of(content: Array) -> Window:
    """Fresh shared memory with a copy of some bytes."""
    window = new_window(content.nbytes)
    window.bytes[:] = content
    return window


@dataclass(frozen=True)
class Snapshot:
    """The bytes of outputs and inputs after a call; `settled` says that no output changed after the clock stopped."""

    outputs: Array
    inputs: Array
    settled: bool


class Memory(Protocol):
    """Where the inputs of a worker's calls come from and its outputs go."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the worker maps once: its outputs, and on a GPU two memories for inputs."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their sizes in bytes, as they are mapped."""
        ...

    @property
    def buffer(self) -> int:
        """Which of the mapped memories holds the inputs of the next call."""
        ...

    def prepare(self, content: Array, rng: np.random.Generator) -> None:
        """Before the clock runs: poison the outputs, and stage the inputs where the worker doesn't see them."""
        ...

    def publish(self) -> tuple[int, ...]:
        """While the clock runs: give the worker the inputs. Returns descriptors for the request to run."""
        ...

    def probe(self) -> None:
        """When the worker says that it is done, before the clock stops: secure the outputs."""
        ...

    def collect(self) -> Snapshot:
        """After the clock has stopped."""
        ...

    def poison(self) -> None:
        """Overwrite every output, so that one that isn't written again is noticed."""
        ...

    def outputs(self) -> Array:
        """The bytes of the outputs as they are now."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class HostMemory:
    """Memory of this machine. A few elements at random places are read at the moment when the clock stops."""

    buffer = 0

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        self._window = new_window(places(outputs)[1])
        self._poison = poisoned(outputs)
        self._arrays = [each.reshape(-1) for each in arrays(self._window.bytes, outputs)]
        self._inputs: Window | None = None
        self._chosen: list[Array] = []
        self._probed: list[Array] = []

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._window.descriptor,)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self._window.bytes.nbytes,)

    def prepare(self, content: Array, rng: np.random.Generator) -> None:
        self._drop_inputs()
        self._inputs = window_of(content)
        self.poison()
        self._chosen = [rng.integers(0, max(each.size, 1), min(each.size, PROBES)) for each in self._arrays]

    def publish(self) -> tuple[int, ...]:
        return (self._inputs.descriptor,) if self._inputs is not None else ()

    def probe(self) -> None:
        self._probed = [each[chosen] for each, chosen in zip(self._arrays, self._chosen, strict=True)]

    def collect(self) -> Snapshot:
        outputs, inputs = self.outputs(), self._drop_inputs()
        settled = all(
            np.array_equal(before.view(np.uint8), each[chosen].view(np.uint8))
            for before, each, chosen in zip(self._probed, self._arrays, self._chosen, strict=True)
        )
        return Snapshot(outputs, inputs, settled)

    def poison(self) -> None:
        self._window.bytes[:] = self._poison

    def outputs(self) -> Array:
        return self._window.bytes.copy()

    def close(self) -> None:
        self._drop_inputs()
        self._window.close()

    def _drop_inputs(self) -> Array:
        """Close the window of a call's inputs, which may have ended badly; returns their bytes."""
        inputs, self._inputs = self._inputs, None
        if inputs is None:
            return np.empty(0, np.uint8)
        inputs.close()
        return inputs.bytes


def poisoned(tensors: Sequence[TensorSpec]) -> Array:
    """The bytes of a window whose tensors have never been written."""
    content = np.full(places(tensors)[1], 0xCB, np.uint8)
    for view, spec in zip(arrays(content, tensors), tensors, strict=True):
        if spec.numpy.kind in "biufV":
            view[...] = poison(spec.dtype, spec.shape)
    return content


_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@dataclass(frozen=True)
class SharedBuffer:
    """GPU memory behind a file descriptor, mapped at `pointer`; `size` is `nbytes` rounded up."""

    descriptor: int
    pointer: int
    nbytes: int
    size: int
    handle: Any

    def close(self) -> None:
        """Unmap it and close the descriptor; another process that maps it keeps the memory alive."""
        _call(cu.cuMemUnmap, self.pointer, self.size)
        _call(cu.cuMemAddressFree, self.pointer, self.size)
        _call(cu.cuMemRelease, self.handle)
        os.close(self.descriptor)


class DeviceMemory:
    """GPU memory: the outputs of a worker's calls and the inputs of the last two. Needs a current context.

    Calls use two memories for inputs alternately: a module's output may be one of its inputs, where it works in
    place, and must still be there after the next call.
    """

    def __init__(self, outputs: Sequence[TensorSpec], inputs_bytes: int) -> None:
        poison = poisoned(outputs)
        self._outputs = shared_buffer(poison.nbytes)
        self._inputs = (shared_buffer(inputs_bytes), shared_buffer(inputs_bytes))
        self.buffer = 0
        self._staged = int(_call(cu.cuMemAlloc, inputs_bytes))
        self._poison = int(_call(cu.cuMemAlloc, poison.nbytes))
        self._copied = int(_call(cu.cuMemAlloc, poison.nbytes))
        _call(cu.cuMemcpyHtoD, self._poison, poison.ctypes.data, poison.nbytes)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self._outputs.descriptor, *(each.descriptor for each in self._inputs)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._outputs.size, *(each.size for each in self._inputs)

    def prepare(self, content: Array, rng: np.random.Generator) -> None:  # noqa: ARG002 - all of it is copied
        self.buffer = 1 - self.buffer
        self.poison()
        _call(cu.cuMemcpyHtoD, self._staged, content.ctypes.data, content.nbytes)
        _call(cu.cuCtxSynchronize)

    def publish(self) -> tuple[int, ...]:
        inputs = self._inputs[self.buffer]
        _call(cu.cuMemcpyDtoD, inputs.pointer, self._staged, inputs.nbytes)
        _call(cu.cuCtxSynchronize)
        return ()

    def probe(self) -> None:
        """Copy the outputs to where no worker reaches them."""
        _call(cu.cuMemcpyDtoD, self._copied, self._outputs.pointer, self._outputs.nbytes)
        _call(cu.cuCtxSynchronize)

    def collect(self) -> Snapshot:
        inputs = self._inputs[self.buffer]
        outputs = _downloaded(self._copied, self._outputs.nbytes)
        return Snapshot(outputs, _downloaded(inputs.pointer, inputs.nbytes), settled=True)

    def poison(self) -> None:
        _call(cu.cuMemcpyDtoD, self._outputs.pointer, self._poison, self._outputs.nbytes)
        _call(cu.cuCtxSynchronize)

    def outputs(self) -> Array:
        return _downloaded(self._outputs.pointer, self._outputs.nbytes)

    def close(self) -> None:
        for shared in (self._outputs, *self._inputs):
            shared.close()
        for pointer in (self._staged, self._poison, self._copied):
            _call(cu.cuMemFree, pointer)


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


def mapped_on_device(descriptor: int, size: int) -> Any:
    """The bytes of another process's memory as a PyTorch tensor on the GPU; closes the descriptor."""
    import torch  # noqa: PLC0415 - the evaluator's process works without it

    torch.zeros(1, device="cuda")  # makes PyTorch's context the current one
    handle = _call(cu.cuMemImportFromShareableHandle, descriptor, _DESCRIPTOR)
    os.close(descriptor)
    return torch.as_tensor(_CudaBytes(_mapped(handle, size), size), device="cuda")


class _CudaBytes:
    """Tells PyTorch where bytes are (the CUDA Array Interface, version 3)."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


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
    """Call a driver function. Raises DeviceError: the module has a context of its own, so this is not its failure."""
    try:
        return call(function, *arguments)
    except CudaError as error:
        raise DeviceError(f"The GPU's memory can't be shared with modules: {error}") from error
