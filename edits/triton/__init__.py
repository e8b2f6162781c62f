"""The rule library for Triton. Python's syntax tree says where to edit, and the text around an edit stays as it is."""

from __future__ import annotations

from mctskernel.edits.rule import Rule
from mctskernel.edits.triton import hints, loops, programs, rows, tuning
from mctskernel.edits.triton.module import TritonContext

ALL: tuple[Rule[TritonContext], ...] = (
    tuning.block_sizes,
    tuning.block_shapes,
    tuning.warps,
    tuning.blocks_with_warps,
    tuning.stages,
    tuning.grid_size,
    rows.whole_rows,
    rows.deferred_reductions,
    loops.prefetched_loops,
    loops.unrolled_loops,
    programs.grouped_tiles,
    programs.striding_programs,
    programs.several_rows,
    hints.streaming_stores,
    hints.eviction,
    hints.dot_precision,
)
