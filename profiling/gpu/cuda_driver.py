"""A thin layer over the CUDA driver: contexts, buffers, modules, launches and events, with errors as exceptions.

It uses `cuda.bindings.driver` alone, whose functions are the C API's, one for one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver as cu
from cuda.bindings import nvrtc
from cuda.pathfinder import DynamicLibNotFoundError

from mctskernel.core.device import DeviceError
from mctskernel.core.dtypes import DType
from mctskernel.core.launch_plan import PORTABLE_CLUSTER
from mctskernel.core.task import Array

_STICKY = frozenset(
    {
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
    }
)
"""Errors after which the context answers nothing else, and only a new process helps."""


class CudaError(RuntimeError):
    """The driver refused a call. `sticky` says that the context is lost with it."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(f"{description} ({name})")
        self.name = name
        self.sticky = name in _STICKY


def call(function: Any, *arguments: Any) -> Any:
    """Call a driver function; its result without the status. Raises CudaError."""
    status, *results = function(*arguments)
    if status != cu.CUresult.CUDA_SUCCESS:
        name = getattr(status, "name", str(status))
        raise CudaError(name, _description(status))
    return results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True)
class Gpu:
    """An open GPU. Sizes in bytes, rates in bytes per second."""

    name: str
    uuid: str
    driver: str
    architecture: str
    l2_bytes: int
    max_shared_bytes: int
    dram_bytes_per_second: float


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that the driver shows, or a part of one where it is split (MIG); memory in bytes."""

    index: int
    name: str
    uuid: str
    architecture: str
    memory_bytes: int

    @property
    def kind(self) -> tuple[str, str, int]:
        """What must be equal for times of two GPUs to be compared."""
        return self.name, self.architecture, self.memory_bytes


def visible_gpus() -> tuple[VisibleGpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES shows, without opening any. Raises DeviceError."""
    with _as_device_errors():
        call(cu.cuInit, 0)
        return tuple(
            _visible(index, call(cu.cuDeviceGet, index)) for index in range(call(cu.cuDeviceGetCount))
        )


def open_gpu(uuid: str = "") -> Gpu:
    """Make a GPU's primary context current; the first visible one's without a UUID. Raises DeviceError."""
    with _as_device_errors():
        call(cu.cuInit, 0)
        _refuse_old_driver(int(call(cu.cuDriverGetVersion)))
        device = _device(uuid)
        call(cu.cuCtxSetCurrent, call(cu.cuDevicePrimaryCtxRetain, device))
    attributes = cu.CUdevice_attribute

    def attribute(which: Any) -> int:
        return int(call(cu.cuDeviceGetAttribute, which, device))

    version = int(call(cu.cuDriverGetVersion))
    # Double data rate: two transfers a cycle of the memory clock, which is given in kHz.
    clock_hz = attribute(attributes.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * 1000
    bus_bytes = attribute(attributes.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) // 8
    return Gpu(
        name=_text(call(cu.cuDeviceGetName, 256, device)),
        uuid=_uuid(device),
        driver=_version(version),
        architecture=_architecture(device),
        l2_bytes=attribute(attributes.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        max_shared_bytes=attribute(attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        dram_bytes_per_second=2.0 * clock_hz * bus_bytes,
    )


@contextlib.contextmanager
def _as_device_errors() -> Iterator[None]:
    try:
        yield
    except DynamicLibNotFoundError as error:
        raise DeviceError("There is no NVIDIA driver here (libcuda.so.1).") from error
    except CudaError as error:
        if error.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise DeviceError(f"The GPU is full ({error}): perhaps another process is using it.") from error
        if error.name == "CUDA_ERROR_OPERATING_SYSTEM":
            raise DeviceError(
                f"The NVIDIA driver can't start: {error}. The usual reason is a sandbox that keeps it from writing to "
                "/proc/self/task/*/comm, where it names its threads."
            ) from error
        raise DeviceError(f"The NVIDIA driver finds no GPU that it can use: {error}.") from error


def _device(uuid: str) -> Any:
    if not uuid:
        return call(cu.cuDeviceGet, 0)
    for index in range(call(cu.cuDeviceGetCount)):
        device = call(cu.cuDeviceGet, index)
        if _uuid(device) == uuid:
            return device
    raise DeviceError(f"The GPU {uuid} isn't here any more.")


def _visible(index: int, device: Any) -> VisibleGpu:
    name, nbytes = _text(call(cu.cuDeviceGetName, 256, device)), int(call(cu.cuDeviceTotalMem, device))
    return VisibleGpu(index, name, _uuid(device), _architecture(device), nbytes)


def _uuid(device: Any) -> str:
    return bytes(call(cu.cuDeviceGetUuid, device).bytes).hex()


def _architecture(device: Any) -> str:
    attributes = cu.CUdevice_attribute
    major, minor = (
        int(call(cu.cuDeviceGetAttribute, which, device))
        for which in (
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return f"sm_{major}{minor}"


def _refuse_old_driver(supported: int) -> None:
    """Raise DeviceError for a driver of an older major version of CUDA than the compiler: it refuses its code."""
    _, major, minor = nvrtc.nvrtcVersion()
    if supported // 1000 < major:
        raise DeviceError(
            f"The NVIDIA driver is too old: it supports CUDA {_version(supported)}, and the compiler here is CUDA "
            f"{major}.{minor}'s. Update the driver, or work with --device model."
        )


def describe_gpu() -> str:
    """The first visible GPU's name and the driver's version, without opening it. Raises DeviceError."""
    with _as_device_errors():
        call(cu.cuInit, 0)
        name = call(cu.cuDeviceGetName, 256, call(cu.cuDeviceGet, 0))
        version = int(call(cu.cuDriverGetVersion))
    return f"{_text(name)}, CUDA {_version(version)}"


def current_device() -> int:
    """The number of the current context's GPU."""
    return int(call(cu.cuCtxGetDevice))


def free_bytes() -> int:
    """The memory that is left on the current context's GPU."""
    return int(call(cu.cuMemGetInfo)[0])


def multiprocessors() -> int:
    """How many multiprocessors the current context's GPU has."""
    which = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return int(call(cu.cuDeviceGetAttribute, which, current_device()))


def threads_per_multiprocessor() -> int:
    """How many threads run at once on one of them."""
    which = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
    return int(call(cu.cuDeviceGetAttribute, which, current_device()))


class DeviceBuffer:
    """Bytes on the GPU, rounded up to whole 32-bit words."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._words = max(1, -(-nbytes // 4))
        self._pointer = call(cu.cuMemAlloc, 4 * self._words)
        self.address = int(self._pointer)

    def part(self, start: int, nbytes: int) -> DeviceBuffer:
        """Some of its bytes, which are freed with it."""
        found = copy(self)
        found.address, found.nbytes, found._words = self.address + start, nbytes, -(-nbytes // 4)
        return found

    def fill(self, word: int) -> None:
        """Fill with a 32-bit pattern, in stream order."""
        call(cu.cuMemsetD32Async, self.address, word, self._words, 0)

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy an array to the GPU, `offset` bytes into the buffer."""
        data = np.ascontiguousarray(array)
        call(cu.cuMemcpyHtoD, self.address + offset, data.ctypes.data, data.nbytes)

    def read(self, dtype: DType, count: int, offset: int = 0) -> Array:
        """`count` elements from `offset` bytes into the buffer, after everything launched before."""
        array: Array = np.empty(count, dtype)
        call(cu.cuMemcpyDtoH, array.ctypes.data, self.address + offset, array.nbytes)
        return array

    def free(self) -> None:
        """Free the memory; harmless when the context is lost."""
        with contextlib.suppress(CudaError):
            call(cu.cuMemFree, self._pointer)


def fill_words(address: int, word: int, count: int) -> None:
    """Fill `count` 32-bit words with a pattern, in stream order."""
    if count:
        call(cu.cuMemsetD32Async, address, word, count, 0)


def copy_on_device(target: int, source: int, nbytes: int) -> None:
    """Copy between two places on the GPU, in stream order."""
    call(cu.cuMemcpyDtoDAsync, target, source, nbytes, 0)


def read_rows(target: Array, address: int, rows: int, width: int, pitch: int) -> None:
    """Copy `rows` of `width` bytes, `pitch` apart on the GPU, into a packed array of bytes; waits for it."""
    if rows == 1 or width == pitch:
        call(cu.cuMemcpyDtoH, target.ctypes.data, address, rows * width)
        return
    copy = cu.CUDA_MEMCPY2D()
    copy.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice = address
    copy.srcPitch = pitch
    copy.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.dstHost = target.ctypes.data
    copy.dstPitch = width
    copy.WidthInBytes = width
    copy.Height = rows
    call(cu.cuMemcpy2DUnaligned, copy)


class LoadedModule:
    """Machine code on the GPU."""

    def __init__(self, cubin: bytes) -> None:
        image = np.frombuffer(cubin, np.uint8).copy()
        self._module = call(cu.cuModuleLoadData, image.ctypes.data)
        self._functions: dict[str, Any] = {}

    def variable(self, name: str) -> tuple[int, int]:
        """Where a `__device__` variable is, and its size in bytes."""
        address, nbytes = call(cu.cuModuleGetGlobal, self._module, name.encode())
        return int(address), int(nbytes)

    def function(self, entry: str) -> Any:
        """One of its kernels."""
        if entry not in self._functions:
            self._functions[entry] = call(cu.cuModuleGetFunction, self._module, entry.encode())
        return self._functions[entry]

    def max_threads(self, entry: str) -> int:
        """The largest block that the kernel can be launched with: its registers and launch bounds decide."""
        which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        return int(call(cu.cuFuncGetAttribute, which, self.function(entry)))

    def local_bytes(self, entry: str) -> int:
        """How much local memory each thread of the kernel has."""
        which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        return int(call(cu.cuFuncGetAttribute, which, self.function(entry)))

    def unload(self) -> None:
        """Unload it; harmless when the context is lost."""
        with contextlib.suppress(CudaError):
            call(cu.cuModuleUnload, self._module)


class PreparedLaunch:
    """One launch with its arguments packed, so that launching it is a single call."""

    def __init__(
        self,
        module: LoadedModule,
        entry: str,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[bytes],
        shared_bytes: int = 0,
        cluster: tuple[int, int, int] = (1, 1, 1),
        programmatic: bool = False,
    ) -> None:
        self._function = module.function(entry)
        self._extents = (*grid, *block, shared_bytes)
        attributes = _launch_attributes(cluster, programmatic=programmatic)
        self._config = _launch_config(self._extents, attributes) if attributes else None
        # The driver reads arguments through pointers when it launches: both must stay alive until then.
        self._arguments = [np.frombuffer(argument, np.uint8).copy() for argument in arguments]
        self._pointers = np.array([argument.ctypes.data for argument in self._arguments], np.uint64)
        if shared_bytes:
            which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(cu.cuFuncSetAttribute, self._function, which, shared_bytes)
        if math.prod(cluster) > PORTABLE_CLUSTER:
            which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            call(cu.cuFuncSetAttribute, self._function, which, 1)

    def __call__(self) -> None:
        """Launch, in stream order. Raises CudaError when the GPU refuses."""
        if self._config is not None:
            call(cu.cuLaunchKernelEx, self._config, self._function, self._pointers.ctypes.data, 0)
            return
        call(cu.cuLaunchKernel, self._function, *self._extents, 0, self._pointers.ctypes.data, 0)


def _launch_attributes(cluster: tuple[int, int, int], *, programmatic: bool) -> list[Any]:
    attributes = []
    if cluster != (1, 1, 1):
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster
        attributes.append(attribute)
    if programmatic:
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    return attributes


def _launch_config(extents: Sequence[int], attributes: list[Any]) -> Any:
    """What cuLaunchKernelEx takes, on the default stream."""
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = extents[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = extents[3:6]
    config.sharedMemBytes = extents[6]
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


class Stopwatch:
    """Measures GPU time between two points of the stream, without synchronising."""

    def __init__(self) -> None:
        self._start = call(cu.cuEventCreate, 0)
        self._stop = call(cu.cuEventCreate, 0)

    def start(self) -> None:
        """Mark the beginning, in stream order."""
        call(cu.cuEventRecord, self._start, 0)

    def stop(self) -> None:
        """Mark the end, in stream order."""
        call(cu.cuEventRecord, self._stop, 0)

    @property
    def seconds(self) -> float:
        """The time between the two marks, which the GPU must have passed."""
        return float(call(cu.cuEventElapsedTime, self._start, self._stop)) * 1e-3

    def free(self) -> None:
        """Destroy the events; harmless when the context is lost."""
        with contextlib.suppress(CudaError):
            call(cu.cuEventDestroy, self._start)
            call(cu.cuEventDestroy, self._stop)


def synchronize() -> None:
    """Wait until the device is idle. Raises CudaError for errors of earlier launches."""
    call(cu.cuCtxSynchronize)


def _text(name: bytes) -> str:
    return bytes(name).split(b"\0")[0].decode(errors="replace")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _description(status: Any) -> str:
    try:
        found, text = cu.cuGetErrorString(status)
    except RuntimeError:
        return "the driver failed"
    if found != cu.CUresult.CUDA_SUCCESS or not text:
        return "the driver failed"
    return str(text.decode(errors="replace") if isinstance(text, bytes) else text)
