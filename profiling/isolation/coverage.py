"""What isolation covers on this machine, in its user's words: found by confining a process and asking what holds.

Run as `python -m mctskernel.profiling.isolation.coverage`, it confines itself and prints its mechanisms.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.profiling.isolation.bubblewrap import find_bubblewrap
from mctskernel.profiling.isolation.confinement import Mechanism, confine
from mctskernel.profiling.isolation.policy import Confinement

PROBE_SECONDS = 60.0

KERNEL_WITH_LANDLOCK = (
    "Run on Linux 5.13 or newer (6.12 for everything) with Landlock switched on (lsm=landlock,... on the kernel's "
    "command line), in a container whose seccomp profile lets it through, or install bubblewrap."
)
SYSTEM_WITH_SECCOMP = "Run on Linux on x86-64 or Arm with seccomp filters (CONFIG_SECCOMP_FILTER)."
NOT_ROOT = "Run as an ordinary user: the limit on processes does not count for root."
MAY_MOUNT = "Run `mctskernel serve` as an ordinary user, or where root may mount (CAP_SYS_ADMIN)."
GPU_OF_ONES_OWN = "Use a GPU or a MIG slice that nobody else uses while you search."

_MECHANISMS = msgspec.json.Decoder(tuple[Mechanism, ...])


@dataclass(frozen=True)
class Aspect:
    """One thing that a candidate must not do, by what it is kept from it, or why it isn't and what would help."""

    name: str
    covered: bool
    detail: str
    remedy: str = ""


def isolation() -> tuple[Aspect, ...]:
    """What is and isn't covered here; starts a process, which takes about 0.2 s."""
    return aspects(try_mechanisms(), bubblewrap=find_bubblewrap())


def try_mechanisms() -> tuple[Mechanism, ...]:
    """What a process that confined itself has in force; nothing where it couldn't even start."""
    with tempfile.TemporaryDirectory(prefix="mctskernel-probe-") as scratch:
        path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", __name__],
                capture_output=True,
                cwd=scratch,
                env={"PYTHONPATH": path, "PATH": os.environ.get("PATH", "")},
                timeout=PROBE_SECONDS,
                check=True,
            )
            return _MECHANISMS.decode(done.stdout)
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
            return ()


def aspects(mechanisms: tuple[Mechanism, ...], *, bubblewrap: str | None) -> tuple[Aspect, ...]:
    """What mechanisms cover together."""
    detail = {each.name: each.detail for each in mechanisms if each.in_force}
    landlock, seccomp, namespace = "Landlock" in detail, "seccomp" in detail, "network namespace" in detail
    version = int(detail["Landlock"].rpartition(" ")[2]) if landlock else 0
    wrapper = "bubblewrap (not for the process that holds a GPU)" if bubblewrap else ""
    files = _by(wrapper, "Landlock" if landlock else "")
    network = _by(wrapper, "seccomp" if seccomp else "", "a namespace" if namespace else "")
    signals = _by(wrapper, "Landlock" if version >= 6 else "")
    counted = "process limit" in detail
    why = "".join(f" ({each.detail})" for each in mechanisms if each.name == "thread names")
    in_session = "they end with their worker, but root's are not counted"
    return (
        _aspect("network", network, "candidates can reach it", SYSTEM_WITH_SECCOMP),
        _aspect(
            "writing outside their folder", files, "candidates can write what you can", KERNEL_WITH_LANDLOCK
        ),
        _aspect("reading your files", files, "candidates can read what you can", KERNEL_WITH_LANDLOCK),
        Aspect("your environment", covered=True, detail="only what libraries need is passed on, no keys"),
        Aspect("your open files", covered=True, detail="closed, except each worker's own channel"),
        Aspect(
            "the kernel's settings, from sessions on a GPU",
            covered="thread names" in detail,
            detail=detail.get("thread names", f"they would not be, so that sessions can't use one{why}"),
            remedy="" if "thread names" in detail else MAY_MOUNT,
        ),
        _aspect("memory of other processes", files, "only mctskernel's own is hidden", KERNEL_WITH_LANDLOCK),
        _aspect(
            "signals to other processes", signals, "your other processes can be ended", KERNEL_WITH_LANDLOCK
        ),
        Aspect(
            "number of processes",
            covered=counted,
            detail="counted by the kernel" if counted else in_session,
            remedy="" if counted else NOT_ROOT,
        ),
        Aspect(
            "disk and memory",
            covered="size limits" in detail,
            detail="limits of a process, and of its folder",
        ),
        Aspect(
            "what ncu and compute-sanitizer may do",
            covered=False,
            detail="they aren't confined, and the kernels that they replay are where they can work so",
            remedy="Profile kernels of untrusted origin in a container.",
        ),
        Aspect(
            "GPU memory and time of neighbours",
            covered=False,
            detail="a kernel can read what earlier work left there, and hold the GPU until it is ended",
            remedy=GPU_OF_ONES_OWN,
        ),
    )


def _aspect(name: str, by: str, gap: str, remedy: str) -> Aspect:
    return (
        Aspect(name, covered=True, detail=by)
        if by
        else Aspect(name, covered=False, detail=gap, remedy=remedy)
    )


def _by(*mechanisms: str) -> str:
    return ", ".join(filter(None, mechanisms))


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(confine(Confinement(Path.cwd(), processes=1, names_threads=True)))
    )
