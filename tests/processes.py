"""Processes that tests start, looked at from outside."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for a minute at the most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def state(pid: int) -> str:
    """A process's state, as `/proc` tells it; X when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
