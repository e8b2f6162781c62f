"""Landlock: the kernel refuses a process and its children the files, ports and signals that no rule names.

Numbers and structures are those of linux/landlock.h; documented at https://docs.kernel.org/userspace-api/landlock.html.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError, architecture, call
from mctskernel.profiling.isolation.policy import Confinement, program_folders

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_ALL_THREADS = 1 << 3
_TCP = 0b11
_SIGNALS_AND_ABSTRACT_SOCKETS = 0b11


class Files(IntFlag):
    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_FOLDER = 1 << 3
    REMOVE_FOLDER = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHARACTER_DEVICE = 1 << 6
    MAKE_FOLDER = 1 << 7
    MAKE_FILE = 1 << 8
    MAKE_SOCKET = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK_DEVICE = 1 << 11
    MAKE_LINK = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    CONTROL_DEVICE = 1 << 15


_READ = Files.READ_FILE | Files.READ_FOLDER
_OF_A_FILE = Files.EXECUTE | Files.WRITE_FILE | Files.READ_FILE | Files.TRUNCATE | Files.CONTROL_DEVICE
_DEVICE = Files.READ_FILE | Files.WRITE_FILE | Files.TRUNCATE | Files.CONTROL_DEVICE
_SCRATCH = ~(Files.EXECUTE | Files.MAKE_CHARACTER_DEVICE | Files.MAKE_BLOCK_DEVICE | Files.CONTROL_DEVICE)


@dataclass(frozen=True)
class Abilities:
    """What this kernel's Landlock can refuse."""

    version: int

    @property
    def files(self) -> Files:
        newer = {2: Files.REFER, 3: Files.TRUNCATE, 5: Files.CONTROL_DEVICE}
        unknown = Files(0)
        for since, right in newer.items():
            if self.version < since:
                unknown |= right
        return ~unknown

    @property
    def tcp(self) -> bool:
        """Whether it can refuse to bind and connect."""
        return self.version >= 4

    @property
    def signals(self) -> bool:
        """Whether it can refuse signals to other processes and their abstract sockets."""
        return self.version >= 6


def abilities() -> Abilities:
    """What this kernel can do. Raises RefusedByKernelError when it has no Landlock."""
    if architecture() is None:
        raise RefusedByKernelError("Landlock: not on this kind of machine")
    return Abilities(call("Landlock", _CREATE_RULESET, None, 0, _VERSION_FLAG))


def restrict(policy: Confinement) -> Abilities:
    """Restrict this thread, its children and if possible all threads, for good. Raises RefusedByKernelError."""
    able = abilities()
    ruleset = _create_ruleset(able)
    try:
        _allow(ruleset, policy.readable, _READ & able.files)
        _allow(ruleset, program_folders(), (_READ | Files.EXECUTE) & able.files)
        _allow(ruleset, policy.read_and_written, _DEVICE & able.files)
        _allow(ruleset, (policy.scratch,), _SCRATCH & able.files)
        try:
            call("Landlock", _RESTRICT_SELF, ruleset, _ALL_THREADS)
        except RefusedByKernelError:
            call("Landlock", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return able


def _create_ruleset(able: Abilities) -> int:
    network = _TCP if able.tcp else 0
    scopes = _SIGNALS_AND_ABSTRACT_SOCKETS if able.signals else 0
    attribute = struct.pack("<QQQ", able.files, network, scopes)
    # An older kernel takes a shorter structure.
    size = 24 if able.signals else 16 if able.tcp else 8
    return call("Landlock", _CREATE_RULESET, ctypes.create_string_buffer(attribute, len(attribute)), size, 0)


def _allow(ruleset: int, paths: Iterable[Path], rights: Files) -> None:
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        folder = stat.S_ISDIR(os.fstat(opened).st_mode)
        granted = rights if folder else rights & _OF_A_FILE
        rule = struct.pack("<Qi", granted, opened)
        call("Landlock", _ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(rule, len(rule)), 0)
        # The folder /proc/self is forgotten under memory pressure, and its rule with it, unless it is held open.
        if not path.is_relative_to("/proc"):
            os.close(opened)
