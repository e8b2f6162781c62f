"""`mctskernel serve` as a program: tasks on the model, from the first kernel to Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from mctskernel.core.evaluation import Source
from mctskernel.executors.http_api import (
    SESSIONS,
    STATUS,
    OpenSession,
    SessionOpened,
    decode,
    encode,
    session_path,
)
from tests.conftest import KERNEL
from tests.serving.conftest import Client

SERVE = (
    "-m",
    "mctskernel",
    "serve",
    "--port",
    "0",
    "--device",
    "model",
    "--workers",
    "1",
    "--access-log",
    "-",
)

DAEMON = """
import os
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execvp("sleep", ["sleep", "{seconds}"])
    os._exit(0)
os.wait()
"""


def test_kernels_are_judged_on_the_model_and_nothing_outlives_its_session(small_task: Path) -> None:
    with server() as process:
        with client_of(process) as http:
            judge_on_model(http, small_task)
            leave_daemon(http, small_task)
            token = http.headers["authorization"].removeprefix("Bearer ")
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "No more work is taken" in output
    assert "client POST /v1/sessions 201" in log
    assert token not in output + log


def test_what_a_killed_server_left_is_swept_away_by_the_next(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with server() as killed, client_of(killed) as http:
        files = {file.name: file.read_bytes() for file in small_task.iterdir()}
        assert http.post(SESSIONS, content=encode(OpenSession(files))).status_code == 201
        assert list(temporary.glob("*/*/task"))
    assert list(temporary.iterdir())
    with server() as process, client_of(process) as http:
        assert http.get(STATUS).status_code == 200
        assert not list(temporary.glob("*/*/task"))
        assert len(list(temporary.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert list(temporary.iterdir()) == []


@contextmanager
def server() -> Iterator[subprocess.Popen[str]]:
    """The program, ended in any case."""
    with subprocess.Popen(
        [sys.executable, *SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def client_of(process: subprocess.Popen[str]) -> Iterator[httpx2.Client]:
    """A client with the address and the token that a server tells at its start."""
    assert process.stdout is not None
    told = "".join(process.stdout.readline() for _ in range(5))
    token = told.partition("MCTSKERNEL_TOKEN=")[2].split()[0]
    url = told.partition(" at ")[2].partition(";")[0]
    headers = {"authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        yield http


def judge_on_model(http: httpx2.Client, task: Path) -> None:
    files = {file.name: file.read_bytes() for file in task.iterdir()}
    answer = http.post(SESSIONS, content=encode(OpenSession(files, architecture="h200")))
    opened = decode(answer.content, SessionOpened)
    client = Client(http, opened.session)
    client.put("right", KERNEL)
    client.put("wrong", KERNEL.replace("2.0f", "3.0f"))
    right, wrong = sorted(client.judged(2), key=lambda result: result.key)

    assert opened.source == Source.MODELLED
    assert "H200" in opened.fingerprint["gpu"]
    assert right.evaluation.ok
    assert right.evaluation.timings
    assert wrong.evaluation.outcome == "wrong result"


def leave_daemon(http: httpx2.Client, task: Path) -> None:
    """Open a session whose reference starts what leaves it, and see that it ends with it all the same."""
    seconds = f"{time.time():f}"
    files = {file.name: file.read_bytes() for file in task.iterdir()}
    files["reference.py"] += DAEMON.format(seconds=seconds).encode()
    opened = decode(http.post(SESSIONS, content=encode(OpenSession(files))).content, SessionOpened)

    assert sleeping(seconds)
    http.delete(session_path(opened.session))
    assert not sleeping(seconds)


def sleeping(seconds: str) -> bool:
    """Whether a process with this word in its command lives."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if seconds.encode() in (process / "cmdline").read_bytes():
                return True
    return False
