"""A briefing: what a GPU can do and what a task must move, in the sentences that a proposer is told."""

from __future__ import annotations

from mctskernel.core.task import Task, shape_label
from mctskernel.profiling.architecture import WARP_LANES, Architecture, architecture_of
from mctskernel.profiling.quantities import byte_text, time_text


def briefing(architecture: Architecture, task: Task) -> tuple[str, ...]:
    """Limits, rates and latencies of a described GPU, and the task's least time where memory sets one."""
    return (*_sentences(architecture), *_floors(architecture, task))


def briefing_of(gpu: str, code: str, task: Task) -> tuple[str, ...]:
    """The same of a GPU by its name and what it runs, such as `sm_90`; little of one that nothing describes."""
    found = architecture_of(code, gpu)
    if found is None:
        return (f"It is one {gpu}; code is compiled for {code}.",)
    return briefing(found, task)


def _sentences(gpu: Architecture) -> tuple[str, ...]:
    chip, limits, rates, memory, latency = gpu.chip, gpu.limits, gpu.throughput, gpu.memory, gpu.latency
    most_warps = limits.max_threads // WARP_LANES
    return (
        f"It is one {gpu.name} with {chip.sms} multiprocessors (SMs) at {chip.clock_hz / 1e9:.3g} GHz; code is "
        f"compiled for {gpu.architecture}.",
        f"An SM holds up to {most_warps} warps, {limits.max_blocks} blocks, {limits.registers} registers (at most "
        f"{limits.max_registers_per_thread} a thread) and {limits.shared_bytes >> 10} KiB of shared memory, of which "
        f"a block gets up to {limits.max_shared_bytes_per_block >> 10} KiB.",
        f"DRAM moves {memory.dram_bytes_per_second / 1e12:.3g} TB/s; L2 holds {memory.l2_bytes >> 20} MiB and moves "
        f"{memory.l2_bytes_per_second / 1e12:.3g} TB/s. Memory is read in sectors of "
        f"{memory.sector_bytes} bytes.",
        f"A load takes about {latency.dram:.0f} cycles from DRAM, {latency.l2:.0f} from L2, {latency.l1:.0f} from L1 "
        f"and {latency.shared:.0f} from shared memory.",
        f"In a cycle an SM does {rates.fma:.0f} fp32 multiply-adds, {rates.alu:.0f} integer operations, "
        f"{rates.special:.0f} special functions (exponentials, roots, reciprocals) or {rates.tensor_sync_fma:.0f} "
        "multiply-adds of 16-bit floats on the tensor cores by mma.sync.",
        f"A launch costs {time_text(gpu.overheads.launch, 3)}, one behind another "
        f"{time_text(gpu.overheads.launch_to_launch, 3)}.",
    )


def _floors(gpu: Architecture, task: Task) -> tuple[str, ...]:
    """What the compulsory traffic takes at shapes that don't fit into L2."""
    found = []
    for shape in task.search_shapes:
        moved = task.compulsory_bytes(shape)
        if moved > gpu.memory.l2_bytes:
            seconds = moved / gpu.memory.dram_bytes_per_second
            found.append(
                f"At {shape_label(shape)} reading each input and writing each output once moves {byte_text(moved)}, "
                f"which takes {time_text(seconds, 3)} at the least."
            )
    return tuple(found)
