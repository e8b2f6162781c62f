"""Monte Carlo tree search over edits of GPU kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mctskernel.report.notebook import load_run

__version__ = "0.1.0"
__all__ = ["__version__", "load_run"]


def __getattr__(name: str) -> object:
    """`load_run`, imported when it is first asked for: commands that don't need it start without it."""
    if name == "load_run":
        return import_module("mctskernel.report.notebook").load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
