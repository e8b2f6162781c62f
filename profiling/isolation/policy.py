"""What a confined process may still do."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

READABLE_VARIABLE = "MCTSKERNEL_READABLE"
"""Further files and folders that workers may read, such as data that a task's reference loads; split like PATH."""

CAP_SYS_ADMIN, CAP_PERFMON = 21, 38

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store")
_SETTINGS = (
    "alternatives",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "timezone",
)
_MACHINE = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/driver",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/version",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/module",
)
_SOURCES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CUDA_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_GPU_NODES = ("nvidia*", "nvidia-caps/*", "dxg", "dri/*")


@dataclass(frozen=True)
class Confinement:
    """What a process may do besides running the programs that are installed; the rest is refused.

    `scratch` is the only folder in which it may write. `reads` are files and folders that it may read besides the
    interpreter, its packages, the system's libraries and CUDA; `devices` are device nodes that it may use.
    `processes` is how many programs it may have running besides itself (0: it can't start any). `memory_bytes` is
    the most memory of its own, `file_bytes` the largest file. `capabilities` are numbers of those that a process of
    root keeps; all others are dropped.
    """

    scratch: Path
    reads: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    processes: int = 0
    memory_bytes: int | None = None
    file_bytes: int = 1 << 30
    capabilities: tuple[int, ...] = ()

    @property
    def readable(self) -> tuple[Path, ...]:
        """What may be read besides programs, resolved; only what exists."""
        named = (each for each in os.environ.get(READABLE_VARIABLE, "").split(os.pathsep) if each)
        settings = (f"/etc/{name}" for name in _SETTINGS)
        return _existing((*self.reads, *map(Path, (*named, *_MACHINE, *settings))))

    @property
    def read_and_written(self) -> tuple[Path, ...]:
        """The devices that it may use, harmless ones included; only those that exist."""
        return _existing((*map(Path, _SOURCES), *self.devices))


def gpu_devices() -> tuple[Path, ...]:
    """The device nodes through which CUDA reaches this machine's GPUs."""
    return tuple(sorted(found for pattern in _GPU_NODES for found in Path("/dev").glob(pattern)))


def counter_capabilities() -> tuple[int, ...]:
    """The rights of root without which this machine's driver gives no GPU counters; none where anybody gets them."""
    try:
        settings = Path("/proc/driver/nvidia/params").read_text()
    except OSError:
        return ()
    return (CAP_SYS_ADMIN, CAP_PERFMON) if "RmProfilingAdminOnly: 1" in settings else ()


def program_folders() -> tuple[Path, ...]:
    """Folders of the system, Python, its packages and CUDA; never one of `sys.path` that holds the user's home."""
    folders = {
        *map(Path, _SYSTEM),
        *(Path(each) for each in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)),
        *(Path(each) for each in sysconfig.get_paths().values()),
        *(Path(each) for each in sys.path),
        *(Path(os.environ[name]) for name in _CUDA_VARIABLES if os.environ.get(name)),
        *(Path(each) for each in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if each),
        # An editable install, and the folders that a package's symbolic links lead to.
        Path(__file__).resolve().parents[2],
    }
    if site.ENABLE_USER_SITE:
        folders.add(Path(site.getusersitepackages()))
    homes = {_home(), Path("/"), Path("/root"), Path("/home"), Path("/tmp")}  # noqa: S108 - to keep out of it
    return tuple(
        sorted(
            folder
            for each in folders
            if (folder := each.resolve()).exists()
            and not any(home == folder or folder in home.parents for home in homes)
        )
    )


def _home() -> Path:
    try:
        import pwd  # noqa: PLC0415 - not on every system

        return Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except (ImportError, KeyError):
        return Path.home().resolve()


def _existing(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    # /proc/self is kept as it is: what it leads to is another folder in every process.
    return tuple(
        dict.fromkeys(
            path if path.is_relative_to("/proc") else path.resolve() for path in paths if path.exists()
        )
    )
