"""CUDA C++ that rules write: `templates/NAME.cu`, with a `$hole` for each thing that differs from kernel to kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "templates"
_WORD = re.compile(r"\$?\w+")


def filled(template: str, names: Mapping[str, str], holes: Mapping[str, str | Iterable[str]]) -> list[str]:
    """The lines of a template with its holes filled, and with other names in place of some identifiers.

    Lines that fill a hole which has a line for itself are indented as it is.
    """
    lines: list[str] = []
    for line in _read(template):
        hole = line.strip().removeprefix("$")
        value = holes.get(hole) if line.strip() == f"${hole}" else None
        if value is None or isinstance(value, str):
            lines.append(_filled(line, names, holes))
        else:
            margin = line[: line.index("$")]
            lines += [f"{margin}{each}" if each else each for each in value]
    return lines


def function_text(template: str, names: Mapping[str, str], **holes: str) -> str:
    """A template of functions as one text."""
    return "\n".join(filled(template, names, holes))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A piece of code with other names in place of some identifiers."""
    return _filled(text, names, {})


@cache
def _read(template: str) -> tuple[str, ...]:
    return tuple((FOLDER / f"{template}.cu").read_text().splitlines())


def _filled(line: str, names: Mapping[str, str], holes: Mapping[str, str | Iterable[str]]) -> str:
    def replacement(match: re.Match[str]) -> str:
        word = match[0]
        return str(holes[word[1:]]) if word.startswith("$") else names.get(word, word)

    return _WORD.sub(replacement, line)
