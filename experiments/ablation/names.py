"""Complaints about names that a configuration misspells, with the nearest one that exists."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AblationError(ValueError):
    """A configuration, or a folder of trials, that can't be used as asked; the message is a sentence."""


def check_name(name: str, known: Iterable[str], what: str) -> None:
    """Raises AblationError for a name that isn't known; `what` is its kind, as in "There is no WHAT 'NAME'"."""
    names = list(known)
    if name not in names:
        raise AblationError(f"There is no {what} '{name[:80]}'{_instead(name, names)}")


def _instead(name: str, names: list[str]) -> str:
    lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    if close:
        return f". Did you mean '{lower[close[0]]}'?"
    return f"; there are {', '.join(names)}." if names else "."
