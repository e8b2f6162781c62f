"""The order in which a GPU is asked, on a driver that writes down what it is told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from mctskernel.profiling.architecture import architecture_of
from mctskernel.profiling.calibration import machine as module
from mctskernel.profiling.calibration.calibration import calibrate_gpu, constants
from mctskernel.profiling.calibration.catalogue import clock, microbenchmarks
from mctskernel.profiling.calibration.machine import GpuMachine, read_board, taken_elsewhere
from mctskernel.profiling.calibration.microbenchmark import Microbenchmark, Ring
from mctskernel.profiling.gpu.cuda_driver import CudaError, Gpu, open_gpu

GPU = Gpu(
    name="NVIDIA H100 80GB HBM3",
    uuid="6e004226",
    driver="13.0",
    architecture="sm_90",
    l2_bytes=50 << 20,
    max_shared_bytes=232448,
    dram_bytes_per_second=3.35e12,
)


@dataclass
class Driver:
    """What happened, in order, and the bytes that are allocated."""

    told: list[Any] = field(default_factory=list)
    allocated: dict[int, int] = field(default_factory=dict)
    loaded: int = 0
    room: int = 80 << 30
    written: dict[int, np.ndarray] = field(default_factory=dict)


def buffers_of(driver: Driver) -> type:
    class Buffer:
        def __init__(self, nbytes: int) -> None:
            if nbytes + sum(driver.allocated.values()) > driver.room:
                raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
            self.address = 1 << 40 | len(driver.told) << 20
            driver.told.append(("allocate", nbytes))
            driver.allocated[self.address] = nbytes

        def fill(self, word: int) -> None:
            driver.told.append(("fill", word))

        def write(self, array: np.ndarray) -> None:
            driver.written[self.address] = array

        def free(self) -> None:
            del driver.allocated[self.address]

    return Buffer


def modules_of(driver: Driver) -> type:
    class Module:
        def __init__(self, cubin: bytes) -> None:
            self.cubin = cubin
            driver.loaded += 1

        def unload(self) -> None:
            driver.loaded -= 1

    return Module


def launches_of(driver: Driver) -> type:
    class Launch:
        def __init__(self, module: Any, entry: str, **extents: Any) -> None:
            self.told = ("launch", module.cubin, entry, extents)

        def __call__(self) -> None:
            driver.told.append(self.told)

    return Launch


def watches_of(driver: Driver) -> type:
    class Watch:
        seconds = 1e-3

        def start(self) -> None:
            driver.told.append(("start",))

        def stop(self) -> None:
            driver.told.append(("stop",))

    return Watch


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    for name, fake in {
        "DeviceBuffer": buffers_of(driver),
        "LoadedModule": modules_of(driver),
        "PreparedLaunch": launches_of(driver),
        "Stopwatch": watches_of(driver),
        "synchronize": lambda: driver.told.append(("wait",)),
        "call": lambda function, *arguments: 132,
        "current_device": lambda: 0,
        "_compiled": lambda source, code: f"{code}{source}".encode(),
    }.items():
        monkeypatch.setattr(module, name, fake)
    return driver


def named(machine: GpuMachine, constant: str) -> Microbenchmark:
    return next(
        each for each in (clock(machine.board), *microbenchmarks(machine.board)) if each.constant == constant
    )


def told_by(driver: Driver, machine: GpuMachine, benchmark: Microbenchmark, length: int) -> list[Any]:
    machine.seconds(benchmark, 1)
    driver.told.clear()
    assert machine.seconds(benchmark, length) == 1e-3
    return driver.told


def test_the_gpu_is_kept_busy_until_everything_is_queued(driver: Driver) -> None:
    machine = GpuMachine(GPU)
    told = told_by(driver, machine, named(machine, "overheads.launch_to_launch"), 300)
    assert [each[0] for each in told] == ["launch", "start", *["launch"] * 300, "stop", "wait"]
    _, delay, _, extents = told[0]
    assert b"cycles" in delay
    # At 2 GHz longer than a launch from Python takes, three hundred times.
    assert np.frombuffer(extents["arguments"][0], np.int32)[0] > 300 * 3e-6 * 2e9
    assert told[2][3]["arguments"] == []


@pytest.mark.parametrize(
    ("constant", "length", "extents", "arguments"),
    [
        ("throughput.fma", 7, (264, 1024), 2),
        ("memory.dram_bytes_per_second", 4096, (4096, 256), 2),
        ("overheads.block_launch", 100_000, (100_000, 128), 0),
        ("latency.dram", 3, (132, 512), 2),
    ],
)
def test_a_length_goes_where_it_belongs(
    driver: Driver, constant: str, length: int, extents: tuple[int, int], arguments: int
) -> None:
    machine = GpuMachine(GPU)
    told = told_by(driver, machine, named(machine, constant), length)
    assert [each[0] for each in told] == ["launch", "start", "launch", "stop", "wait"]
    launch = told[2][3]
    assert (launch["grid"], launch["block"]) == ((extents[0], 1, 1), (extents[1], 1, 1))
    assert len(launch["arguments"]) == arguments
    if constant == "throughput.fma":
        assert np.frombuffer(launch["arguments"][-1], np.int32)[0] == length


def test_wgmma_is_compiled_for_hopper_alone(driver: Driver) -> None:
    machine = GpuMachine(GPU)
    told = told_by(driver, machine, named(machine, "throughput.tensor_fma"), 1)
    assert told[2][1].startswith(b"sm_90a")
    assert b"wgmma" in told[2][1]


def test_a_ring_lies_where_its_buffer_does_and_leaves_l2(driver: Driver) -> None:
    machine = GpuMachine(GPU)
    benchmark = named(machine, "latency.l2")
    machine.seconds(benchmark, 1)
    ((address, content),) = driver.written.items()
    (wanted,) = benchmark.buffers
    assert isinstance(wanted, Ring)
    assert address + wanted.stride <= int(content[0]) < address + wanted.nbytes
    assert ("allocate", 2 * GPU.l2_bytes) in driver.told
    assert driver.allocated == {address: wanted.nbytes}


def test_everything_is_given_back(driver: Driver) -> None:
    machine = GpuMachine(GPU)
    kept = driver.loaded
    for benchmark in microbenchmarks(machine.board):
        machine.seconds(benchmark, 1)
    machine.release()
    machine.release()
    assert not driver.allocated
    assert driver.loaded == kept == 1


def test_a_gpu_without_room_refuses_and_leaks_nothing(driver: Driver) -> None:
    driver.room = 100 << 20
    machine = GpuMachine(GPU)
    found = calibrate_gpu(machine, like=architecture_of("sm_90"))
    refused = {each.constant for each in found.refused if "out of memory" in each.reason}
    assert {"memory.dram_bytes_per_second", "latency.dram", "DRAM latency, idle"} <= refused
    assert not driver.allocated
    assert driver.loaded == 1


def test_a_board_says_what_the_driver_says(driver: Driver) -> None:
    board = read_board(replace(GPU, name="a GPU"))
    assert (board.name, board.sms, board.l2_bytes) == ("a GPU", 132, 50 << 20)
    described = architecture_of("sm_90")
    assert described is not None
    assert board.constants.keys() <= dict(constants(described)).keys()


@pytest.mark.parametrize(("free", "taken"), [(80, 0), (79, 0), (60, 18)])
def test_memory_that_is_taken_elsewhere_is_seen(
    monkeypatch: pytest.MonkeyPatch, free: int, taken: int
) -> None:
    monkeypatch.setattr(module, "call", lambda function: (free << 30, 80 << 30))
    assert taken_elsewhere() == taken << 30


@pytest.mark.gpu
def test_a_real_gpu_is_measured_in_two_minutes_and_looks_like_its_description() -> None:
    gpu = open_gpu()
    described = architecture_of(gpu.architecture, gpu.name)
    assert described is not None
    began = time.perf_counter()
    found = calibrate_gpu(GpuMachine(gpu), described)
    assert time.perf_counter() - began < 120
    assert not found.refused
    measured = dict(constants(found.architecture))
    for path in ("chip.clock_hz", "throughput.fma", "throughput.alu", "throughput.special", "latency.shared"):
        assert measured[path] == pytest.approx(dict(constants(described))[path], rel=0.1), path
