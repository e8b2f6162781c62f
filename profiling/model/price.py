"""The price of a launch: how long each part of a GPU would need for its share of the work, and all together.

Every term is a plain function of plain numbers that returns seconds, under the assumption that nothing else
holds the kernel up. Parts overlap, but not perfectly, so terms are combined by a p-norm: with p = 3, two
equal terms cost 1.26 times one of them, and a term of a tenth adds next to nothing. A maximum would call
every kernel at the DRAM floor equal; a sum would deny that a GPU overlaps anything.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.machine_code.instructions import Pipe
from mctskernel.profiling.model.work import KernelWork

NORM = 3.0


class Term(enum.StrEnum):
    """The parts of a GPU that a launch occupies. Values are the names in `Evaluation.terms`."""

    ISSUE = "instruction issue"
    FMA = "fp32 pipe"
    ALU = "integer pipe"
    SPECIAL = "special functions"
    FP64 = "fp64 pipe"
    TENSOR = "tensor pipe"
    GLOBAL_WAVEFRONTS = "global wavefronts"
    SHARED_WAVEFRONTS = "shared wavefronts"
    L2 = "L2"
    DRAM = "DRAM"
    LATENCY = "latency"
    ATOMICS = "atomics"
    BLOCK_LAUNCH = "block launch"
    TAIL = "tail"
    LAUNCH = "launch"


ADDED = frozenset({Term.TAIL, Term.LAUNCH})
"""Terms that nothing overlaps with."""


@dataclass(frozen=True)
class Price:
    """Modelled seconds of one launch, and the seconds that each term would take alone."""

    seconds: float
    terms: Mapping[Term, float]

    def shares(self) -> dict[Term, float]:
        """The fraction of the time that each term explains; they add up to one.

        An overlapped term's share of the p-norm is its p-th power over the sum of them.
        """
        powers = {term: seconds**NORM for term, seconds in self.terms.items() if term not in ADDED}
        total = sum(powers.values())
        added = {term: self.terms.get(term, 0.0) / self.seconds for term in ADDED}
        rest = 1.0 - sum(added.values())
        return {**{term: rest * power / total for term, power in powers.items() if total}, **added}


def price(work: KernelWork, gpu: Architecture) -> Price:
    """The modelled time of one launch that has the GPU for itself."""
    sm_terms = _sm_terms(work, gpu)
    chip_terms = _chip_terms(work, gpu)
    overlapped = soft_sum([*sm_terms.values(), *chip_terms.values()])
    factor = imbalance(work.blocks, gpu.chip.sms)
    with_tail = soft_sum([*(seconds * factor for seconds in sm_terms.values()), *chip_terms.values()])
    tail, launch = with_tail - overlapped, gpu.overheads.launch
    terms = {**sm_terms, **chip_terms, Term.TAIL: tail, Term.LAUNCH: launch}
    return Price(combined(terms), terms)


def combined(terms: Mapping[Term, float] | Mapping[str, float]) -> float:
    """Seconds of one launch from its terms, by their names: overlapping ones softly, the others on top."""
    overlapped = soft_sum(seconds for name, seconds in terms.items() if name not in ADDED)
    return overlapped + math.fsum(seconds for name, seconds in terms.items() if name in ADDED)


def soft_sum(seconds: Iterable[float], norm: float = NORM) -> float:
    """The p-norm of overlapping times."""
    parts = list(seconds)
    largest = max(parts, default=0.0)
    if largest == 0.0:
        return 0.0
    return largest * math.pow(math.fsum((part / largest) ** norm for part in parts), 1 / norm)


def _sm_terms(work: KernelWork, gpu: Architecture) -> dict[Term, float]:
    """What the SMs do, with the work spread evenly over all of them."""
    rates = gpu.throughput
    lanes = {Term.FMA: (Pipe.FMA, rates.fma), Term.ALU: (Pipe.ALU, rates.alu)}
    lanes |= {Term.SPECIAL: (Pipe.SPECIAL, rates.special), Term.FP64: (Pipe.FP64, rates.fp64)}
    pipes = {
        term: pipe_seconds(work.instructions.get(pipe, 0.0), rate, gpu)
        for term, (pipe, rate) in lanes.items()
    }
    return {
        Term.ISSUE: issue_seconds(work.total_instructions, gpu),
        **pipes,
        Term.TENSOR: work.tensor_multiply_adds / (rates.tensor_fma * sm_cycles_per_second(gpu)),
        Term.GLOBAL_WAVEFRONTS: wavefront_seconds(work.global_wavefronts + work.spill_wavefronts, gpu),
        Term.SHARED_WAVEFRONTS: wavefront_seconds(work.shared_wavefronts, gpu)
        + pipe_seconds(work.shuffles, rates.shuffle, gpu),
    }


def _chip_terms(work: KernelWork, gpu: Architecture) -> dict[Term, float]:
    """What all SMs share, and the latency of what one block does after another."""
    reads, writes = work.l2_read_sectors + work.spill_l2_sectors, work.l2_write_sectors
    return {
        Term.L2: l2_seconds(reads, writes, work.store_lines, gpu),
        Term.DRAM: (work.dram_read_bytes + work.dram_write_bytes) / gpu.memory.dram_bytes_per_second,
        Term.LATENCY: latency_seconds(work.chain.cycles, work.blocks, work.occupancy.blocks, gpu),
        Term.ATOMICS: atomic_seconds(work.atomic_lanes, work.same_address_lanes, gpu),
        Term.BLOCK_LAUNCH: work.blocks * gpu.overheads.block_launch,
    }


def sm_cycles_per_second(gpu: Architecture) -> float:
    """Cycles that all SMs together have in a second."""
    return gpu.chip.sms * gpu.chip.clock_hz


def issue_seconds(instructions: float, gpu: Architecture) -> float:
    """Each scheduler issues at most one warp instruction a cycle."""
    return instructions / (gpu.chip.schedulers * sm_cycles_per_second(gpu))


def pipe_seconds(instructions: float, lanes_per_cycle: float, gpu: Architecture) -> float:
    """A pipe of fewer than 32 lanes takes several cycles for a warp instruction, active lanes or not."""
    return instructions * WARP_LANES / (lanes_per_cycle * sm_cycles_per_second(gpu))


def wavefront_seconds(wavefronts: float, gpu: Architecture) -> float:
    """L1 and shared memory pass one wavefront of up to 128 bytes a cycle.

    An access takes as many wavefronts as it touches rows of the banks (shared), or tags and 128-byte parts
    (global); conflicts and scattered addresses are nothing but more wavefronts.
    """
    return wavefronts / (gpu.throughput.wavefronts * sm_cycles_per_second(gpu))


def l2_seconds(read_sectors: float, written_sectors: float, written_lines: float, gpu: Architecture) -> float:
    """L2 moves whole sectors, whatever part of them is used, and takes a turn for every line of a store.

    A store that scatters its lanes over 32 lines takes 32 turns, however few bytes it carries.
    """
    memory = gpu.memory
    per_sector = memory.sector_bytes / memory.l2_bytes_per_second
    writing = max(written_sectors * per_sector, written_lines / memory.l2_store_lines_per_second)
    return read_sectors * per_sector + writing


def latency_seconds(chain_cycles: float, blocks: int, resident_blocks: int, gpu: Architecture) -> float:
    """Waves of resident blocks, each as long as one warp's chain of dependent instructions.

    This is Little's law: an SM finishes its resident blocks in one chain's time, however idle its units are.
    """
    per_sm = -(-blocks // gpu.chip.sms)
    waves = -(-per_sm // max(resident_blocks, 1))
    return waves * chain_cycles / gpu.chip.clock_hz


def atomic_seconds(lanes: float, same_address_lanes: float, gpu: Architecture) -> float:
    """Atomics on one address take turns in L2; those on different addresses share its units."""
    return max(
        same_address_lanes * gpu.overheads.same_address_atomic, lanes / gpu.memory.l2_atomics_per_second
    )


def imbalance(blocks: int, sms: int) -> float:
    """How much longer the busiest SM works than the average one: blocks are not divided."""
    return math.ceil(blocks / sms) * sms / blocks
