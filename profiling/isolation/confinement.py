"""Confining the running process for good, and which mechanisms this machine has.

A worker confines itself before it meets anything hostile. Every mechanism is tried; one that this machine lacks is
reported and the others are used. None can be undone, and all of them hold for what the process starts.

Run as `python -m mctskernel.profiling.isolation.confinement`, it confines itself and prints its mechanisms.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.profiling.isolation import landlock, seccomp
from mctskernel.profiling.isolation.kernel_calls import (
    AARCH64,
    X86_64,
    RefusedByKernelError,
    architecture,
    call,
    prctl,
    unshare,
)
from mctskernel.profiling.isolation.policy import Confinement

THREADS = 256
"""Threads that a process may have besides the programs that it may start, where they are counted together."""

OTHERS = 4096  # the same with what its user may start elsewhere meanwhile, where that is counted too
PROBE_SECONDS = 60.0

REMEDIES = {
    "Landlock": "Run on Linux 5.13 or newer (6.12 for everything) with Landlock switched on (lsm=landlock,... on the "
    "kernel's command line), in a container whose seccomp profile lets it through.",
    "seccomp": "Run on Linux on x86-64 or Arm with seccomp filters (CONFIG_SECCOMP_FILTER).",
    "process limit": "Run as an ordinary user: the limit on processes does not count for root.",
}
"""How to get a mechanism that is missing, by its name."""

_CAPSET = {X86_64: 126, AARCH64: 91}
_CAPABILITIES_VERSION = 0x20080522
_LAST_CAPABILITY = 63
_SET_DUMPABLE, _DROP_FROM_BOUNDING_SET, _NO_NEW_PRIVILEGES = 4, 24, 38
_NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x0800_0000, 0x1000_0000, 0x4000_0000


@dataclass(frozen=True)
class Mechanism:
    """One way to confine a process, whether it is in force in this one, and what the kernel said to it."""

    name: str
    in_force: bool
    detail: str = ""


def confine(policy: Confinement) -> tuple[Mechanism, ...]:
    """Confine this process for good. Returns what was tried, in order; raises nothing.

    Call it after imports and whatever else needs more than the policy gives, and before the first byte of a
    candidate is looked at. Open files stay open and mappings stay mapped. Landlock (the files) holds for the calling
    thread and what it starts, and only since Linux 7.0 for threads that run already.
    """
    return (
        _try("network namespace", leave_network),
        # Behind it: in a user namespace of our own no other processes are counted.
        _try("process limit", lambda: limit_processes(policy.processes)),
        _try("capabilities", lambda: drop_capabilities(policy.capabilities)),
        _try("no new privileges", forbid_new_privileges),
        _try("Landlock", lambda: f"version {landlock.restrict(policy).version}"),
        _try("hidden memory", hide_memory),
        _try("size limits", lambda: limit_sizes(policy.memory_bytes, policy.file_bytes)),
        _try("seccomp", lambda: seccomp.install(policy)),
    )


def _try(name: str, mechanism: Callable[[], str | None]) -> Mechanism:
    try:
        return Mechanism(name, in_force=True, detail=mechanism() or "")
    except (RefusedByKernelError, OSError, ValueError) as error:
        return Mechanism(name, in_force=False, detail=str(error))


def forbid_new_privileges() -> None:
    """Programs with a set-user-ID bit give nothing from now on. Raises RefusedByKernelError."""
    prctl("no new privileges", _NO_NEW_PRIVILEGES, 1)


def hide_memory() -> None:
    """Other processes of the same user can't read this one's memory, environment and descriptors any more."""
    prctl("hiding memory", _SET_DUMPABLE, 0)


def leave_network() -> str:
    """Enter new network and IPC namespaces before there are threads; returns how. Raises RefusedByKernelError."""
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
    mask = sum(1 << number for number in kept) & _permitted_capabilities()
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
    """Bound processes and threads; returns how, alone or among the user's. Raises RefusedByKernelError, as for root."""
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


def _permitted_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (lowest, lowest))


def try_mechanisms() -> tuple[Mechanism, ...]:
    """What a process that confined itself has in force; nothing where it couldn't even start."""
    with tempfile.TemporaryDirectory(prefix="mctskernel-probe-") as scratch:
        path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "mctskernel.profiling.isolation.confinement"],
                capture_output=True,
                cwd=scratch,
                env={"PYTHONPATH": path, "PATH": os.environ.get("PATH", "")},
                timeout=PROBE_SECONDS,
                check=True,
            )
            return msgspec.json.decode(done.stdout, type=tuple[Mechanism, ...])
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
            return ()


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(confine(Confinement(Path.cwd(), processes=1))))
