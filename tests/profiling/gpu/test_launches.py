"""What reaches the driver: launches with attributes, and tensor maps for the addresses of each binding."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
from cuda.bindings import driver as cu

from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.core.tensor_map import ResolvedTensorMap
from mctskernel.profiling.gpu import buffers, cuda_driver, tensor_maps
from mctskernel.profiling.gpu.protocol import Packed, Plan, PlannedLaunch, ScratchPlace

MAP = ResolvedTensorMap("m", "x", "float32", (100, 3, 8), (64, 2, 4), (1, 2, 1), 64, 0, "nan")


class Driver:
    """Stands for the CUDA driver: remembers what it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.maps: list[list[Any]] = []
        kinds = (
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_uint,
            *(ctypes.c_void_p,) * 5,
            *(ctypes.c_uint,) * 4,
        )
        self.encode = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self.encoding)
        for module in (cuda_driver, tensor_maps):
            monkeypatch.setattr(module, "call", self.call)
        monkeypatch.setattr(tensor_maps, "_function", lambda: self.encode)

    def call(self, function: Any, *arguments: Any) -> Any:
        self.calls.append((function, *arguments))
        if function is tensor_maps._encode_tiled:
            assert function(*arguments) == (cu.CUresult.CUDA_SUCCESS,)
        return len(self.calls) << 32 if function is cu.cuMemAlloc else None

    def encoding(self, *arguments: Any) -> int:
        target, kind, rank, address, *arrays = arguments[:8]
        sizes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)
        counts = (rank, rank - 1, rank, rank)
        read = [
            list((size * count).from_address(array))
            for size, count, array in zip(sizes, counts, arrays, strict=True)
        ]
        self.maps.append([kind, address, *read, *arguments[8:]])
        assert target % 128 == 0
        ctypes.memset(target, len(self.maps), 128)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


class Module:
    """Stands for machine code on the GPU."""

    def function(self, entry: str) -> str:
        return entry


def prepared(**options: Any) -> cuda_driver.PreparedLaunch:
    return cuda_driver.PreparedLaunch(
        Module(),  # type: ignore[arg-type]
        "k",
        grid=(32, 2, 1),
        block=(64, 1, 1),
        shared_bytes=512,
        arguments=[b"12345678"],
        **options,
    )


def test_a_launch_has_the_attributes_that_its_plan_names(driver: Driver) -> None:
    prepared()()
    assert driver.calls[-1][0] is cu.cuLaunchKernel
    prepared(cluster=(4, 2, 1), programmatic=True)()
    function, config, entry, *_ = driver.calls[-1]
    assert (function, entry) == (cu.cuLaunchKernelEx, "k")
    assert (config.gridDimX, config.gridDimY, config.blockDimX, config.sharedMemBytes) == (32, 2, 64, 512)
    cluster, programmatic = config.attrs
    size = cluster.value.clusterDim
    assert (config.numAttrs, size.x, size.y, size.z) == (2, 4, 2, 1)
    assert programmatic.value.programmaticStreamSerializationAllowed == 1
    assert programmatic.id == cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    asked = len(driver.calls)
    prepared(cluster=(16, 1, 1))
    allowed = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert (cu.cuFuncSetAttribute, "k", allowed, 1) in driver.calls[asked:]


def test_a_tensor_map_has_the_contiguous_axis_first(driver: Driver) -> None:
    assert tensor_maps.encoded(MAP, 1 << 20) == bytes([1]) * 128
    ((kind, address, extents, strides, box, steps, interleave, swizzle, _, fill),) = driver.maps
    assert (kind, address, fill) == (7, 1 << 20, 1)
    assert (extents, strides, box, steps) == ([8, 3, 100], [32, 96], [4, 2, 64], [1, 2, 1])
    assert (interleave, swizzle) == (0, 2)


def test_an_optional_tensor_map_that_can_not_be_is_zeros(driver: Driver) -> None:
    optional = replace(MAP, optional=True)
    assert tensor_maps.encoded(optional, 1 << 20) == bytes([1]) * 128
    for made, address in ((optional, (1 << 20) + 8), (replace(optional, extents=(100, 3, 9)), 1 << 20)):
        assert tensor_maps.encoded(made, address) == bytes(128)
    assert len(driver.maps) == 1


def test_each_binding_encodes_maps_of_its_own_buffers(driver: Driver) -> None:
    class Buffer:
        def __init__(self, address: int, nbytes: int = 9600) -> None:
            self.address, self.nbytes = address, nbytes

    class Kernel:
        modules = (Module(),)

    launch = PlannedLaunch(
        0, "k", ResolvedLaunch("k", (1, 1, 1), (1, 1, 1), 0, ()), ("m", "x", Packed(b"1234"))
    )
    plan, memory = Plan(0, 0, (launch,), tensor_maps=(MAP,)), buffers.ScratchMemory()
    for address in (1 << 20, 1 << 21):
        tensors = {"x": buffers.Tensor(Buffer(address), (), 0, output=False)}  # type: ignore[arg-type]
        with buffers.bound(plan, buffers.Arena(tensors), Kernel(), memory) as found:  # type: ignore[arg-type]
            arguments = [each.tobytes() for each in found.launches[0]._arguments]
        assert arguments == [bytes([len(driver.maps)]) * 128, address.to_bytes(8, "little"), b"1234"]
        assert driver.maps[-1][1] == address
    small = {"x": buffers.Tensor(Buffer(1 << 20, 9596), (), 0, output=False)}  # type: ignore[arg-type]
    with (
        pytest.raises(ValueError, match="reaches beyond 'x'"),
        buffers.bound(
            plan,
            buffers.Arena(small),
            Kernel(),  # type: ignore[arg-type]
            memory,
        ),
    ):
        pass


def test_scratch_memory_is_kept_unless_it_is_large_and_known_where_nobody_has_it(driver: Driver) -> None:
    memory = buffers.ScratchMemory()

    def bind(*sizes: int) -> list[int]:
        places = [ScratchPlace(str(index), nbytes, zero=False) for index, nbytes in enumerate(sizes)]
        with memory.buffers(places) as found:
            taken = {each.address - buffers.GUARD_BYTES: each.nbytes for each in found.values()}
            free = {segment.address: segment.nbytes for segment in memory.unused}
        kept = {segment.address: segment.nbytes for segment in memory.unused}
        for start, nbytes in taken.items():
            whole = buffers.guarded_bytes(nbytes)
            assert start not in free
            assert free.get(start + whole, 0) + whole == kept.get(start, whole)
        return list(taken)

    first, large = bind(4, 8 << 20), buffers.MOST_SCRATCH_BYTES
    assert bind(8 << 20, 4) == first
    assert bind(4, large)[0] == first[0]
    assert bind(4, 4)[1] not in first
    frees = [call for call in driver.calls if call[0] is cu.cuMemFree]
    assert len(frees) == 2, "what was too small, and what was large"
