"""A session on a GPU may have threads named beneath /proc, itself and what it starts, and gets nothing else with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiling.isolation.kernels import NEEDS_LANDLOCK

PROGRAM = """
import ctypes, json, os, subprocess, sys
from pathlib import Path
from mctskernel.profiling.isolation import proc_mounts
from mctskernel.profiling.isolation.confinement import enclose
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError, call
from mctskernel.profiling.isolation.policy import CAP_SYS_ADMIN, Confinement

names, kept, refused, outsider = json.loads(sys.argv[1])

def refuse(flags):
    raise RefusedByKernelError("refused by the test")

if refused:
    proc_mounts.unshare = refuse
capabilities = (CAP_SYS_ADMIN,) if kept else ()
policy = Confinement(
    Path.cwd(), reads=(Path("/proc"),), processes=8, capabilities=capabilities, names_threads=names
)
said = {each.name: each.in_force for each in enclose(policy)}

def opens(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
        return True
    except OSError:
        return False

def cloned(path):
    try:
        tree = call("open_tree", 428, -100, ctypes.create_string_buffer(b"/proc"), 1)
    except OSError:
        return False
    return opens(f"/proc/self/fd/{tree}/{path.removeprefix('/proc/')}")

def writable_again(path):
    attributes = ctypes.create_string_buffer((0).to_bytes(8, "little") + (1).to_bytes(8, "little") + bytes(16), 32)
    name = ctypes.create_string_buffer(b"/proc/sys")
    try:
        call("mount_setattr", 442, -100, name, 0, attributes, 32)
    except OSError:
        pass
    return opens(path)

NAMING = "import os; open(f'/proc/{os.getpid()}/task/{os.getpid()}/comm', 'w').write('named')"
def named_by_a_child():
    return subprocess.run([sys.executable, "-S", "-c", NAMING], capture_output=True).returncode == 0

SETTING = "/proc/sys/kernel/core_pattern"
def named():
    comm = Path(f"/proc/self/task/{os.getpid()}/comm")
    try:
        comm.write_text("named")
    except OSError:
        return False
    return comm.read_text() == "named\\n"

print(json.dumps({
    "in force": said.get("thread names"),
    "named": named(),
    "named by a child": named_by_a_child(),
    "opened": [path for path in OPENED if opens(path)],
    "memory of an outsider": opens(f"/proc/{outsider}/mem"),
    "cloned": cloned(SETTING),
    "writable again": writable_again(SETTING),
}))
"""
SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
)


pytestmark = NEEDS_LANDLOCK
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root could change settings of the kernel")


def _may_mount() -> bool:
    """Whether root may here; in a container it often may not."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "--mount", "true"], check=False).returncode == 0


ABLE = pytest.mark.skipif(os.geteuid() == 0 and not _may_mount(), reason="root may not mount here")


def enclosed(
    folder: Path,
    *,
    names: bool = True,
    kept: bool = False,
    refused: bool = False,
    starter: tuple[str, ...] = (),
) -> dict[str, object]:
    """What a process that was enclosed so could do; `kept` is CAP_SYS_ADMIN, `refused` a mount namespace."""
    program = PROGRAM.replace("OPENED", repr([each for each in SETTINGS if Path(each).exists()]))
    done = subprocess.run(
        [*starter, sys.executable, "-c", program, json.dumps([names, kept, refused, os.getpid()])],
        cwd=folder,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


NOTHING = {
    "opened": [],
    "memory of an outsider": False,
    "cloned": False,
    "writable again": False,
}


@ABLE
def test_a_session_and_what_it_starts_name_their_threads_and_change_nothing_else(tmp_path: Path) -> None:
    able = {"in force": True, "named": True, "named by a child": True}
    assert enclosed(tmp_path) == able | NOTHING


@ROOT
@ABLE
def test_the_right_that_counters_need_makes_nothing_writable_again(tmp_path: Path) -> None:
    able = {"in force": True, "named": True, "named by a child": True}
    assert enclosed(tmp_path, kept=True) == able | NOTHING


@ROOT
def test_root_names_no_threads_where_settings_cannot_be_made_read_only(tmp_path: Path) -> None:
    unable = {"in force": False, "named": False, "named by a child": False}
    assert enclosed(tmp_path, refused=True) == unable | NOTHING


@ROOT
@ABLE
def test_root_names_no_threads_where_proc_has_a_second_way_in(tmp_path: Path) -> None:
    second = 'mkdir second && mount --bind /proc second && exec "$@"'
    unable = {"in force": False, "named": False, "named by a child": False}
    assert enclosed(tmp_path, starter=("unshare", "--mount", "sh", "-c", second, "sh")) == unable | NOTHING


def test_other_processes_name_no_threads(tmp_path: Path) -> None:
    unable = {"in force": None, "named": False, "named by a child": False}
    assert enclosed(tmp_path, names=False) == unable | NOTHING
