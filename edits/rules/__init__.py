"""The rule library: `ALL` is every rule, and a new one is registered by adding its module's `RULES` here."""

from __future__ import annotations

from mctskernel.edits.rule import Context, Rule
from mctskernel.edits.rules import (
    accumulators,
    cache_hints,
    coalescing,
    coarsening,
    fast_math,
    grid_stride,
    hints,
    jammed_axis,
    launch,
    matmul,
    padding,
    private_counts,
    recipes,
    row_parallel,
    row_registers,
    row_scan,
    transpose,
    tuning,
    unrolling,
    vector_elements,
    vectorize,
    warp_reduction,
)

ALL: tuple[Rule[Context], ...] = (
    *tuning.RULES,
    *launch.RULES,
    *hints.RULES,
    *cache_hints.RULES,
    *fast_math.RULES,
    *unrolling.RULES,
    *accumulators.RULES,
    *coarsening.RULES,
    *transpose.RULES,
    *padding.RULES,
    *coalescing.RULES,
    *row_parallel.RULES,
    *row_registers.RULES,
    *row_scan.RULES,
    *recipes.RULES,
    *warp_reduction.RULES,
    *grid_stride.RULES,
    *private_counts.RULES,
    *jammed_axis.RULES,
    *vectorize.RULES,
    *vector_elements.RULES,
    *matmul.RULES,
)
