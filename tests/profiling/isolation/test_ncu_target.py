"""The process that runs a kernel under a profiler, before it looks at the kernel; without a GPU, which comes first."""

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
from mctskernel.profiling import ncu_target
from mctskernel.profiling.ncu_target import Freedom

task, kernel, secret = map(pathlib.Path, sys.argv[1:4])

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

ncu_target.open_gpu = lambda *_: Gpu()
ncu_target.prepare = looked_at  # the first that the kernel's text is given to
ncu_target.profile(task, kernel, 0, Freedom(sys.argv[4]))
"""

ALLOWED = {"reads the kernel", "reads the task", "writes its folder"}


def tried(task: Path, folder: Path, freedom: str) -> dict[str, str]:
    scratch, secret = folder / "scratch", folder / "secret"
    scratch.mkdir()
    secret.write_text("a secret")
    kernel = folder / "kernels" / "kernel.cu"
    kernel.parent.mkdir()
    kernel.write_text((task / "kernel.cu").read_text())
    words = [sys.executable, "-P", "-c", CODE, str(task), str(kernel), str(secret), freedom]
    environment = worker_environment(scratch)
    done = subprocess.run(
        words, cwd=scratch, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@NEEDS_LANDLOCK
def test_the_process_is_confined_before_it_reads_its_kernel(small_task: Path, tmp_path: Path) -> None:
    found = tried(small_task, tmp_path, "confined")
    assert {name for name, result in found.items() if result == "done"} == ALLOWED


def test_a_free_one_is_not(small_task: Path, tmp_path: Path) -> None:
    assert set(tried(small_task, tmp_path, "free").values()) == {"done"}
