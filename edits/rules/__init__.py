"""The rule library for CUDA C++: the name, category and prior of each rule, and the bottlenecks that it may relieve."""

from __future__ import annotations

from mctskernel.edits.rule import Context, Rule
from mctskernel.edits.rules import (
    atomics,
    coarsening,
    hints,
    launch,
    recipes,
    row_parallel,
    row_registers,
    row_scan,
    shared_tiles,
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
    launch.name_block_size,
    hints.pointer_qualifiers,
    hints.launch_bounds,
    hints.streaming_hints,
    hints.fast_math,
    hints.unroll,
    coarsening.coarsen_threads,
    coarsening.grid_stride_loop,
    shared_tiles.transpose_tiles,
    shared_tiles.pad_shared_arrays,
    launch.swap_thread_axes,
    row_parallel.parallel_rows,
    row_registers.keep_row,
    row_scan.scan_rows,
    recipes.rows_on_chip,
    tree_reduction.warp_shuffle_reduction,
    tree_reduction.strided_block_reduction,
    launch.grouped_blocks,
    atomics.private_counts,
    vectorize.float4_loops,
    vector_elements.float4_elements,
    vector_elements.float4_stencils,
)
