"""Ctrl-C ends a call that waits for a server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.edits.llm import loopback
from tests.edits.llm.loopback import Behaviour, fails, serving

PROGRAM = """
import sys
from mctskernel.core.proposer import Purpose
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.opening import open_model
from mctskernel.edits.llm.options import LLMOptions

options = LLMOptions("m", base_url=sys.argv[1])
try:
    with open_model(options) as model:
        model.complete(Call(Purpose.PROPOSE, (Message("user", "hi"),)))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    "behaviour",
    [loopback.hangs, loopback.drips, fails(429, retry_after="100")],
    ids=["hang", "slow drip", "a wait between retries"],
)
def test_ctrl_c_ends_a_call_within_two_seconds(behaviour: Behaviour) -> None:
    with serving(behaviour) as server:
        command = [sys.executable, "-c", PROGRAM, server.url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while not server.received:
                    assert process.poll() is None, process.communicate()[1]
                    time.sleep(0.01)
                time.sleep(0.1)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=20)
            finally:
                process.kill()
        assert time.monotonic() - began < 2.0
        assert (process.returncode, complaints) == (130, "")
