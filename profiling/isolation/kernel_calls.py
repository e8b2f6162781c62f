"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Final

X86_64: Final = "x86_64"
AARCH64: Final = "aarch64"


class RefusedByKernelError(OSError):
    """The kernel lacks a mechanism, or doesn't let this process use it."""


def architecture() -> str | None:
    """The machine's instruction set where we know its call numbers, else None; None off Linux too."""
    name = platform.machine() if sys.platform == "linux" and sys.maxsize > 1 << 32 else ""
    return name if name in {X86_64, AARCH64} else None


def call(name: str, number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """What a system call gives back. Raises RefusedByKernelError, with `name` in its message."""
    if sys.platform != "linux":
        raise RefusedByKernelError(f"{name}: this is not Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    widened = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *widened))
    if result < 0:
        raise _refusal(name)
    return result


def prctl(name: str, option: int, *arguments: int) -> int:
    """What `prctl` gives back. Raises RefusedByKernelError, with `name` in its message."""
    if sys.platform != "linux":
        raise RefusedByKernelError(f"{name}: this is not Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    four = [*arguments, 0, 0, 0, 0][:4]
    result = int(libc.prctl(ctypes.c_int(option), *map(ctypes.c_ulong, four)))
    if result < 0:
        raise _refusal(name)
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names for new ones. Raises RefusedByKernelError."""
    if sys.platform != "linux":
        raise RefusedByKernelError("unshare: this is not Linux")
    if ctypes.CDLL(None, use_errno=True).unshare(ctypes.c_int(flags)):
        raise _refusal("unshare")


def _refusal(name: str) -> RefusedByKernelError:
    number = ctypes.get_errno()
    return RefusedByKernelError(number, f"{name}: {os.strerror(number)}")
