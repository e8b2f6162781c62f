"""The catalogue: what each category of edit does, which bottlenecks it relieves, and how it goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Bottleneck


@dataclass(frozen=True)
class Entry:
    """One category: a sentence, the bottlenecks that it relieves, and its typical risk."""

    description: str
    relieves: frozenset[Bottleneck]
    risk: str


CATALOGUE: Mapping[Category, Entry] = {
    Category.TUNING: Entry(
        "Choose other values for the tile, block and unroll sizes that the source names as macros.",
        frozenset(
            {
                Bottleneck.LOW_OCCUPANCY,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.SHARED_THROUGHPUT,
                Bottleneck.TOO_FEW_BLOCKS,
                Bottleneck.TAIL,
                Bottleneck.SPILLS,
            }
        ),
        "A value that the code silently relies on elsewhere, or more shared memory than a block may have.",
    ),
    Category.LAUNCH: Entry(
        "Change how many threads and blocks are launched and how work is assigned to them.",
        frozenset(
            {Bottleneck.LOW_OCCUPANCY, Bottleneck.TOO_FEW_BLOCKS, Bottleneck.TAIL, Bottleneck.BARRIERS}
        ),
        "Code that assumes the old block size computes wrong results.",
    ),
    Category.COMPILER_HINTS: Entry(
        "Tell the compiler what it can't prove: no aliasing, read-only data, register limits, cache policy.",
        frozenset(
            {
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.LOW_OCCUPANCY,
                Bottleneck.SPILLS,
                Bottleneck.L1_THROUGHPUT,
            }
        ),
        "A promise that isn't true is undefined behaviour; a tight register limit causes spills.",
    ),
    Category.UNROLLING: Entry(
        "Unroll loops so that independent loads overlap and loop overhead disappears.",
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.INSTRUCTION_ISSUE, Bottleneck.INTEGER_PIPE}),
        "More registers, hence lower occupancy or spills.",
    ),
    Category.COALESCING: Entry(
        "Let neighbouring threads touch neighbouring addresses.",
        frozenset({Bottleneck.UNCOALESCED_ACCESS, Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH}),
        "Swapping axes for one array can spoil another.",
    ),
    Category.VECTORIZATION: Entry(
        "Load and store 8 or 16 bytes per thread with one instruction.",
        frozenset(
            {
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.DRAM_BANDWIDTH,
            }
        ),
        "Misaligned addresses fault; sizes that aren't multiples need a scalar remainder.",
    ),
    Category.COARSENING: Entry(
        "Let each thread compute several elements, so that loads overlap and common work is shared.",
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.INSTRUCTION_ISSUE, Bottleneck.LAUNCH_OVERHEAD}),
        "Fewer blocks: small shapes may no longer fill the device.",
    ),
    Category.SHARED_TILING: Entry(
        "Stage data that several threads reuse in shared memory.",
        frozenset(
            {
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.UNCOALESCED_ACCESS,
                Bottleneck.GLOBAL_LATENCY,
            }
        ),
        "Missing barriers, partial tiles at the edges, bank conflicts.",
    ),
    Category.REGISTER_BLOCKING: Entry(
        "Compute a small tile of outputs per thread in registers, so that each value loaded is used often.",
        frozenset(
            {
                Bottleneck.SHARED_THROUGHPUT,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.BARRIERS,
            }
        ),
        "Register pressure, spills, fewer blocks.",
    ),
    Category.BANK_CONFLICTS: Entry(
        "Pad or permute shared-memory arrays so that a warp's accesses fall into different banks.",
        frozenset({Bottleneck.BANK_CONFLICTS, Bottleneck.SHARED_THROUGHPUT}),
        "Padding breaks the alignment of vector accesses and costs shared memory.",
    ),
    Category.WARP_PRIMITIVES: Entry(
        "Exchange values between the lanes of a warp with shuffles and votes instead of shared memory.",
        frozenset({Bottleneck.BARRIERS, Bottleneck.SHARED_THROUGHPUT, Bottleneck.BANK_CONFLICTS}),
        "Lanes that don't take part, blocks that aren't whole warps, another order of summation.",
    ),
    Category.PARALLELISM: Entry(
        "Expose more independent work: split reductions, use more threads per row, process rows together.",
        frozenset(
            {
                Bottleneck.TOO_FEW_BLOCKS,
                Bottleneck.LOW_OCCUPANCY,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.ATOMICS,
                Bottleneck.DIVERGENCE,
            }
        ),
        "Partial results must be combined: a second launch, atomics, or nondeterministic order.",
    ),
    Category.ASYNC_COPY: Entry(
        "Copy global to shared memory asynchronously, in several stages ahead of their use.",
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.BARRIERS}),
        "Races between stages, more shared memory, waits on the wrong group.",
    ),
    Category.TENSOR_CORES: Entry(
        "Compute matrix products with mma instructions.",
        frozenset({Bottleneck.FP32_PIPE, Bottleneck.INSTRUCTION_ISSUE, Bottleneck.TENSOR_PIPE}),
        "Lower input precision than the tolerance allows; intricate fragment layouts.",
    ),
    Category.PRECISION: Entry(
        "Use cheaper arithmetic where the tolerance allows it: approximate functions, fused operations.",
        frozenset({Bottleneck.SPECIAL_FUNCTIONS, Bottleneck.FP32_PIPE, Bottleneck.INSTRUCTION_ISSUE}),
        "Errors beyond the tolerance at extreme inputs.",
    ),
    Category.ALGORITHM: Entry(
        "Compute the same result another way: fewer passes over the data, online updates, less work.",
        frozenset(
            {
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.FP32_PIPE,
                Bottleneck.SPECIAL_FUNCTIONS,
                Bottleneck.BARRIERS,
            }
        ),
        "Numerical stability and special values.",
    ),
    Category.FUSION: Entry(
        "Merge launches, so that intermediate results stay on the chip.",
        frozenset({Bottleneck.LAUNCH_OVERHEAD, Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH}),
        "Blocks can't wait for each other without a grid-wide barrier.",
    ),
    Category.REPAIR: Entry(
        "Mend a kernel that failed to build, to launch or to compute the right result.",
        frozenset(),
        "The repair gives up the gain that the broken edit was after.",
    ),
}
