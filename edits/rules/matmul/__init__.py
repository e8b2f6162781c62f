"""Matmul-shaped loop nests: shared-memory tiles, register blocks, wide loads, double buffers."""

from __future__ import annotations

from mctskernel.edits.rules.matmul import register_blocking, tensor_cores, tiling, wide_staging

RULES = (*tiling.RULES, *register_blocking.RULES, *tensor_cores.RULES, *wide_staging.RULES)
