"""A hostile program: it is confined as a worker is, tries every way out, and prints what came of each as JSON.

Run as `python hostile.py TARGETS ABSENT`, both JSON: what to attack, and the mechanisms that this run does without.
"""

from __future__ import annotations

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

from mctskernel.profiling.isolation import landlock, privileges, seccomp
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.isolation.policy import Confinement

MECHANISMS = {
    "Landlock": (landlock, "restrict"),
    "seccomp": (seccomp, "install"),
    "network namespace": (privileges, "leave_network"),
    "capabilities": (privileges, "drop_capabilities"),
    "size limits": (privileges, "limit_sizes"),
    "hidden memory": (privileges, "hide_memory"),
}
FILE_BYTES = 1 << 20
PTRACE_SEIZE = 0x4206


def absent(name: str) -> None:
    """Let a mechanism be as on a machine that lacks it."""

    def refuse(*_: object) -> None:
        raise RefusedByKernelError(f"{name} is switched off")

    module, function = MECHANISMS[name]
    setattr(module, function, refuse)


def attempts(targets: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Each raises OSError when it is refused."""
    victim = targets["victim"]
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "refused")
        return result

    def connect(family: int, address: Any) -> None:
        with socket.socket(family) as connection:
            connection.connect(address)

    def send_datagram() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.sendto(b"secret", ("127.0.0.1", targets["udp"]))

    def read_memory() -> int:
        class Piece(ctypes.Structure):
            _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

        room = ctypes.create_string_buffer(8)
        here, there = Piece(ctypes.addressof(room), 8), Piece(targets["address"], 8)
        return checked(libc.process_vm_readv(victim, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))

    def have_signalled() -> None:
        read, write = os.pipe()
        fcntl.fcntl(read, fcntl.F_SETOWN, victim)
        fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGWINCH)
        fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
        os.write(write, b"x")

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def leave_session() -> None:
        read, write = os.pipe()
        child = os.posix_spawn("/bin/true", ["true"], {}, setsid=True)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)

    def fill() -> None:
        # The limit is a signal too, which Python ignores.
        with Path("filling").open("wb", buffering=0) as file:
            for _ in range(3):
                if file.write(bytes(FILE_BYTES)) < FILE_BYTES:
                    raise OSError("cut short")

    secret, outside = Path(targets["secret"]), Path(targets["outside"])
    return {
        "connect": lambda: connect(socket.AF_INET, ("127.0.0.1", targets["tcp"])),
        "send a datagram": send_datagram,
        "connect to a socket in a folder": lambda: connect(socket.AF_UNIX, targets["socket"]),
        "connect to an abstract socket": lambda: connect(socket.AF_UNIX, targets["abstract"]),
        "read a secret": secret.read_text,
        "list a home": lambda: os.listdir(secret.parent),
        "write outside": lambda: (outside / "planted").write_text("x"),
        "write over": lambda: secret.write_text("changed"),
        "remove": lambda: (outside / "precious").unlink(),
        "rename into reach": lambda: secret.rename("taken"),
        "truncate": lambda: os.truncate(outside / "long", 0),
        "read the environment of another": lambda: Path(f"/proc/{victim}/environ").read_bytes(),
        "read the command line of another": lambda: Path(f"/proc/{victim}/cmdline").read_bytes(),
        "open a descriptor of another": lambda: Path(f"/proc/{victim}/fd/0").open().close(),
        "read the memory of another": read_memory,
        "trace another": lambda: checked(libc.ptrace(PTRACE_SEIZE, victim, None, None)),
        "signal another": lambda: os.kill(victim, signal.SIGWINCH),
        "have another signalled": have_signalled,
        "limit another": lambda: resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)),
        "hold another back": lambda: os.sched_setaffinity(victim, os.sched_getaffinity(victim)),
        "fork": fork,
        "leave the session": leave_session,
        "fill the disk": fill,
        "share memory by name": lambda: checked(libc.shmget(0, 4096, 0o1600)),
        "make a namespace": lambda: checked(libc.unshare(0x0400_0000 if os.geteuid() == 0 else 0x1000_0000)),
    }


def main() -> None:
    """Confine, attack, report."""
    targets, missing = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    for name in missing:
        absent(name)
    mechanisms = confine(Confinement(Path.cwd(), file_bytes=FILE_BYTES, processes=targets["processes"]))
    found: dict[str, str] = {}
    for name, attempt in attempts(targets).items():
        try:
            attempt()
            found[name] = "done"
        except OSError as error:
            found[name] = f"refused: {error}"
    in_force = [each.name for each in mechanisms if each.in_force]
    print(json.dumps({"in force": in_force, "attempts": found}))


if __name__ == "__main__":
    main()
