"""Complaints about names that somebody misspelt, with the nearest one that exists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(name: str, known: Iterable[str], what: str) -> str:
    """A sentence about a name that isn't among the known ones; empty for one that is.

    `what` is its kind, as in "There is no WHAT 'NAME'".
    """
    names = list(known)
    return "" if name in names else f"There is no {what} '{name[:80]}'{_instead(name, names)}"


def _instead(name: str, names: list[str]) -> str:
    lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    if close:
        return f". Did you mean '{lower[close[0]]}'?"
    return f"; there are {', '.join(names)}." if names else "."
