"""Memory that a process frees and asks for again: kept, where it would go back to the system each time."""

from __future__ import annotations

import ctypes

KEPT_BYTES = 256 << 20
LARGEST_BYTES = 32 << 20
"""The most that the C library lets one block have that isn't mapped anew."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""


def keep_freed_memory() -> None:
    """Have this process's allocator keep what is freed, up to 256 MiB of it, where it is glibc's.

    To judge a kernel is to allocate the same arrays of some megabytes again and again: left alone, glibc maps them anew
    every time, and clearing their pages takes twice as long as what is computed in them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
