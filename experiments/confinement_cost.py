"""What confining a worker costs: `python -m mctskernel.experiments.confinement_cost`.

Each figure is the median of fresh processes. With `child` as its argument it is such a process: it measures itself,
confines itself, measures again, and prints what it found.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from mctskernel.profiling.isolation.bubblewrap import bubblewrap_command, find_bubblewrap
from mctskernel.profiling.isolation.confinement import enclose, seal
from mctskernel.profiling.isolation.policy import Confinement

PROCESSES = 15
REPEATS = 2000


def main() -> None:
    """Print the table."""
    plain = _medians(lambda command, _: command)
    for name, value in plain.items():
        print(f"{name:<44}{value:>10.2f}")
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        print("There is no bubblewrap that works here.")
        return
    wrapped = _medians(lambda command, scratch: bubblewrap_command(bubblewrap, Confinement(scratch), command))
    more = wrapped["start to end, ms"] - plain["start to end, ms"]
    print(f"{'bubblewrap on top, ms':<44}{more:>10.2f}")


def measure_here() -> dict[str, float]:
    """Confine this process, with figures of before and after."""
    figures = {f"{name} before, us": _microseconds(call) for name, call in _CALLS.items()}
    policy = Confinement(Path.cwd(), processes=8)
    for name, stage in {"files, network, privileges": enclose, "system calls": seal}.items():
        began = time.process_time()
        stage(policy)
        figures[f"{name}, ms of CPU"] = (time.process_time() - began) * 1e3
    return figures | {f"{name} after, us": _microseconds(call) for name, call in _CALLS.items()}


def _medians(wrap: Callable[[tuple[str, ...], Path], tuple[str, ...]]) -> dict[str, float]:
    samples = [_sample(wrap) for _ in range(PROCESSES)]
    return {name: statistics.median(each[name] for each in samples) for name in samples[0]}


def _sample(wrap: Callable[[tuple[str, ...], Path], tuple[str, ...]]) -> dict[str, float]:
    command = (sys.executable, "-P", "-m", "mctskernel.experiments.confinement_cost", "child")
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        done = subprocess.run(
            wrap(command, Path(scratch)), cwd=scratch, stdout=subprocess.PIPE, check=True, env=_environment()
        )
        seconds = time.perf_counter() - began
    return {"start to end, ms": seconds * 1e3} | msgspec.json.decode(done.stdout, type=dict[str, float])


def _environment() -> dict[str, str]:
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    return {"PYTHONPATH": path, "PATH": os.environ.get("PATH", "")}


def _microseconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(REPEATS):
        call()
    return (time.process_time() - began) / REPEATS * 1e6


def _open_and_close() -> None:
    os.close(os.open(os.__file__, os.O_RDONLY))


_CALLS: dict[str, Callable[[], object]] = {"getppid": os.getppid, "open and close": _open_and_close}

if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        sys.stdout.buffer.write(msgspec.json.encode(measure_here()))
    else:
        main()
