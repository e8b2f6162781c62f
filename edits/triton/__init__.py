"""The rule library for Triton. Python's syntax tree says where to edit, and the text around an edit stays as it is."""

from __future__ import annotations

from mctskernel.core.edit import Category
from mctskernel.edits.rule import Rule, rule
from mctskernel.edits.triton import (
    hints,
    loops,
    programs,
    reductions,
    tuning,
    whole_rows,
)
from mctskernel.edits.triton.module import TritonContext

_BLOCK_SIZES = (
    "l2_bandwidth l1_throughput uncoalesced_access global_latency shared_throughput barriers "
    "instruction_issue fp32_pipe low_occupancy too_few_blocks tail spills"
)

ALL: tuple[Rule[TritonContext], ...] = (
    rule("triton-block-sizes", Category.TUNING, tuning.block_sizes, _BLOCK_SIZES, prior=1.0),
    rule("triton-block-shapes", Category.TUNING, tuning.block_shapes, _BLOCK_SIZES, prior=1.0),
    rule(
        "triton-warps",
        Category.LAUNCH,
        tuning.more_or_fewer_warps,
        "global_latency barriers low_occupancy too_few_blocks spills",
        prior=0.8,
    ),
    rule("triton-blocks-with-warps", Category.TUNING, tuning.blocks_with_warps, _BLOCK_SIZES, prior=0.8),
    rule(
        "triton-stages",
        Category.ASYNC_COPY,
        tuning.pipeline_stages,
        "global_latency barriers tensor_pipe",
        prior=0.6,
    ),
    rule(
        "triton-grid-size", Category.TUNING, tuning.grid_size, "low_occupancy too_few_blocks tail", prior=0.5
    ),
    rule(
        "triton-whole-rows",
        Category.ALGORITHM,
        whole_rows.whole_rows,
        "dram_bandwidth l2_bandwidth l1_throughput global_latency barriers instruction_issue low_occupancy",
        prior=2.0,
    ),
    rule(
        "triton-deferred-reductions",
        Category.PARALLELISM,
        reductions.deferred,
        "global_latency shared_throughput barriers instruction_issue",
        prior=1.0,
    ),
    rule(
        "triton-one-pass-softmax",
        Category.ALGORITHM,
        reductions.one_pass_softmax,
        "dram_bandwidth l2_bandwidth global_latency",
        prior=1.0,
    ),
    rule(
        "triton-causal-bound",
        Category.ALGORITHM,
        loops.causal_bound,
        "l2_bandwidth global_latency barriers tensor_pipe",
        prior=3.0,
    ),
    rule(
        "triton-prefetched-loops", Category.ASYNC_COPY, loops.prefetched, "global_latency barriers", prior=0.5
    ),
    rule(
        "triton-unrolled-loops",
        Category.UNROLLING,
        loops.unrolled,
        "global_latency instruction_issue integer_pipe",
        prior=0.4,
    ),
    rule(
        "triton-grouped-tiles",
        Category.LAUNCH,
        programs.grouped,
        "dram_bandwidth l2_bandwidth global_latency",
        prior=0.4,
    ),
    rule(
        "triton-striding-programs",
        Category.PARALLELISM,
        programs.striding,
        "global_latency tail launch_overhead",
        prior=0.5,
    ),
    rule(
        "triton-several-rows",
        Category.COARSENING,
        programs.several_rows,
        "l2_bandwidth l1_throughput global_latency barriers launch_overhead",
        prior=0.7,
    ),
    rule("triton-counted-first", Category.PARALLELISM, hints.counted_first, "atomics", prior=3.0),
    rule(
        "triton-streaming-stores",
        Category.COMPILER_HINTS,
        hints.streaming_stores,
        "dram_bandwidth l2_bandwidth",
        prior=0.4,
    ),
    rule(
        "triton-eviction",
        Category.COMPILER_HINTS,
        hints.eviction,
        "dram_bandwidth l2_bandwidth l1_throughput",
        prior=0.4,
    ),
    rule(
        "triton-dot-precision",
        Category.TENSOR_CORES,
        hints.input_precision,
        "instruction_issue fp32_pipe tensor_pipe",
        prior=1.5,
    ),
)
