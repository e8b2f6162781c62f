"""Attention whose blocks keep the weights of one query: many queries a block, on tensor cores, in one pass."""

from __future__ import annotations

from mctskernel.edits.rules.attention.tiled import RULES

__all__ = ["RULES"]
