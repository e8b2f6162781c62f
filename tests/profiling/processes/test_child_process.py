"""What a process that runs candidates is given."""

import site
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mctskernel.profiling.processes import child_process

SECRETS = ("OPENAI_API_KEY", "CUDA_API_KEY", "NVIDIA_TOKEN", "SOME_NAME", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "sk-do-not-tell")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def environment_of(pid: int) -> bytes:
    """That of a process, which has none before it has become its program."""
    deadline = time.monotonic() + 10
    while not (found := Path(f"/proc/{pid}/environ").read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@pytest.mark.usefixtures("secrets")
def test_a_worker_gets_no_key_in_its_environment() -> None:
    child = child_process.start("mctskernel.profiling.processes.worker_process", "compiled")
    try:
        environment = environment_of(child.pid)
    finally:
        child.kill()
    assert b"CUDA_VISIBLE_DEVICES=0" in environment
    assert b"sk-do-not-tell" not in environment


def test_a_worker_has_a_home_of_its_own_and_finds_the_packages_of_its_user(tmp_path: Path) -> None:
    code = "import os, site; print(os.environ['HOME'], site.getuserbase())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=child_process.worker_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(tmp_path), site.getuserbase()]
