"""Occupancy against values that NVIDIA's calculator gives, and the files that describe GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.architecture import (
    UnknownArchitectureError,
    known_architectures,
    load_architecture,
    occupancy,
)

H100 = load_architecture("H100")


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        (256, 32, 0, 8, "threads"),
        (1024, 32, 0, 2, "threads"),
        (1024, 64, 0, 1, "registers"),
        (1024, 65, 0, 0, "registers"),
        (256, 128, 16384, 2, "registers"),
        (256, 33, 0, 6, "registers"),
        (256, 40, 0, 6, "registers"),
        (256, 255, 0, 1, "registers"),
        (32, 16, 0, 32, "blocks"),
        (64, 32, 0, 32, "threads"),
        (128, 32, 48 * 1024, 4, "shared memory"),
        (128, 32, 232448, 1, "shared memory"),
        (128, 32, 232449, 0, "shared memory"),
        (128, 32, 113664, 2, "shared memory"),
        (33, 32, 0, 32, "threads"),
    ],
)
def test_blocks_per_sm(threads: int, registers: int, shared_bytes: int, blocks: int, limited_by: str) -> None:
    found = occupancy(H100, threads, registers, shared_bytes)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32)


@given(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 232448))
def test_what_is_resident_never_exceeds_an_sm(threads: int, registers: int, shared_bytes: int) -> None:
    found = occupancy(H100, threads, registers, shared_bytes)
    assert found.blocks * threads <= H100.limits.max_threads
    assert found.blocks * threads * registers <= H100.limits.registers
    assert found.blocks * shared_bytes <= H100.limits.shared_bytes
    assert 0 <= found.fraction <= 1


@pytest.mark.parametrize("name", known_architectures())
def test_every_description_reads_and_is_in_plausible_units(name: str) -> None:
    gpu = load_architecture(name)
    assert gpu.architecture.startswith("sm_")
    assert 1e9 < gpu.chip.clock_hz < 4e9
    assert gpu.memory.dram_bytes_per_second < gpu.memory.l2_bytes_per_second
    assert gpu.latency.shared < gpu.latency.l1 < gpu.latency.l2 < gpu.latency.dram
    assert load_architecture(name.lower()) is not None


def test_an_unknown_gpu_is_told_which_are_known() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"GPU 'GTX480' \(known: A100, H100\)"):
        load_architecture("GTX480")
    with pytest.raises(UnknownArchitectureError):
        load_architecture("../h100")
