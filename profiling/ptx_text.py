"""What a PTX module declares, read off its text."""

from __future__ import annotations

import re

_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|common)[ \t]+)?\.(?:global|const)\b[^;={]*?([A-Za-z_$][\w$]*)(?:\[\d*\])*[ \t]*[;=]",
    re.M,
)


def variables(ptx: str) -> tuple[str, ...]:
    """The names of the variables that a module defines: `__device__` and `__constant__` ones keep their values."""
    return tuple(dict.fromkeys(_VARIABLE.findall(ptx)))
