"""The price of a launch: how long each part of a GPU would need for its share of the work, and all together.

Every term is a plain function of plain numbers that returns seconds, under the assumption that nothing else
holds the kernel up. Parts overlap, but not perfectly, so terms are combined by a p-norm: with p = 3, two
equal terms cost 1.26 times one of them, and a term of a tenth adds next to nothing. A maximum would call
every kernel at the DRAM floor equal; a sum would deny that a GPU overlaps anything. What follows each other
without a seam overlaps almost wholly, and has a norm near the maximum: L2 with the DRAM behind it, and the
launching of blocks with all that blocks do.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mctskernel.profiling.architecture import WARP_LANES, Architecture
from mctskernel.profiling.machine_code.functions import Pipe

if TYPE_CHECKING:
    # Only what is priced needs a compiler; terms are combined, and runs read, where there is none.
    from mctskernel.profiling.model.work import KernelWork

NORM = 3.0
MEMORY_NORM = 6.0  # of L2 and DRAM, which every sector passes one after the other in a pipeline
LAUNCH_NORM = 10.0  # of launching blocks with what the blocks do

BEHIND_TRAFFIC = 0.26
"""The part of everything else that atomics on one address wait behind.

Sums of 64 Mi floats on an H100 with 65 536 to 524 288 atomics take 1.76 ns an atomic and 24 us more, about a
quarter of what reading the floats takes; with 32 768 of them they are hidden behind the reading.
"""

RAGGED_END = 0.09
"""The fraction of a launch of one wave of blocks for which the chip is not full, at its end.

Of n waves it is less by the square root of n: the same sums are 2 % to 4 % slower in one to four waves of blocks than
in 32, and so are kernels of thirty recorded searches that had no part in choosing it.
"""


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
    EXPOSED = "exposed latency"
    TAIL = "tail"
    LAUNCH = "launch"


ADDED = frozenset({Term.EXPOSED, Term.TAIL, Term.LAUNCH})  # terms that nothing overlaps with


@dataclass(frozen=True)
class Price:
    """Modelled seconds of one launch, and the seconds that each term would take alone."""

    seconds: float
    terms: Mapping[Term, float]


def price(work: KernelWork, gpu: Architecture) -> Price:
    """The modelled time of one launch that has the GPU for itself."""
    sm_terms = _sm_terms(work, gpu)
    chip_terms = _chip_terms(work, gpu)
    even = _overlapped({**sm_terms, **chip_terms})
    factor = imbalance(work.blocks, gpu.chip.sms)
    uneven = _overlapped({**{term: seconds * factor for term, seconds in sm_terms.items()}, **chip_terms})
    ragged = RAGGED_END / math.sqrt(waves(work.blocks, work.occupancy.blocks, gpu))
    tail = uneven * (1.0 + ragged) - even
    terms = {
        **sm_terms,
        **chip_terms,
        Term.EXPOSED: _exposed({**sm_terms, **chip_terms}, independent_parts(work, gpu)),
        Term.TAIL: tail,
        Term.LAUNCH: gpu.overheads.launch,
    }
    return Price(combined(terms), terms)


def behind(found: Price, seconds: float) -> Price:
    """The price of a launch with so many seconds before it, as part of what starting it takes."""
    return Price(found.seconds + seconds, {**found.terms, Term.LAUNCH: found.terms[Term.LAUNCH] + seconds})


def zeroing_seconds(nbytes: int, gpu: Architecture) -> float:
    """What clearing a buffer before the first launch takes: a launch of its own, that writes it as fast as may be."""
    memory = gpu.memory
    rate = memory.l2_write_bytes_per_second
    if nbytes > memory.l2_bytes / 2:
        rate = min(rate, memory.dram_bytes_per_second)
    return gpu.overheads.launch_to_launch + nbytes / rate


def independent_parts(work: KernelWork, gpu: Architecture) -> float:
    """How many parts of an SM's warps go their own way, so that some work while others wait.

    Blocks do. So do a block's warps, as far as they wait more than once between two barriers: after each wait they are
    further apart.
    """
    resident = max(1, min(work.occupancy.blocks, -(-work.blocks // gpu.chip.sms)))
    waits = work.chain.global_memory / gpu.latency.dram
    return resident * min(float(work.warps), max(1.0, waits / (work.barriers + 1.0)))


def combined(terms: Mapping[Term, float] | Mapping[str, float]) -> float:
    """Seconds of one launch from its terms, by their names: overlapping ones softly, the others on top."""
    return _overlapped(terms) + math.fsum(seconds for name, seconds in terms.items() if name in ADDED)


def shares(terms: Mapping[Term, float] | Mapping[str, float]) -> dict[str, float]:
    """By how many percent the time falls if a term falls by one; they add up to one, by Euler's theorem."""
    whole = combined(terms)
    if whole <= 0.0:
        return {}
    fallen = {name: {**terms, name: seconds * (1.0 - _STEP)} for name, seconds in terms.items()}
    raw = {name: max(0.0, 1.0 - combined(less) / whole) / _STEP for name, less in fallen.items()}
    total = math.fsum(raw.values())
    return {name: share / total for name, share in raw.items()}


_STEP = 1e-4


def _overlapped(terms: Mapping[Term, float] | Mapping[str, float]) -> float:
    """Seconds of everything that overlaps."""
    known = {name: seconds for name, seconds in terms.items() if name not in ADDED}
    atomics, launching = known.pop(Term.ATOMICS, 0.0), known.pop(Term.BLOCK_LAUNCH, 0.0)
    memory = soft_sum((known.pop(Term.L2, 0.0), known.pop(Term.DRAM, 0.0)), MEMORY_NORM)
    blocks = soft_sum((soft_sum((*known.values(), memory)), launching), LAUNCH_NORM)
    return max(blocks, atomics + BEHIND_TRAFFIC * blocks) if atomics else blocks


def _exposed(terms: Mapping[Term, float], parts: float) -> float:
    """What latency adds beyond its part of the soft sum where few parts of an SM's warps go their own way.

    Warps in step wait together and work together: where all of them do, latency is added to all else. With more
    parts the norm goes from 1 to that of the soft sum.
    """
    latency = terms[Term.LATENCY]
    working = _overlapped({**terms, Term.LATENCY: 0.0})
    norm = 1.0 + (NORM - 1.0) * (1.0 - 1.0 / parts)
    return soft_sum((working, latency), norm) - soft_sum((working, latency))


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
        # Each scheduler issues at most one warp instruction a cycle.
        Term.ISSUE: work.total_instructions / (gpu.chip.schedulers * sm_cycles_per_second(gpu)),
        **pipes,
        Term.TENSOR: work.tensor_multiply_adds / (rates.tensor_sync_fma * sm_cycles_per_second(gpu)),
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
        Term.ATOMICS: atomic_seconds(work.atomic_lanes, work.atomic_turns, gpu),
        Term.BLOCK_LAUNCH: work.blocks * gpu.overheads.block_launch,
    }


def sm_cycles_per_second(gpu: Architecture) -> float:
    """Cycles that all SMs together have in a second."""
    return gpu.chip.sms * gpu.chip.clock_hz


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
    reading = read_sectors * memory.sector_bytes / memory.l2_bytes_per_second
    written = written_sectors * memory.sector_bytes / memory.l2_write_bytes_per_second
    return reading + max(written, written_lines / memory.l2_store_lines_per_second)


def latency_seconds(chain_cycles: float, blocks: int, resident_blocks: int, gpu: Architecture) -> float:
    """Waves of resident blocks, each as long as one warp's chain of dependent instructions.

    This is Little's law: an SM finishes its resident blocks in one chain's time, however idle its units are.
    A block's place stands empty for a while before the next one has it.
    """
    cycles = chain_cycles + gpu.latency.block_turnover
    return waves(blocks, resident_blocks, gpu) * cycles / gpu.chip.clock_hz


def waves(blocks: int, resident_blocks: int, gpu: Architecture) -> int:
    """How many blocks follow each other in the same place of an SM, at least one."""
    per_sm = -(-blocks // gpu.chip.sms)
    return max(1, -(-per_sm // max(min(resident_blocks, per_sm), 1)))


def atomic_seconds(lanes: float, turns: float, gpu: Architecture) -> float:
    """Atomics on one address take turns in L2; those on different addresses share its units."""
    return max(turns * gpu.overheads.same_address_atomic, lanes / gpu.memory.l2_atomics_per_second)


def imbalance(blocks: int, sms: int) -> float:
    """How much longer the busiest SM works than the average one: blocks are not divided."""
    return math.ceil(blocks / sms) * sms / blocks


# Uncertainty. A term may be wrong by a factor that is the same for every kernel (its constant). Such an error moves the
# time by the term's share, so that of two kernels that spend their time on the same terms the ratio is hardly wrong:
# log(a / b) has the variance  sum over terms of (share in a - share in b)^2 s_term^2  +  2 s_rest^2  (first-order error
# propagation with independent errors of the terms).

TERM_SIGMA = 0.3
"""Standard deviation of the logarithm of a term's error that all kernels share.

With this and the next, 60 % to 100 % of the kernels of most of 37 families timed on an H100 lie within one standard
deviation (`experiments.model_benchmark`). For five families of hand-made variants less would do; among 32 of recorded
searches a few kernels are off by far more than any normal error.
"""

REST_SIGMA = 0.08  # standard deviation of the logarithm of what is left and differs from kernel to kernel


def term_sigmas(terms: Mapping[str, float]) -> dict[str, float]:
    """What each term's error contributes: one standard deviation of the logarithm of the time."""
    return {name: TERM_SIGMA * share for name, share in shares(terms).items()}


def log_sigma(terms: Mapping[str, float]) -> float:
    """One standard deviation of the logarithm of modelled over true time."""
    return math.hypot(REST_SIGMA, *term_sigmas(terms).values())


def log_ratio_sigma(terms: Mapping[str, float], others: Mapping[str, float]) -> float:
    """One standard deviation of the logarithm of the error of a ratio of two modelled times."""
    first, second = shares(terms), shares(others)
    differences = (first.get(name, 0.0) - second.get(name, 0.0) for name in Term)
    return math.hypot(math.sqrt(2.0) * REST_SIGMA, *(TERM_SIGMA * each for each in differences))
