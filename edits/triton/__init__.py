"""The rule library for Triton. Python's syntax tree says where to edit, and the text around an edit stays as it is."""

from __future__ import annotations

from mctskernel.edits.rule import Rule
from mctskernel.edits.triton import descriptors, hints, programs, rows, tuning
from mctskernel.edits.triton.module import TritonContext

ALL: tuple[Rule[TritonContext], ...] = (
    tuning.block_sizes,
    tuning.block_shapes,
    tuning.warps,
    tuning.stages,
    rows.whole_rows,
    descriptors.persistent_tiles,
    programs.grouped_tiles,
    programs.several_rows,
    hints.dot_precision,
)
