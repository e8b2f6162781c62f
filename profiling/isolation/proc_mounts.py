"""Letting processes name their threads, which takes the right to write beneath /proc, and nothing more with it.

Drivers of CUDA since 570 write the names of their threads to /proc/PID/task/TID/comm as they start, and fail where they
may not. A rule of Landlock for these files alone can't be had: it would have to name each process before it exists. So
the right is had for all of /proc, where an ordinary user owns nothing but the files of its processes. Root owns the
settings of the kernel too; for root they are made read-only, as container runtimes do.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from mctskernel.profiling.isolation import seccomp
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError, architecture, call, unshare

PROC = Path("/proc")

_NEW_MOUNTS = 0x0002_0000
# Numbers of the calls, the same on x86-64 and on aarch64; what they take is from linux/mount.h and linux/fcntl.h.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_WORKING_FOLDER = -100
_RECURSIVE, _EMPTY_PATH, _CLONE, _FROM_EMPTY_PATH = 0x8000, 0x1000, 1, 4
_READ_ONLY, _PRIVATE = 1, 1 << 18


def keep_all_but_processes() -> str:
    """Leave nothing beneath /proc to this process's user but the files of its processes, for good; how.

    To be called while root still has its rights, and before there are threads. Raises RefusedByKernelError where root
    can't have it so.
    """
    if 0 not in os.getresuid():
        return "only root may change them"
    if architecture() is None:
        raise RefusedByKernelError("mounts: not on this kind of machine")
    _refuse_second_way()
    unshare(_NEW_MOUNTS)
    # What is mounted here from now on is seen in this namespace alone.
    _set_attributes(_WORKING_FOLDER, Path("/"), propagation=_PRIVATE)
    for entry in sorted(PROC.iterdir()):
        if not entry.name.isdecimal() and not entry.is_symlink():
            _make_read_only(entry)
    seccomp.forbid_mounts()
    return "read-only mounts"


def _make_read_only(path: Path) -> None:
    tree = call("open_tree", _OPEN_TREE, _WORKING_FOLDER, _text(path), _CLONE | _RECURSIVE | os.O_CLOEXEC)
    try:
        _set_attributes(tree, None, attributes=_READ_ONLY)
        call("move_mount", _MOVE_MOUNT, tree, _text(None), _WORKING_FOLDER, _text(path), _FROM_EMPTY_PATH)
    finally:
        os.close(tree)


def _set_attributes(folder: int, path: Path | None, *, attributes: int = 0, propagation: int = 0) -> None:
    """Of a mount and all that are beneath it, by its path, or by what is open of it."""
    wanted = struct.pack("<4Q", attributes, 0, propagation, 0)
    flags = _RECURSIVE | (_EMPTY_PATH if path is None else 0)
    buffer = ctypes.create_string_buffer(wanted, len(wanted))
    call("mount_setattr", _MOUNT_SETATTR, folder, _text(path), flags, buffer, len(wanted))


def _refuse_second_way() -> None:
    """Another name of the same /proc, in a folder for `chroot` for instance, would lead past what is read-only."""
    device = PROC.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        _, _, found, _, where, *_ = line.split()
        if found == wanted and where != str(PROC) and not where.startswith(f"{PROC}/"):
            raise RefusedByKernelError(f"mounts: /proc is at {where} too")


def _text(path: Path | None) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(os.fsencode(path) if path is not None else b"")
