"""What a GPU can do, from one TOML file each; how many blocks of a kernel fit on an SM; the same in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec

from mctskernel.core.documents import DocumentError, parse_toml, read_as, read_text, unknown_name
from mctskernel.core.quantities import byte_text, time_text
from mctskernel.core.task import Shape, Task, shape_label

NOTHING: Mapping[str, float] = MappingProxyType({})

WARP_LANES = 32
WARPS_PER_ALLOCATION = 4
"""Warps are handed out to the four schedulers in turn, so registers are counted in fours."""


Count = Annotated[int, msgspec.Meta(gt=0, le=10**18)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class Chip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts, and the clock in hertz."""

    sms: Count
    clock_hz: Rate
    schedulers: Count


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one SM holds: threads, blocks, 32-bit registers, bytes of shared memory, and allocation units."""

    max_threads: Count
    max_blocks: Count
    registers: Count
    max_registers_per_thread: Count
    register_unit: Count
    shared_bytes: Count
    max_shared_bytes_per_block: Count
    reserved_shared_bytes: Annotated[int, msgspec.Meta(ge=0)]
    shared_unit: Count
    l1_bytes: Count


class Throughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lanes per cycle and SM for each pipe; wavefronts per cycle and SM.

    Tensor cores do multiply-adds of 16-bit floats, `tensor_fma` of them by their widest instruction (of warp groups
    on Hopper) and `tensor_sync_fma` by `mma.sync`.
    """

    fma: Rate
    alu: Rate
    special: Rate
    fp64: Rate
    shuffle: Rate
    tensor_fma: Rate
    tensor_sync_fma: Rate
    wavefronts: Rate


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes in bytes, and the chip's rates in bytes (or lanes) per second; L2's is for reading."""

    dram_bytes_per_second: Rate
    l2_bytes: Count
    l2_bytes_per_second: Rate
    l2_write_bytes_per_second: Rate
    l2_store_lines_per_second: Rate
    l2_atomics_per_second: Rate
    sector_bytes: Count


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cycles from issue to use, unloaded; `block_turnover` from a block's last instruction to its successor's first."""

    l1: Rate
    shared: Rate
    l2: Rate
    dram: Rate
    barrier: Rate
    special: Rate
    block_turnover: Rate


class Overheads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds: `launch` of a kernel that does nothing, `launch_to_launch` from one of those to the next behind it."""

    launch: Rate
    launch_to_launch: Rate
    block_launch: Rate
    same_address_atomic: Rate

    @property
    def launch_gap(self) -> float:
        """What a launch behind another takes beyond a lone one: less than nothing where they overlap."""
        return self.launch_to_launch - self.launch


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU. `architecture` is what to compile for, as `sm_90`."""

    name: str
    architecture: Annotated[str, msgspec.Meta(pattern=r"^sm_[1-9][0-9]{1,2}[af]?$")]
    chip: Chip
    limits: Limits
    throughput: Throughput
    memory: Memory
    latency: Latency
    overheads: Overheads


class ArchitectureError(ValueError):
    """A description of a GPU that can't be used; the message is a sentence for the user."""


FILE_SUFFIX = ".toml"


def load_architecture(name: str = "H100") -> Architecture:
    """Read a GPU's description by its short name (`H100`), in any case, or from a file: a path that ends in `.toml`.

    Raises ArchitectureError for a name that isn't known, and for a file that can't be used, with the file and the field
    in the message.
    """
    if not name.endswith(FILE_SUFFIX):
        return _shipped(name.lower())
    try:
        text = read_text(Path(name))
    except DocumentError as error:
        raise ArchitectureError(f"The file '{name}' describes no GPU: it {error}.") from error
    return parse_architecture(text, name)


def parse_architecture(text: str, source: str) -> Architecture:
    """A description from the text of a file; `source` is what messages call it. Raises ArchitectureError."""
    try:
        found = read_as(parse_toml(text), Architecture)
    except DocumentError as error:
        raise ArchitectureError(f"The file '{source}' describes no GPU: it {error}.") from error
    if not found.name.isprintable() or not found.name.strip():
        raise ArchitectureError(
            f"The file '{source}' describes no GPU: `name` is empty or holds characters that can't be printed."
        )
    return found


@cache
def _shipped(name: str) -> Architecture:
    path = files("mctskernel.profiling") / "architectures" / f"{name}{FILE_SUFFIX}"
    if not name.isalnum() or not path.is_file():
        raise ArchitectureError(unknown_name(name.upper(), known_architectures(), "description of the GPU"))
    return parse_architecture(path.read_text(encoding="utf-8"), f"{name}{FILE_SUFFIX}")


def architecture_of(code: str, name: str = "") -> Architecture | None:
    """The described GPU that comes closest to one that says to be called `name` and runs `code`, say `sm_90`.

    Several GPUs may run the same code, so the name decides: first the whole of it, then the short name within it
    (`H100` in `NVIDIA H100 PCIe`). Otherwise the first that runs the code; None where none does.
    """
    alike = [short for short in known_architectures() if load_architecture(short).architecture == code]
    ranked = sorted(alike, key=lambda short: _unlikeness(short, name))
    return load_architecture(ranked[0]) if ranked else None


def _unlikeness(short: str, name: str) -> int:
    if load_architecture(short).name == name:
        return 0
    # `RTX4090` is `GeForce RTX 4090`; `H200` isn't `GH200`.
    spelled = re.sub(r"(?<=[A-Z]{2})(?=[0-9])", " ?", short)
    return 1 if re.search(rf"(?<![A-Z0-9]){spelled}(?![0-9])", name.upper()) else 2


def known_architectures() -> tuple[str, ...]:
    """The short names that `load_architecture` takes."""
    folder = files("mctskernel.profiling") / "architectures"
    names = (entry.name for entry in folder.iterdir())
    return tuple(
        sorted(name.removesuffix(FILE_SUFFIX).upper() for name in names if name.endswith(FILE_SUFFIX))
    )


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


def briefing(architecture: Architecture, task: Task, flops: Mapping[str, float] = NOTHING) -> tuple[str, ...]:
    """Limits, rates and latencies of a described GPU, and the task's least time where memory or products set one."""
    return (*_sentences(architecture), *_floors(architecture, task, flops))


def briefing_of(gpu: str, code: str, task: Task, flops: Mapping[str, float] = NOTHING) -> tuple[str, ...]:
    """The same of a GPU by its name and what it runs, such as `sm_90`; little of one that nothing describes."""
    found = architecture_of(code, gpu)
    if found is None:
        return (f"It is one {gpu}; code is compiled for {code}.",)
    return briefing(found, task, flops)


def _sentences(gpu: Architecture) -> tuple[str, ...]:
    chip, limits, rates, memory, latency = gpu.chip, gpu.limits, gpu.throughput, gpu.memory, gpu.latency
    most_warps = limits.max_threads // WARP_LANES
    return (
        f"It is one {gpu.name} with {chip.sms} multiprocessors (SMs) at {chip.clock_hz / 1e9:.3g} GHz; code is "
        f"compiled for {gpu.architecture}{'a' if has_wgmma(gpu) else ''}.",
        f"An SM holds up to {most_warps} warps, {limits.max_blocks} blocks, {limits.registers} registers (at most "
        f"{limits.max_registers_per_thread} a thread) and {limits.shared_bytes >> 10} KiB of shared memory, of which "
        f"a block gets up to {limits.max_shared_bytes_per_block >> 10} KiB.",
        f"DRAM moves {memory.dram_bytes_per_second / 1e12:.3g} TB/s; L2 holds {memory.l2_bytes >> 20} MiB and moves "
        f"{memory.l2_bytes_per_second / 1e12:.3g} TB/s. Memory is read in sectors of "
        f"{memory.sector_bytes} bytes.",
        f"A load takes about {latency.dram:.0f} cycles from DRAM, {latency.l2:.0f} from L2, {latency.l1:.0f} from L1 "
        f"and {latency.shared:.0f} from shared memory.",
        f"In a cycle an SM does {rates.fma:.0f} fp32 multiply-adds ({_operations(gpu, rates.fma)} in all), "
        f"{rates.alu:.0f} integer operations and {rates.special:.0f} special functions (exponentials, roots, "
        "reciprocals).",
        f"Its tensor cores multiply 16-bit floats at {_operations(gpu, rates.tensor_sync_fma)} by mma.sync"
        + (f" and at {_operations(gpu, rates.tensor_fma)} by wgmma" if has_wgmma(gpu) else "")
        + ", TF32 at half of that.",
        *(_HOPPER if has_wgmma(gpu) else ()),
        f"A launch costs {time_text(gpu.overheads.launch, 3)}, one behind another "
        f"{time_text(gpu.overheads.launch_to_launch, 3)}.",
    )


_HOPPER = (
    "Allowed and fast on it, in inline PTX: wgmma (operands in shared memory with the 128-byte swizzle, A also in "
    "registers), cp.async.bulk and TMA with mbarriers, clusters with distributed shared memory, setmaxnreg.",
    "A thread gets 65536 registers over the threads of its block at the most. With 512 threads that is too few for "
    "wgmma of 64 x 256 sums, with setmaxnreg too (ptxas C7602); with 384 it isn't.",
)


def has_wgmma(gpu: Architecture) -> bool:
    """Whether a GPU has the tensor cores of warp groups."""
    return gpu.architecture.startswith("sm_90")


def _operations(gpu: Architecture, fma: float) -> str:
    """Multiply-adds of an SM in a cycle as the whole GPU's operations in a second."""
    return f"{2 * fma * gpu.chip.sms * gpu.chip.clock_hz / 1e12:.0f} TFLOP/s"


def least_seconds(gpu: Architecture, task: Task, shape: Shape, flops: float = 0.0) -> float:
    """Time of compulsory traffic beyond L2, or of products (float32: three of 16 bits), whichever is more."""
    moved = task.compulsory_bytes(shape)
    traffic = moved / gpu.memory.dram_bytes_per_second if moved > gpu.memory.l2_bytes else 0.0
    return max(traffic, _tensor_seconds(gpu, flops) * (3 if _is_fp32(task) else 1))


def _is_fp32(task: Task) -> bool:
    return any(tensor.dtype == "float32" for tensor in task.inputs)


def _tensor_seconds(gpu: Architecture, flops: float) -> float:
    rates = gpu.throughput
    fma = rates.tensor_fma if has_wgmma(gpu) else rates.tensor_sync_fma
    return flops / (2 * fma * gpu.chip.sms * gpu.chip.clock_hz)


def _floors(gpu: Architecture, task: Task, flops: Mapping[str, float]) -> Iterator[str]:
    """What compulsory traffic, where it doesn't fit into L2, and products take; `flops` are those by shape."""
    for shape in task.search_shapes:
        where = f"At {shape_label(shape)} "
        if seconds := least_seconds(gpu, task, shape):
            yield (
                f"{where}reading each input and writing each output once moves "
                f"{byte_text(task.compulsory_bytes(shape))}, which takes {time_text(seconds, 3)} at the least."
            )
        if products := flops.get(shape_label(shape), 0.0):
            fp32 = products / (2 * gpu.throughput.fma * gpu.chip.sms * gpu.chip.clock_hz)
            tensor = _tensor_seconds(gpu, products)
            thrice = f", and so {time_text(3 * tensor, 3)} as three of these, which keep fp32's accuracy"
            yield (
                f"{where}its products are {products / 1e9:,.0f} GFLOP by the plain algorithm: "
                f"{time_text(fp32, 3)} in fp32 arithmetic, {time_text(tensor, 3)} as 16-bit products on the tensor "
                f"cores{thrice if _is_fp32(task) else ''}."
            )
