"""A hostile program: it is confined as a worker is, tries every way out, and prints what came of each as JSON.

Run as `python hostile.py TARGETS ABSENT`, both JSON: what to attack, and the mechanisms that this run does without.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mctskernel.profiling.isolation import confinement, landlock, seccomp
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.isolation.policy import Confinement

MECHANISMS = {
    "Landlock": (landlock, "restrict"),
    "seccomp": (seccomp, "install"),
    "network namespace": (confinement, "leave_network"),
    "capabilities": (confinement, "drop_capabilities"),
    "size limits": (confinement, "limit_sizes"),
    "hidden memory": (confinement, "hide_memory"),
}
FILE_BYTES = 1 << 20
PTRACE_SEIZE = 0x4206


def absent(name: str) -> None:
    """Let a mechanism be as on a machine that lacks it."""

    def refuse(*_: object) -> None:
        raise RefusedByKernelError(f"{name} is switched off")

    module, function = MECHANISMS[name]
    setattr(module, function, refuse)


Attempts = dict[str, Callable[[], object]]
"""Each raises OSError when it is refused."""

LIBC = ctypes.CDLL(None, use_errno=True)


def on_the_network(targets: dict[str, Any]) -> Attempts:
    """Talk to somebody."""
    udp = ("127.0.0.1", targets["udp"])
    return {
        "connect": lambda: connect(socket.AF_INET, ("127.0.0.1", targets["tcp"])),
        "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"secret", udp),
        "connect to a socket in a folder": lambda: connect(socket.AF_UNIX, targets["socket"]),
        "connect to an abstract socket": lambda: connect(socket.AF_UNIX, targets["abstract"]),
    }


def on_files(targets: dict[str, Any]) -> Attempts:
    """Read and change what is not ours."""
    secret, outside = Path(targets["secret"]), Path(targets["outside"])
    return {
        "read a secret": secret.read_text,
        "list a home": lambda: list(secret.parent.iterdir()),
        "write outside": lambda: (outside / "planted").write_text("x"),
        "write over": lambda: secret.write_text("changed"),
        "remove": (outside / "precious").unlink,
        "rename into reach": lambda: secret.rename("taken"),
        "truncate": lambda: os.truncate(outside / "long", 0),
        "fill the disk": fill,
    }


def on_processes(targets: dict[str, Any]) -> Attempts:
    """Look into, stop and disturb another process, and have children."""
    victim = targets["victim"]
    namespace = 0x0400_0000 if os.geteuid() == 0 else 0x1000_0000
    return {
        "read the environment of another": Path(f"/proc/{victim}/environ").read_bytes,
        "read the command line of another": Path(f"/proc/{victim}/cmdline").read_bytes,
        "open a descriptor of another": lambda: Path(f"/proc/{victim}/fd/0").open().close(),
        "read the memory of another": lambda: read_memory(victim, targets["address"]),
        "trace another": lambda: checked(LIBC.ptrace(PTRACE_SEIZE, victim, None, None)),
        "signal another": lambda: os.kill(victim, signal.SIGWINCH),
        "have another signalled": lambda: have_signalled(victim),
        "limit another": lambda: resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)),
        "hold another back": lambda: os.sched_setaffinity(victim, os.sched_getaffinity(victim)),
        "fork": fork,
        "leave the session": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, setsid=True), 0),
        "share memory by name": lambda: checked(LIBC.shmget(0, 4096, 0o1600)),
        "make a namespace": lambda: checked(LIBC.unshare(namespace)),
    }


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def connect(family: int, address: Any) -> None:
    with socket.socket(family) as connection:
        connection.connect(address)


def read_memory(victim: int, address: int) -> int:
    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    room = ctypes.create_string_buffer(8)
    here, there = Piece(ctypes.addressof(room), 8), Piece(address, 8)
    return checked(LIBC.process_vm_readv(victim, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def have_signalled(victim: int) -> None:
    read, _ = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, victim)


def fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def fill() -> None:
    with Path("filling").open("wb", buffering=0) as file:
        for _ in range(3):
            if file.write(bytes(FILE_BYTES)) != FILE_BYTES:
                raise OSError("cut short")


def main() -> None:
    """Confine, attack, report."""
    targets, missing = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    for name in missing:
        absent(name)
    mechanisms = confine(Confinement(Path.cwd(), file_bytes=FILE_BYTES, processes=targets["processes"]))
    found: dict[str, str] = {}
    attempts = on_the_network(targets) | on_files(targets) | on_processes(targets)
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "done"
        except OSError as error:
            found[name] = f"refused: {error}"
    in_force = [each.name for each in mechanisms if each.in_force]
    print(json.dumps({"in force": in_force, "attempts": found}))


if __name__ == "__main__":
    main()
