"""Clients that use one server at a time, and what came of it."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from mctskernel.experiments.serving.clients import Came, ClientProcess, Told
from mctskernel.experiments.serving.served import Served

SAMPLE_SECONDS = 0.25
STOPPED_SECONDS = 3.0


class Load(msgspec.Struct, frozen=True):
    """What clients submitted and got; seconds from the first submission to the last result.

    `lost` never came back, and `twice` came back more than once. `judged` are evaluations that the judging processes
    say they did, as far as they lived to say so, and 0 where they don't say. `shares` are each client's evaluations
    when the first of them was through. `resident` are seconds and bytes of the server's own process.
    """

    clients: int
    submitted: int
    lost: int
    twice: int
    judged: int
    problems: list[str]
    seconds: float
    median_seconds: float
    longest_seconds: float
    shares: list[int]
    resident: list[tuple[float, int]]

    @property
    def per_second(self) -> float:
        """Evaluations."""
        return (self.submitted - self.lost) / self.seconds

    @property
    def growth(self) -> tuple[int, int]:
        """Resident bytes in the second and in the last quarter of the time: what is there from the start is no leak."""
        sizes = [size for _, size in self.resident if size] or [0]
        quarter = max(1, len(sizes) // 4)
        second, last = sizes[quarter : 2 * quarter] or sizes, sizes[-quarter:]
        return int(statistics.median(second)), int(statistics.median(last))


def load(served: Served, url: str, task: Path, tokens: Mapping[str, str], evaluations: int) -> Load:
    """Let one client for each token have its part of the evaluations done, all of them at the same time."""
    counts = [len(range(number, evaluations, len(tokens))) for number in range(len(tokens))]
    with ThreadPoolExecutor(len(tokens)) as pool:
        starting = [
            pool.submit(ClientProcess, url, task, name, token, count)
            for (name, token), count in zip(tokens.items(), counts, strict=True)
        ]
        clients = [each.result() for each in starting]
        with _resident(served) as resident:
            began = time.monotonic()
            for client in clients:
                client.begin()
            told = list(pool.map(ClientProcess.told, clients))
    return _summary(told, began, resident)


def _summary(told: Sequence[Told], began: float, resident: list[tuple[float, int]]) -> Load:
    came = [each for client in told for each in client.came]
    seconds = [each.seconds for each in came] or [0.0]
    first_done = min(max((each.at for each in client.came), default=began) for client in told)
    distinct = sum(len({each.number for each in client.came}) for client in told)
    submitted = sum(client.submitted for client in told)
    return Load(
        clients=len(told),
        submitted=submitted,
        lost=submitted - distinct,
        twice=len(came) - distinct,
        judged=_judged(came),
        problems=[client.problem for client in told if client.problem],
        seconds=round(max((each.at for each in came), default=began) - began, 3),
        median_seconds=round(float(np.median(seconds)), 5),
        longest_seconds=round(max(seconds), 3),
        shares=[sum(each.at <= first_done for each in client.came) for client in told],
        resident=resident,
    )


def _judged(came: Sequence[Came]) -> int:
    """How often the judging processes were called, which each result of theirs says anew: `PROCESS CALLS`."""
    calls: Counter[str] = Counter()
    for each in came:
        process, _, count = each.message.partition(" ")
        if not (process.isdigit() and count.isdigit()):
            return 0
        calls[process] = max(calls[process], int(count))
    return calls.total()


@contextmanager
def _resident(served: Served) -> Iterator[list[tuple[float, int]]]:
    """The server's resident bytes from now on, sampled until the block ends."""
    samples: list[tuple[float, int]] = []
    done, began = threading.Event(), time.monotonic()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            samples.append((round(time.monotonic() - began, 2), served.resident_bytes))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


@dataclass
class Havoc:
    """What befalls a server's processes, one thing after the other, whenever `every` more results have `passed`."""

    served: Served
    passed: Callable[[], int]
    every: int
    injected: Counter[str] = field(default_factory=Counter)

    def wreak(self, done: threading.Event) -> None:
        """Go on until `done`."""
        acts = (
            ("session's process killed", self._kill_session),
            ("server stopped for 3 s", self._stop),
            ("server killed and started again", self._restart),
        )
        number = 0
        while not done.wait(SAMPLE_SECONDS):
            if self.passed() >= (number + 1) * self.every:
                name, act = acts[number % len(acts)]
                self.injected[name] += act()
                number += 1

    def _kill_session(self) -> int:
        processes = self.served.session_processes()
        if processes:
            os.kill(processes[len(processes) // 2], signal.SIGKILL)
        return bool(processes)

    def _stop(self) -> int:
        self.served.process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        self.served.process.send_signal(signal.SIGCONT)
        return 1

    def _restart(self) -> int:
        self.served.kill()
        self.served.start_again()
        return 1


@contextmanager
def havoc(served: Served, passed: Callable[[], int], every: int) -> Iterator[Counter[str]]:
    """Things that befall the server until the block ends, one whenever so many more results have passed."""
    wreaking, done = Havoc(served, passed, every), threading.Event()
    thread = threading.Thread(target=wreaking.wreak, args=(done,))
    thread.start()
    try:
        yield wreaking.injected
    finally:
        done.set()
        thread.join()
