"""What a PTX module declares, read off its text."""

from __future__ import annotations

import re

_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|common)[ \t]+)?\.global\b[^;={]*?([A-Za-z_$][\w$]*)(?:\[\d*\])*[ \t]*[;=]",
    re.M,
)


def global_variables(ptx: str) -> tuple[str, ...]:
    """The names of the variables in global memory that a module defines: `__device__` ones keep their values."""
    return tuple(dict.fromkeys(_VARIABLE.findall(ptx)))
