"""Other values for the macros that choose tile sizes, block sizes, unroll factors and items per thread."""

from __future__ import annotations

RULES = ()
