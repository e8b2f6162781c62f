"""Complaints about names that a configuration misspells."""

from __future__ import annotations

from collections.abc import Iterable

from mctskernel.core.names import unknown_name
from mctskernel.core.user_errors import MisuseError


class AblationError(MisuseError, ValueError):
    """A configuration, or a folder of trials, that can't be used as asked; the message is a sentence."""


def check_name(name: str, known: Iterable[str], what: str) -> None:
    """Raises AblationError for a name that isn't known; `what` is its kind, as in "There is no WHAT 'NAME'"."""
    if sentence := unknown_name(name, known, what):
        raise AblationError(sentence)
