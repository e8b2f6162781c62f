"""Figures that pages quote from results, as far as they say so, held against the files that they are from.

A page says so in comments that nobody sees rendered. One names words that both have, the other stands below a table
all of whose figures but those of the first column are in the files, rounded as in the table:

    <!-- quotes results/suite_h100.md: "435.25x", "41.03x" -->
    <!-- figures from results/suite_h100.md results/rules_h100.md -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_QUOTES = re.compile(r"<!-- quotes (\S+): (.*?) -->", re.DOTALL)
_WORDS = re.compile(r'"([^"]+)"')
_TABLE = re.compile(r"((?:^\|.*\n)+)\n*<!-- figures from (.*?) -->", re.MULTILINE)
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")


def misquoted(page: Path) -> Iterator[str]:
    """A sentence for each figure that isn't in the result, or not on the page any more."""
    text = page.read_text(encoding="utf-8")
    said = " ".join(_QUOTES.sub("", text).split())
    for name, words in _QUOTES.findall(text):
        held = _text(page, name)
        for quoted in _WORDS.findall(words):
            if quoted not in held:
                yield f'{page.name} quotes "{quoted}" from {name}, which doesn\'t say so.'
            if quoted not in said:
                yield f'{page.name} says that it quotes "{quoted}" from {name}, and doesn\'t.'
    for table, names in _TABLE.findall(text):
        known = [
            float(each.replace(",", ""))
            for name in names.split()
            for each in _FIGURE.findall(_text(page, name))
        ]
        for figure in _figures(table):
            # What is rounded again may be a half away.
            half = 0.5001 * 10 ** -len(figure.partition(".")[2])
            if all(abs(each - float(figure.replace(",", ""))) > half for each in known):
                yield f"{page.name} has {figure} in a table, which {names} don't say."


def _text(page: Path, name: str) -> str:
    source = page.parent / name
    return source.read_text(encoding="utf-8") if source.exists() else ""


def _figures(table: str) -> Iterator[str]:
    for row in table.splitlines()[2:]:
        yield from _FIGURE.findall(" ".join(row.split("|")[2:]))
