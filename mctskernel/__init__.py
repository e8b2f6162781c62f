"""Monte Carlo tree search over edits of GPU kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mctskernel.api import compare, evaluate, load_run, search

__version__ = "0.2.0"
__all__ = ["__version__", "compare", "evaluate", "load_run", "search"]


def __getattr__(name: str) -> object:
    """A public name, imported when it is first asked for: commands that don't need it start without it."""
    if name in __all__:
        return getattr(import_module("mctskernel.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
