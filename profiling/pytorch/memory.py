"""A worker's inputs and outputs in shared memory, as the module evaluator sees them.

A candidate that watched its memory could start before the clock does. So the inputs of a call are copied there when
the clock runs and not before. Calls use two memories for inputs alternately: a module's output may be one of its
inputs, where it works in place, and must still be there after the next call.

On a GPU the evaluator allocates the memory and a worker maps it through file descriptors (CUDA's virtual memory
management, section 4.16 of the programming guide); inputs are staged in memory without a descriptor.
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
from mctskernel.profiling.input_values import poison
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.pytorch.protocol import TensorSpec, arrays, places

PROBES = 512  # how many elements of each output are read at the moment when the clock stops


@dataclass(frozen=True)
class Snapshot:
    """The bytes of outputs and inputs after a call; `settled` says that no output changed after the clock stopped."""

    outputs: Array
    inputs: Array
    settled: bool


class HostMemory:
    """Memory of this machine. A few elements at random places are read at the moment when the clock stops.

    A worker maps the `descriptors` of a memory for outputs and two for inputs, of these `sizes` in bytes; `inputs`
    says which of the two holds the inputs of the next call.
    """

    def __init__(self, outputs: Sequence[TensorSpec], inputs_bytes: int) -> None:
        self._poison = poisoned(outputs)
        self.sizes = (self._poison.nbytes, inputs_bytes, inputs_bytes)
        self._windows = tuple(SharedWindow(nbytes=size) for size in self.sizes)
        self.descriptors = tuple(each.fd for each in self._windows)
        self._outputs, *self._inputs = (
            each.bytes_at(0, size) for each, size in zip(self._windows, self.sizes, strict=True)
        )
        self._arrays = [each.reshape(-1) for each in arrays(self._outputs, outputs)]
        self.inputs = 0
        self._staged = np.empty(0, np.uint8)
        self._chosen: list[Array] = []
        self._probed: list[Array] = []

    def prepare(self, content: Array, rng: np.random.Generator) -> None:
        """Before the clock runs: poison the outputs, and stage the inputs where the worker doesn't see them."""
        self.inputs = 1 - self.inputs
        self._staged = content
        self.poison()
        self._chosen = [rng.integers(0, max(each.size, 1), min(each.size, PROBES)) for each in self._arrays]

    def publish(self) -> None:
        """While the clock runs: give the worker the inputs."""
        self._inputs[self.inputs][:] = self._staged

    def probe(self) -> None:
        """When the worker says that it is done, before the clock stops: secure the outputs."""
        self._probed = [each[chosen] for each, chosen in zip(self._arrays, self._chosen, strict=True)]

    def collect(self) -> Snapshot:
        """After the clock has stopped."""
        outputs = self.outputs()
        settled = all(
            np.array_equal(before.view(np.uint8), each[chosen].view(np.uint8))
            for before, each, chosen in zip(self._probed, self._arrays, self._chosen, strict=True)
        )
        return Snapshot(outputs, self._inputs[self.inputs].copy(), settled)

    def poison(self) -> None:
        """Overwrite every output, so that one that isn't written again shows."""
        self._outputs[:] = self._poison

    def outputs(self) -> Array:
        return self._outputs.copy()

    def close(self) -> None:
        for window in self._windows:
            window.close()


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
        _call(cu.cuMemUnmap, self.pointer, self.size)
        _call(cu.cuMemAddressFree, self.pointer, self.size)
        _call(cu.cuMemRelease, self.handle)
        os.close(self.descriptor)


class DeviceMemory:
    """The same in GPU memory. Needs a current context."""

    def __init__(self, outputs: Sequence[TensorSpec], inputs_bytes: int) -> None:
        poison = poisoned(outputs)
        self._outputs = shared_buffer(poison.nbytes)
        self._inputs = (shared_buffer(inputs_bytes), shared_buffer(inputs_bytes))
        shared = (self._outputs, *self._inputs)
        self.descriptors = tuple(each.descriptor for each in shared)
        self.sizes = tuple(each.size for each in shared)
        self.inputs = 0
        self._staged = int(_call(cu.cuMemAlloc, inputs_bytes))
        self._poison = int(_call(cu.cuMemAlloc, poison.nbytes))
        self._copied = int(_call(cu.cuMemAlloc, poison.nbytes))
        _call(cu.cuMemcpyHtoD, self._poison, poison.ctypes.data, poison.nbytes)

    def prepare(self, content: Array, rng: np.random.Generator) -> None:  # noqa: ARG002 - all of it is copied
        self.inputs = 1 - self.inputs
        self.poison()
        _call(cu.cuMemcpyHtoD, self._staged, content.ctypes.data, content.nbytes)
        _call(cu.cuCtxSynchronize)

    def publish(self) -> None:
        inputs = self._inputs[self.inputs]
        _call(cu.cuMemcpyDtoD, inputs.pointer, self._staged, inputs.nbytes)
        _call(cu.cuCtxSynchronize)

    def probe(self) -> None:
        """Copy the outputs to where no worker reaches them."""
        _call(cu.cuMemcpyDtoD, self._copied, self._outputs.pointer, self._outputs.nbytes)
        _call(cu.cuCtxSynchronize)

    def collect(self) -> Snapshot:
        inputs = self._inputs[self.inputs]
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


Memory = HostMemory | DeviceMemory


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
