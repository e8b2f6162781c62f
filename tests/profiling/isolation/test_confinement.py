"""Ways out of a confined process: each refused when all mechanisms are there, and open when the right one isn't."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.profiling.isolation.kernels import NEEDS_LANDLOCK

VICTIM = "import ctypes; b = ctypes.create_string_buffer(8); print(ctypes.addressof(b)); input()"
HOSTILE = Path(__file__).parent / "hostile.py"
ALL = {"Landlock", "seccomp", "network namespace", "capabilities", "size limits", "hidden memory"}
ONLY_LANDLOCK = {
    "read a secret",
    "list a home",
    "write outside",
    "write over",
    "remove",
    "rename into reach",
    "truncate",
    "read the command line of another",
}
ONLY_SECCOMP = {
    "connect to a socket in a folder",
    "leave the session",
    "limit another",
    "have another signalled",
    "fork",
    "share memory by name",
}
UP_TO_THE_MACHINE = {"make a namespace", "trace another", "read the memory of another", "hold another back"}
"""What settings of the machine, or not being root, may refuse or allow by themselves."""


pytestmark = NEEDS_LANDLOCK


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the hostile program attacks, and a folder of its own to work in."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    for folder in (home, outside, tmp_path / "scratch"):
        folder.mkdir()
    (home / "id_rsa").write_text("a secret")
    (outside / "precious").write_text("x")
    (outside / "long").write_text("x")
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    with (
        victim,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as in_folder,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        in_folder.bind(str(outside / "socket"))
        in_folder.listen()
        abstract.bind(f"\0mctskernel-{os.getpid()}")
        abstract.listen()
        yield {
            "victim": victim.pid,
            "address": int(victim.stdout.readline()),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "socket": str(outside / "socket"),
            "abstract": f"\0mctskernel-{os.getpid()}",
            "secret": str(home / "id_rsa"),
            "outside": str(outside),
            "processes": 0,
        }
        victim.kill()


def attack(targets: dict[str, Any], absent: set[str]) -> dict[str, str]:
    """What came of each attempt without some mechanisms."""
    scratch = Path(targets["outside"]).parent / "scratch"
    done = subprocess.run(
        [sys.executable, str(HOSTILE), json.dumps(targets), json.dumps(sorted(absent))],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = json.loads(done.stdout)
    assert not absent & set(said["in force"])
    return dict(said["attempts"])


def succeeded(found: dict[str, str]) -> set[str]:
    return {name for name, how in found.items() if how == "done"}


def test_every_way_out_is_refused(targets: dict[str, Any]) -> None:
    found = attack(targets, set())
    assert succeeded(found) == set()
    assert Path(targets["secret"]).read_text() == "a secret"


def test_every_way_out_is_open_where_there_is_no_mechanism(targets: dict[str, Any]) -> None:
    found = attack(targets, ALL)
    assert set(found) - succeeded(found) <= UP_TO_THE_MACHINE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "open_ways"),
    [("Landlock", ONLY_LANDLOCK), ("seccomp", ONLY_SECCOMP), ("size limits", {"fill the disk"})],
)
def test_what_one_missing_mechanism_leaves_open(
    targets: dict[str, Any], absent: str, open_ways: set[str]
) -> None:
    found = succeeded(attack(targets, {absent}))
    assert found - UP_TO_THE_MACHINE == open_ways - UP_TO_THE_MACHINE


BOMB = """
import os, signal
from pathlib import Path
from mctskernel.profiling.isolation.confinement import confine
from mctskernel.profiling.isolation.policy import Confinement
confine(Confinement(Path.cwd(), processes=2))
started = 0
try:
    while started < 2000:
        if os.fork() == 0:
            signal.pause()
        started += 1
except OSError:
    pass
print(started, flush=True)
os.killpg(0, 9)
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="root's processes are not counted")
def test_a_fork_bomb_is_bounded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        timeout=60,
        check=False,
    )
    assert 0 < int(done.stdout) < 1000
