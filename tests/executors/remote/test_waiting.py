"""While a server is waited for: the user is told, and can leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.executors.remote.server import Patience
from tests.executors import careless_server as careless
from tests.executors.careless_server import Fault, Handler, Request, careless_server
from tests.executors.remote.connecting import QUICK, after, connect, drain, kernel


def test_waiting_for_the_server_is_a_remark_until_it_is_back(task: Path) -> None:
    away = True

    def goes(handler: Handler, request: Request) -> bool:
        return away and request.kind != "open" and careless.resets(handler, request)

    with (
        careless_server(goes) as server,
        connect(server, task, replace(QUICK, telling=0.05)) as executor,
    ):
        executor.submit(0, kernel(0))
        until = time.monotonic() + 5
        while len(executor.remarks) < 2 and time.monotonic() < until:
            assert executor.wait(0.02) == []
        assert executor.remarks[1].startswith(
            f"Waiting for the server at {server.url}: it ended the connection"
        )
        away = False
        assert drain(executor, 1) == [(0, "kernel 0")]
        until = time.monotonic() + 5
        while len(executor.remarks) > 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert executor.remarks == ("No counters.",)


@pytest.mark.parametrize("kind", ["put", "results"])
def test_waiting_for_the_server_at_the_last_gate_is_logged_once(
    task: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    back = time.monotonic() + 0.5

    def goes(handler: Handler, request: Request) -> bool:
        return request.kind == kind and time.monotonic() < back and careless.resets(handler, request)

    with careless_server(goes) as server, connect(server, task, replace(QUICK, telling=0.05)) as executor:
        assert executor.last_gate(kernel(1), kernel(0)).message == "kernel 1"
        assert executor.last_gate(kernel(2), kernel(0)).message == "kernel 2"
    told = [each.getMessage() for each in caplog.records if each.name.startswith("mctskernel")]
    assert told == [
        f"Waiting for the server at {server.url}: it ended the connection before its reply was whole."
    ]


@pytest.mark.parametrize("fault", [careless.hangs, careless.drips], ids=["hang", "drip"])
def test_closing_is_immediate_whatever_the_server_does(task: Path, fault: Fault) -> None:
    patient = Patience()
    with careless_server(after(1, fault)) as server:
        executor = connect(server, task, patient)
        for number in range(4):
            executor.submit(number, kernel(number))
        assert executor.wait(0.1) == []
        began = time.monotonic()
        executor.close()
        assert time.monotonic() - began < 1.5


CTRL_C = """
import sys
from pathlib import Path
from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel
from mctskernel.executors import open_executor

try:
    with open_executor(DeviceSpec(sys.argv[1], Path(sys.argv[2])), 0) as executor:
        print("in", flush=True)
        executor.last_gate(Kernel("a"), Kernel("b"))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_a_last_gate_at_once(task: Path) -> None:
    with careless_server(after(0, careless.hangs, "results")) as server:
        command = [sys.executable, "-c", CTRL_C, server.url, str(task)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "in\n"
                time.sleep(0.1)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=20)
            finally:
                process.kill()
        assert (process.returncode, complaints) == (130, "")
        assert time.monotonic() - began < 3
