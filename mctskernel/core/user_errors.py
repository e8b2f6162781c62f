"""Errors whose message is a sentence for the user: what is wrong, where, and what to do about it.

The command line prints the sentence and exits with the class's `exit_code`. Every error of that kind in the project
derives from one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class UserError(Exception):
    """Something that the user can put right."""

    exit_code: ClassVar[int] = 2


class MisuseError(UserError):
    """A request for something that does not exist or can't be done in this way."""


class BadTaskError(UserError):
    """A task that can't be used."""

    exit_code = 3


class RunError(UserError):
    """A run folder, or another file of results, that can't be read, written or used."""

    exit_code = 4


class BadMachineError(UserError):
    """A machine that lacks something that is needed."""

    exit_code = 5


class NoKernelError(UserError):
    """No correct kernel was found."""

    exit_code = 6


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like a misspelt one; None if none is like it."""
    lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name[:80].lower(), lower, n=1)
    return lower[close[0]] if close else None
