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


def without_comments(ptx: str) -> str:
    """The text with a space for each comment, in a time that grows as its length does."""
    # Behind the last end of a comment each beginning of one would be followed to the end of the text.
    end = ptx.rfind("*/") + 2 if "*/" in ptx else 0
    return _COMMENT.sub(" ", ptx[:end]) + _LINE_COMMENT.sub(" ", ptx[end:])


_LINE_COMMENT = re.compile(r"//[^\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
