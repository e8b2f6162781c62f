"""The process that replays a kernel under a tool, before it looks at the kernel; without a GPU, which comes first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mctskernel.profiling.isolation import landlock
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.processes.child_process import worker_environment

CODE = """
import json, pathlib, socket, sys
from mctskernel.profiling import replay_process, sanitized_replay
from mctskernel.profiling.replay_process import Freedom

module, task, kernel, secret = sys.argv[1], *map(pathlib.Path, sys.argv[2:5])
replay = {"replay_process": replay_process, "sanitized_replay": sanitized_replay}[module]

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
if module == "sanitized_replay":
    replay.main(task, kernel, 0, 1.0, Freedom(sys.argv[5]), gpu="")
else:
    replay.main(task, kernel, 0, Freedom(sys.argv[5]))
"""

ALLOWED = {"reads the kernel", "reads the task", "writes its folder"}


def _has_landlock() -> bool:
    try:
        return bool(landlock.abilities())
    except RefusedByKernelError:
        return False


def tried(module: str, task: Path, folder: Path, freedom: str) -> dict[str, str]:
    scratch, secret = folder / "scratch", folder / "secret"
    scratch.mkdir()
    secret.write_text("a secret")
    kernel = folder / "kernels" / "kernel.cu"
    kernel.parent.mkdir()
    kernel.write_text((task / "kernel.cu").read_text())
    words = [sys.executable, "-P", "-c", CODE, module, str(task), str(kernel), str(secret), freedom]
    environment = worker_environment(scratch)
    done = subprocess.run(
        words, cwd=scratch, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not _has_landlock(), reason="needs Landlock")
@pytest.mark.parametrize("module", ["replay_process", "sanitized_replay"])
def test_a_replay_is_confined_before_it_reads_its_kernel(
    small_task: Path, tmp_path: Path, module: str
) -> None:
    found = tried(module, small_task, tmp_path, "confined")
    assert {name for name, result in found.items() if result == "done"} == ALLOWED


def test_a_free_one_is_not(small_task: Path, tmp_path: Path) -> None:
    assert set(tried("replay_process", small_task, tmp_path, "free").values()) == {"done"}
