"""Run microbenchmarks on the GPU in this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime

import numpy as np
from cuda.bindings import driver as cu

from mctskernel.core.device import DeviceError
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array
from mctskernel.profiling.architecture import known_architectures
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.calibration.benchmarks import clock, microbenchmarks
from mctskernel.profiling.calibration.microbenchmark import KERNEL, Board, Grows, Microbenchmark, Ring, Zeros
from mctskernel.profiling.gpu.cuda_driver import (
    DeviceBuffer,
    Gpu,
    LoadedModule,
    PreparedLaunch,
    Stopwatch,
    call,
    current_device,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.versions import package_versions

# Keeps the GPU busy while the host queues what is timed, so that no event waits for the host.
DELAY_SOURCE = """
extern "C" __global__ void probe(int cycles) {
    long long end = clock64() + cycles;
    while (clock64() < end) {}
}
"""
DELAY_CYCLES = 100_000
DELAY_CYCLES_PER_LAUNCH = 20_000
"""Ten microseconds at 2 GHz; a launch from Python takes three."""

WARM_UP_LAUNCHES = 2000
"""A delay of 20 milliseconds."""

CONTEXT_BYTES = 2 << 30
"""More than a context takes on any GPU."""


class GpuMachine:
    """The open GPU, with every microbenchmark compiled for it. Raises CudaError where the driver refuses."""

    def __init__(self, gpu: Gpu) -> None:
        self.board = read_board(gpu)
        # All at once: between measurements the GPU would slow down while it waits for the compiler.
        self._cubins = {
            (each.source, each.code): _compiled(each.source, each.code or gpu.architecture)
            for each in (clock(self.board), *microbenchmarks(self.board))
        }
        self._delay = LoadedModule(_compiled(DELAY_SOURCE, gpu.architecture))
        self._stopwatch = Stopwatch()
        self._benchmark: Microbenchmark | None = None
        self._held = ExitStack()
        self._addresses: list[int] = []

    def seconds(self, benchmark: Microbenchmark, length: int) -> float:
        """The GPU's time for one run of this length."""
        if benchmark is not self._benchmark:
            self._prepare(benchmark)
        launches = length if benchmark.grows is Grows.LAUNCHES else 1
        launch = self._launch(benchmark, length)
        delay = self._delay_launch(launches)
        delay()
        self._stopwatch.start()
        for _ in range(launches):
            launch()
        self._stopwatch.stop()
        synchronize()
        return self._stopwatch.seconds

    def release(self) -> None:
        """Give back the last microbenchmark's buffers and code."""
        self._held.close()
        self._addresses = []
        self._benchmark = None

    def _prepare(self, benchmark: Microbenchmark) -> None:
        self.release()
        self._module = LoadedModule(self._cubins[benchmark.source, benchmark.code])
        self._held.callback(self._module.unload)
        for wanted in benchmark.buffers:
            buffer = DeviceBuffer(wanted.nbytes)
            self._held.callback(buffer.free)
            self._addresses.append(buffer.address)
            match wanted:
                case Zeros():
                    buffer.fill(0)
                case Ring():
                    buffer.write(ring(wanted, buffer.address))
                    self._empty_l2()
        # Meanwhile the GPU may have slowed down.
        self._delay_launch(WARM_UP_LAUNCHES)()
        synchronize()
        self._benchmark = benchmark

    def _launch(self, benchmark: Microbenchmark, length: int) -> PreparedLaunch:
        arguments = [np.uint64(address).tobytes() for address in self._addresses]
        if benchmark.grows is Grows.ROUNDS:
            arguments.append(np.int32(length).tobytes())
        return PreparedLaunch(
            self._module,
            KERNEL,
            grid=(length if benchmark.grows is Grows.BLOCKS else benchmark.blocks, 1, 1),
            block=(benchmark.threads, 1, 1),
            shared_bytes=benchmark.shared_bytes,
            arguments=arguments,
        )

    def _delay_launch(self, launches: int) -> PreparedLaunch:
        cycles = DELAY_CYCLES + launches * DELAY_CYCLES_PER_LAUNCH
        return PreparedLaunch(
            self._delay,
            KERNEL,
            grid=(1, 1, 1),
            block=(1, 1, 1),
            shared_bytes=0,
            arguments=[np.int32(cycles).tobytes()],
        )

    def _empty_l2(self) -> None:
        """What the host wrote may still be in L2: put something else there."""
        other = DeviceBuffer(2 * self.board.l2_bytes)
        other.fill(0)
        synchronize()
        other.free()


def open_machine() -> tuple[GpuMachine, Mapping[str, str], tuple[str, ...]]:
    """The GPU in this machine, its fingerprint, and warnings. Raises DeviceError when there is none."""
    try:
        gpu = open_gpu()
    except DeviceError as error:
        known = ", ".join(known_architectures())
        raise DeviceError(
            f"{error} Calibrating needs the GPU itself: run it on the machine that has it, or take a GPU that is "
            f"described already ({known})."
        ) from error
    taken = taken_elsewhere()
    note = (
        f"Another process has {taken / 2**30:.0f} GiB of the GPU's memory: if it was running, the measurements are "
        "off. Calibrate again when it has ended."
    )
    fingerprint = {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "driver": gpu.driver,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **package_versions("nvidia-cuda-nvrtc", "cuda-bindings"),
    }
    return GpuMachine(gpu), fingerprint, (note,) if taken else ()


def read_board(gpu: Gpu) -> Board:
    """What the driver says about the open GPU."""
    named = cu.CUdevice_attribute
    attributes = {
        "chip.sms": named.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        "limits.max_threads": named.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        "limits.max_blocks": named.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
        "limits.registers": named.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
        "limits.shared_bytes": named.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        "limits.max_shared_bytes_per_block": named.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        "limits.reserved_shared_bytes": named.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
        "memory.l2_bytes": named.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    }
    constants = {
        path: int(call(cu.cuDeviceGetAttribute, which, current_device()))
        for path, which in attributes.items()
    }
    return Board(
        gpu.name, gpu.architecture, constants["chip.sms"], gpu.l2_bytes, gpu.max_shared_bytes, constants
    )


def taken_elsewhere() -> int:
    """Bytes of the open GPU's memory that are taken before we take any, but for the context's own."""
    free, total = call(cu.cuMemGetInfo)
    return max(0, int(total) - int(free) - CONTEXT_BYTES)


def _compiled(source: str, code: str) -> bytes:
    made = build(Kernel(source), (KERNEL,), code)
    if isinstance(made, BuildFailure):
        raise RuntimeError(f"A kernel of our own can't be built for {code}: {made.message}")
    return made.cubin


def ring(wanted: Ring, address: int) -> Array:
    """A ring's words when its buffer begins at `address`: one random cycle through all of its places."""
    words = wanted.stride // 8
    places = wanted.nbytes // wanted.stride - 1
    order = np.random.default_rng(0).permutation(places)
    addresses = np.uint64(address) + np.uint64(wanted.stride) * (order.astype(np.uint64) + np.uint64(1))
    content = np.zeros(wanted.nbytes // 8, np.uint64)
    content[(order + 1) * words] = np.roll(addresses, -1)
    content[0] = addresses[0]
    return content
