"""Privileges, namespaces and limits that a process gives up."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from pathlib import Path

from mctskernel.profiling.isolation.kernel_calls import (
    AARCH64,
    X86_64,
    RefusedByKernelError,
    architecture,
    call,
    prctl,
    unshare,
)

_CAPSET = {X86_64: 126, AARCH64: 91}
_CAPABILITIES_VERSION = 0x20080522
_LAST_CAPABILITY = 63
_SET_DUMPABLE, _DROP_FROM_BOUNDING_SET, _NO_NEW_PRIVILEGES = 4, 24, 38
_NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x0800_0000, 0x1000_0000, 0x4000_0000

THREADS = 256
"""Threads that a process may have besides the programs that it may start, where they are counted together."""
OTHERS = 4096
"""The same with what its user may start elsewhere meanwhile, where that is counted too."""


def forbid_new_privileges() -> None:
    """Programs with a set-user-ID bit give nothing from now on. Raises RefusedByKernelError."""
    prctl("no new privileges", _NO_NEW_PRIVILEGES, 1)


def hide_memory() -> None:
    """Other processes of the same user can't read this one's memory, environment and descriptors any more."""
    prctl("hiding memory", _SET_DUMPABLE, 0)


def leave_network() -> str:
    """Go to a network and an inter-process namespace of one's own; how. Raises RefusedByKernelError.

    Must be called before there are threads, except by root.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(_NEW_NETWORK | _NEW_IPC)
    except RefusedByKernelError:
        unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        return "user namespace"
    return "root's rights"


def drop_capabilities(kept: tuple[int, ...]) -> None:
    """Give up root's rights except those kept, for the calling thread and what it starts."""
    machine = architecture()
    if machine is None:
        raise RefusedByKernelError("capabilities: not on this kind of machine")
    for number in range(_LAST_CAPABILITY + 1):
        if number not in kept:
            try:
                prctl("capabilities", _DROP_FROM_BOUNDING_SET, number)
            except RefusedByKernelError:
                break  # the last one that this kernel knows, or not root
    mask = sum(1 << number for number in kept) & _permitted()
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("<Ii", _CAPABILITIES_VERSION, 0)
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    call(
        "capabilities",
        _CAPSET[machine],
        ctypes.create_string_buffer(header),
        ctypes.create_string_buffer(data),
    )


def limit_sizes(memory_bytes: int | None, file_bytes: int) -> None:
    """No more memory of its own than `memory_bytes`, no file over `file_bytes`, no core dump."""
    if memory_bytes is not None:
        # Data, not address space: a CUDA context reserves far more addresses than it uses memory.
        _lower(resource.RLIMIT_DATA, memory_bytes)
    _lower(resource.RLIMIT_FSIZE, file_bytes)
    _lower(resource.RLIMIT_CORE, 0)


def limit_processes(processes: int) -> str:
    """Bound processes and threads to `processes` and THREADS, and how: alone, or among the user's others.

    Raises RefusedByKernelError for root, whose processes the kernel doesn't count.
    """
    if os.getuid() == 0:
        raise RefusedByKernelError("the kernel doesn't count the processes of root")
    _, _, users = Path("/proc/self/uid_map").read_text().split()[:3]
    if users == "1":
        _lower(resource.RLIMIT_NPROC, processes + THREADS)
        return "alone"
    running = sum(map(_threads, Path("/proc").glob("[0-9]*")))
    _lower(resource.RLIMIT_NPROC, running + processes + OTHERS)
    return "among others"


def _threads(process: Path) -> int:
    try:
        if process.stat().st_uid != os.getuid():
            return 0
        return sum(1 for _ in (process / "task").iterdir())
    except OSError:
        return 0


def _permitted() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (lowest, lowest))
