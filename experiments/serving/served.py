"""A server in a process of its own, with limits that its caller chooses.

Its words are the tokens' file and `ServedSettings` in JSON; it says its URL and serves until SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from mctskernel.experiments.serving.lifeline import end_with_parent
from mctskernel.experiments.serving.stand_in import OPENER
from mctskernel.serving.session_protocol import EXECUTOR
from mctskernel.serving.settings import Limits, Settings
from mctskernel.serving.tokens import read_clients

STAND_IN = "stand-in"


class ServedSettings(msgspec.Struct, frozen=True):
    """What judges (`stand-in`, `model` or `gpu`), where it listens, and which limits differ from the usual ones."""

    judge: str
    workers: int
    port: int = 0
    limits: dict[str, float] = {}


class Served:
    """The process of a server; `url` is where it listens."""

    def __init__(self, tokens: Path, settings: ServedSettings) -> None:
        self._tokens, self._settings = tokens, settings
        self._start()

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.communicate()

    def start_again(self) -> None:
        """Where it listened before."""
        self._settings = msgspec.structs.replace(self._settings, port=int(self.url.rpartition(":")[2]))
        self._start()

    def stop(self) -> None:
        """End it as an administrator does, twice: nobody waits for what it does."""
        for _ in range(2):
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        self.process.communicate(timeout=30)

    def session_processes(self) -> list[int]:
        """The processes that hold its sessions."""
        return [pid for pid in _children(self.process.pid) if b"session_process" in _command(pid)]

    @property
    def resident_bytes(self) -> int:
        """Of the server's own process; 0 when it is gone."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return 0
        sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        return 1024 * int(sizes[0]) if sizes else 0

    def _start(self) -> None:
        words = (
            sys.executable,
            "-c",
            f"from {__name__} import main; main()",
            str(self._tokens),
            msgspec.json.encode(self._settings).decode(),
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None  # noqa: S101 - a pipe was asked for
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError("The server didn't start; what it says of that is above.")


def main() -> None:
    """Serve until a signal."""
    # Imported here: an extra that may be missing where results are only rendered.
    from mctskernel.serving.server import Address, Server  # noqa: PLC0415 - as said above

    end_with_parent()
    tokens, asked = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ServedSettings)
    usual = msgspec.to_builtins(Limits())
    limits = replace(Limits(), **{name: type(usual[name])(value) for name, value in asked.limits.items()})
    kind, opener = ("model", OPENER) if asked.judge == STAND_IN else (asked.judge, EXECUTOR)
    settings = Settings(kind, workers=asked.workers, limits=limits, opener=opener)
    address = Address(port=asked.port)
    with address.listen() as listening:
        print(address.url(listening), flush=True)
        Server(settings, read_clients(tokens), address).run(listening)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return children + [grandchild for child in children for grandchild in _children(child)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
