"""A client in a process of its own that has kernels evaluated and writes down what came back when.

Its words are the URL, the task's folder, a name and how many kernels; the token is in the environment. It waits for a
line on standard input before it submits anything, so that clients begin together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors import open_executor
from mctskernel.executors.remote.address import TOKEN_VARIABLE
from mctskernel.experiments.serving.lifeline import end_with_parent


class Came(msgspec.Struct, frozen=True):
    """A result: the number of its kernel, when it came by the clock that all processes share, and after how long."""

    number: int
    message: str
    at: float
    seconds: float


class Told(msgspec.Struct, frozen=True):
    """What a client has to say: how many kernels it submitted, all that came back, and why it ended before."""

    name: str
    submitted: int
    came: list[Came]
    problem: str = ""


class ClientProcess:
    """A client that is ready, and submits once it is told to."""

    def __init__(self, url: str, task: Path, name: str, token: str, count: int) -> None:
        words = (
            sys.executable,
            "-c",
            f"from {__name__} import main; main()",
            url,
            str(task),
            name,
            str(count),
        )
        variables = {TOKEN_VARIABLE: token, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        self._output = self._process.stdout
        self._output.readline()

    def begin(self) -> None:
        """Let it submit."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def told(self) -> Told:
        """What it has to say, once it is through."""
        said = self._output.read()
        self._process.communicate()
        return msgspec.json.decode(said, type=Told)


def evaluate_all(executor: Executor, kernels: list[Kernel], at_once: int = 0) -> list[Came]:
    """Evaluate kernels, as many at once as the executor has room for, or fewer."""
    began: dict[int, float] = {}
    came: list[Came] = []
    waiting = list(enumerate(kernels))[::-1]
    in_flight = 0
    while waiting or in_flight:
        while waiting and in_flight < (at_once or executor.capacity):
            number, kernel = waiting.pop()
            began[number] = time.monotonic()
            executor.submit(number, kernel)
            in_flight += 1
        for number, evaluation in executor.wait(0.1):
            now = time.monotonic()
            came.append(Came(number, evaluation.message, now, now - began[number]))
            in_flight -= 1
    return came


def kernels_of(task: Path, name: str, count: int) -> list[Kernel]:
    """So many kernels that differ in a comment alone."""
    start = load_task(task).starting_kernel
    return [Kernel(f"{start.source}\n// {name} {number}\n", start.language) for number in range(count)]


def main() -> None:
    """Evaluate, and print what came back."""
    url, task, name, count = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    kernels, came, problem = kernels_of(task, name, count), [], ""
    try:
        with open_executor(DeviceSpec(url, task), 0) as executor:
            print("ready", flush=True)
            sys.stdin.readline()
            end_with_parent()
            came = evaluate_all(executor, kernels)
    except DeviceError as error:
        problem = str(error)
    sys.stdout.write(msgspec.json.encode(Told(name, count, came, problem)).decode())
