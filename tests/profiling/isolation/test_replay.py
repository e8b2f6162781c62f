"""The process that replays a kernel under a tool, before it looks at the kernel; without a GPU, which comes first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mctskernel.profiling.processes.child_process import worker_environment
from tests.profiling.isolation.kernels import NEEDS_LANDLOCK

pytestmark = pytest.mark.slow

CODE = """
import json, pathlib, socket, sys
from mctskernel.profiling import replay
from mctskernel.profiling.replay import Freedom

what, task, kernel, secret = sys.argv[1], *map(pathlib.Path, sys.argv[2:5])

def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__

def looked_at(*_):
    tried = {
        "reads the kernel": lambda: kernel.read_text(),
        "reads the task": lambda: (task / "task.toml").read_text(),
        "writes its folder": lambda: pathlib.Path("here").write_text("x"),
        "reads a secret": lambda: secret.read_text(),
        "writes a secret": lambda: secret.write_text("x"),
        "opens a socket": lambda: socket.socket(),
    }
    print(json.dumps({name: attempt(action) for name, action in tried.items()}))
    sys.exit(0)

class Gpu:
    architecture = "sm_90"

replay.open_gpu = lambda *_: Gpu()
replay.prepare = looked_at  # the first that the kernel's text is given to
if what == "sanitize":
    replay.sanitize(task, kernel, 0, Freedom(sys.argv[5]), seconds=1.0)
else:
    replay.profile(task, kernel, 0, Freedom(sys.argv[5]))
"""

ALLOWED = {"reads the kernel", "reads the task", "writes its folder"}


def tried(what: str, task: Path, folder: Path, freedom: str) -> dict[str, str]:
    scratch, secret = folder / "scratch", folder / "secret"
    scratch.mkdir()
    secret.write_text("a secret")
    kernel = folder / "kernels" / "kernel.cu"
    kernel.parent.mkdir()
    kernel.write_text((task / "kernel.cu").read_text())
    words = [sys.executable, "-P", "-c", CODE, what, str(task), str(kernel), str(secret), freedom]
    environment = worker_environment(scratch)
    done = subprocess.run(
        words, cwd=scratch, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@NEEDS_LANDLOCK
@pytest.mark.parametrize("what", ["profile", "sanitize"])
def test_a_replay_is_confined_before_it_reads_its_kernel(small_task: Path, tmp_path: Path, what: str) -> None:
    found = tried(what, small_task, tmp_path, "confined")
    assert {name for name, result in found.items() if result == "done"} == ALLOWED


def test_a_free_one_is_not(small_task: Path, tmp_path: Path) -> None:
    assert set(tried("profile", small_task, tmp_path, "free").values()) == {"done"}
