"""Matmul-shaped loop nests: shared-memory tiles, register blocks, wide loads, double buffers."""

from __future__ import annotations

from mctskernel.edits.rules.matmul import register_blocking, tiling, wide_staging

RULES = (*tiling.RULES, *register_blocking.RULES, *wide_staging.RULES)
