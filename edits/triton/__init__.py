"""Rules that edit Triton modules: Python's syntax tree says where, and the text around an edit stays as it is.

`ALL` is every rule; a new one is registered by adding its module's `RULES` here.
"""

from __future__ import annotations

from mctskernel.edits.rule import Rule
from mctskernel.edits.triton import (
    arithmetic,
    atomics,
    hints,
    loops,
    order,
    precision,
    reductions,
    rows,
    split,
    tuning,
    whole_rows,
)
from mctskernel.edits.triton.context import TritonContext

ALL: tuple[Rule[TritonContext], ...] = (
    *tuning.RULES,
    *whole_rows.RULES,
    *reductions.RULES,
    *arithmetic.RULES,
    *loops.RULES,
    *order.RULES,
    *rows.RULES,
    *atomics.RULES,
    *hints.RULES,
    *precision.RULES,
    *split.RULES,
)
