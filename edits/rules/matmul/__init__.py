"""Matmul-shaped loop nests: shared-memory tiles, register blocks, wide loads, double buffers."""

from __future__ import annotations

from mctskernel.edits.rules.matmul import (
    register_blocking,
    tensor_cores,
    tensor_pipeline,
    tiling,
    wide_staging,
)

RULES = (
    *tiling.RULES,
    *register_blocking.RULES,
    *tensor_cores.RULES,
    *tensor_pipeline.RULES,
    *wide_staging.RULES,
)
