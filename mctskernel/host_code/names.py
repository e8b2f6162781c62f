"""Names that nothing in a module has yet."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable

_NEVER = frozenset({*keyword.kwlist, *dir(builtins)})


class Names:
    """The names of a scope, and of what is seen from it; Python's own are taken from the start."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_NEVER, *taken}

    def fresh(self, wanted: str) -> str:
        """The wanted name, behind which underscores stand if it is taken; it is taken from now on."""
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted
