"""What a GPU can do, read from one TOML file each, and how many blocks of a kernel fit on one of its SMs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

WARP_LANES = 32
WARPS_PER_ALLOCATION = 4
"""Warps are handed out to the four schedulers in turn, so registers are counted in fours."""


@dataclass(frozen=True)
class Chip:
    """Counts, and the clock in hertz."""

    sms: int
    clock_hz: float
    schedulers: int


@dataclass(frozen=True)
class Limits:
    """What one SM holds: threads, blocks, 32-bit registers, bytes of shared memory, and allocation units."""

    max_threads: int
    max_blocks: int
    registers: int
    max_registers_per_thread: int
    register_unit: int
    shared_bytes: int
    max_shared_bytes_per_block: int
    reserved_shared_bytes: int
    shared_unit: int
    l1_bytes: int


@dataclass(frozen=True)
class Throughput:
    """Lanes per cycle and SM, for each pipe; instructions and wavefronts per cycle and SM for the LSU."""

    fma: float
    alu: float
    special: float
    fp64: float
    shuffle: float
    tensor_fma: float
    uniform: float
    lsu_instructions: float
    wavefronts: float


@dataclass(frozen=True)
class Memory:
    """Sizes in bytes, rates in bytes (or lanes) per second for the whole chip."""

    dram_bytes_per_second: float
    l2_bytes: int
    l2_bytes_per_second: float
    l2_store_lines_per_second: float
    l2_atomics_per_second: float
    sector_bytes: int
    line_bytes: int


@dataclass(frozen=True)
class Latency:
    """Cycles from issue to use, unloaded."""

    l1: float
    shared: float
    l2: float
    dram: float
    barrier: float
    fixed_alu: float
    special: float
    tensor: float


@dataclass(frozen=True)
class Overheads:
    """Seconds."""

    launch: float
    launch_gap: float
    block_launch: float
    same_address_atomic: float


@dataclass(frozen=True)
class Architecture:
    """One GPU. `architecture` is what to compile for, as `sm_90`."""

    name: str
    architecture: str
    chip: Chip
    limits: Limits
    throughput: Throughput
    memory: Memory
    latency: Latency
    overheads: Overheads


class UnknownArchitectureError(ValueError):
    """A GPU that no file describes; the message names those that are."""


@cache
def load_architecture(name: str = "H100") -> Architecture:
    """Read a GPU's description by its short name (`H100`), in any case."""
    folder = files("mctskernel.profiling") / "architectures"
    path = folder / f"{name.lower()}.toml"
    if not name.isalnum() or not path.is_file():
        known = ", ".join(known_architectures())
        raise UnknownArchitectureError(f"There is no description of the GPU '{name}' (known: {known}).")
    document: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return msgspec.convert(document, Architecture)


def architecture_of(code: str) -> Architecture | None:
    """The described GPU that runs machine code for `sm_90`, say; None where none is described."""
    known = (load_architecture(name) for name in known_architectures())
    return next((each for each in known if each.architecture == code), None)


def known_architectures() -> tuple[str, ...]:
    """The short names that `load_architecture` takes."""
    folder = files("mctskernel.profiling") / "architectures"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml").upper() for name in names if name.endswith(".toml")))


@dataclass(frozen=True)
class Occupancy:
    """How many blocks an SM holds at once, and which resource ends there.

    `warps` is resident warps per SM, `fraction` is that over the most it could hold. No blocks at all means
    that a single block asks for more than an SM has.
    """

    blocks: int
    warps: int
    fraction: float
    limited_by: str


def occupancy(gpu: Architecture, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Blocks of `threads` threads, with `registers` each and `shared_bytes` a block, that fit on an SM.

    The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h`): registers are handed to warps
    in units, shared memory to blocks in units after the part that the system keeps.
    """
    limits = gpu.limits
    warps = -(-threads // WARP_LANES)
    per_warp = _round_up(max(registers, 1) * WARP_LANES, limits.register_unit)
    warps_by_registers = limits.registers // WARPS_PER_ALLOCATION // per_warp * WARPS_PER_ALLOCATION
    shared = _round_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit)
    fits_block = shared_bytes <= limits.max_shared_bytes_per_block
    bounds = {
        "threads": limits.max_threads // (warps * WARP_LANES),
        "blocks": limits.max_blocks,
        "registers": warps_by_registers // warps if registers <= limits.max_registers_per_thread else 0,
        "shared memory": limits.shared_bytes // shared if fits_block else 0,
    }
    limited_by = min(bounds, key=lambda resource: bounds[resource])
    blocks = bounds[limited_by]
    most = limits.max_threads // WARP_LANES
    return Occupancy(blocks, blocks * warps, blocks * warps / most, limited_by)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
