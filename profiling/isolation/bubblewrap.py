"""Bubblewrap: starts a process that sees only the files of its policy, no other process, and no network.

Where `bwrap` is installed and may make user namespaces, it adds to what a process can refuse itself: the files of the
policy are the only ones that exist, and stop_reason the first process of its namespace ends whatever it has started.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from mctskernel.profiling.isolation.policy import Confinement, program_folders

PROBE_SECONDS = 10.0
_NAMESPACES = (
    "--unshare-user",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
_MADE_BY_BUBBLEWRAP = (Path("/proc"), Path("/dev"))


@functools.cache
def find_bubblewrap() -> str | None:
    """The path of a bubblewrap that works for this user; None when there is none. Tries it once: 10 to 30 ms."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    probe = [path, *_NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=PROBE_SECONDS, check=False)  # noqa: S603 - bwrap
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


def bubblewrap_command(bubblewrap: str, policy: Confinement, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs another one under a policy. It inherits our descriptors and environment.

    Programs in links to other folders (`/bin` to `/usr/bin`) stay reachable by both names.
    """
    arguments = [bubblewrap, "--die-with-parent", *_NAMESPACES, "--proc", "/proc", "--dev", "/dev"]
    for folder in _LINKED:
        if folder.is_symlink():
            arguments += ["--symlink", str(folder.readlink()), str(folder)]
    bound = {path for path in (*policy.readable, *program_folders()) if not _made(path)}
    # A folder before what is in it, or it would be hidden.
    for path in sorted(bound):
        arguments += ["--ro-bind-try", str(path), str(path)]
    for device in policy.devices:
        arguments += ["--dev-bind-try", str(device), str(device)]
    scratch = str(policy.scratch)
    arguments += ["--bind", scratch, scratch, "--chdir", scratch, "--"]
    return (*arguments, *command)


_LINKED = tuple(map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64")))


def _made(path: Path) -> bool:
    return any(path.is_relative_to(each) for each in _MADE_BY_BUBBLEWRAP)
