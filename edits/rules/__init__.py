"""The rule library for CUDA C++: the name, category and prior of each rule, and the bottlenecks that it may relieve."""

from __future__ import annotations

from mctskernel.edits.rule import Context, Rule
from mctskernel.edits.rules import (
    coarsening,
    hints,
    launch,
    recipes,
    row_parallel,
    row_registers,
    tree_reduction,
    tuning,
    vector_elements,
    vectorize,
)

ALL: tuple[Rule[Context], ...] = (
    tuning.smaller_blocks,
    tuning.larger_blocks,
    tuning.reshaped_blocks,
    tuning.items_and_tiles,
    tuning.grid_size,
    hints.pointer_qualifiers,
    hints.streaming_hints,
    hints.fast_math,
    hints.unroll,
    coarsening.coarsen_threads,
    coarsening.grid_stride_loop,
    launch.swap_thread_axes,
    row_parallel.parallel_rows,
    row_registers.keep_row,
    recipes.rows_on_chip,
    tree_reduction.warp_shuffle_reduction,
    vectorize.float4_loops,
    vector_elements.float4_elements,
)
