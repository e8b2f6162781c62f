"""What can be stored: candidates, compilers and models write what JSON and UTF-8 can't hold."""

from __future__ import annotations

import math
import sys
from typing import Any


def storable_text(text: str) -> str:
    """The text with unpaired surrogates as question marks."""
    return text.encode(errors="replace").decode()


def storable(value: Any) -> Any:
    """Built-in data, its texts storable, infinities and NaN as the largest double of their sign."""
    match value:
        case dict():
            return {storable(key): storable(item) for key, item in value.items()}
        case list() | tuple():
            return [storable(item) for item in value]
        case str():
            return storable_text(value)
        case float() if not math.isfinite(value):
            return math.copysign(sys.float_info.max, value)
    return value
