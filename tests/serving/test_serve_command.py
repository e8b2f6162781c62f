"""`mctskernel serve` as a program: a task on the model, from the first kernel to Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

from mctskernel.core.evaluation import Source
from mctskernel.executors.http_api import SESSIONS, OpenSession, SessionOpened, decode, encode
from tests.conftest import KERNEL
from tests.serving.conftest import Client


def test_a_kernel_is_judged_on_the_model(small_task: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mctskernel",
        "serve",
        "--port",
        "0",
        "--device",
        "model",
        "--workers",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--access-log", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        told = "".join(process.stdout.readline() for _ in range(4))
        token = told.partition("MCTSKERNEL_TOKEN=")[2].split()[0]
        url = (process.stdout.readline()).partition(" at ")[2].partition(";")[0]
        with httpx2.Client(
            base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False
        ) as http:
            task = {file.name: file.read_bytes() for file in small_task.iterdir()}
            answer = http.post(SESSIONS, content=encode(OpenSession(task, architecture="h200")))
            opened = decode(answer.content, SessionOpened)
            assert opened.source == Source.MODELLED
            assert "H200" in opened.fingerprint["gpu"]
            client = Client(http, opened.session)
            client.put("right", KERNEL)
            client.put("wrong", KERNEL.replace("2.0f", "3.0f"))
            right, wrong = sorted(client.judged(2), key=lambda result: result.key)
        assert right.evaluation.ok
        assert right.evaluation.timings
        assert wrong.evaluation.outcome == "wrong result"
    finally:
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "No more work is taken" in output
    assert re.search(r"client POST /v1/sessions 201", log)
    assert token not in output + log
