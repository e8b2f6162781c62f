"""Linear algebra on one thread: tables of some hundred rows take longer to share out among cores than to work out.

Threads that wait for each other's part also take cores from the compilers, and what a sum comes to depends on how many
there are: the same seed would give another tree on another machine.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def on_one_thread() -> AbstractContextManager[Any]:
    """Meanwhile, in this whole process."""
    limited: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
