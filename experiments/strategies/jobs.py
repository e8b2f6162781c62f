"""Many searches of recorded spaces, in processes beside each other, each kept as soon as it is done."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from mctskernel.core.space import SearchSpace
from mctskernel.experiments.strategies.simulated_search import policy_of, search
from mctskernel.experiments.strategies.traces import Trace, TraceLog
from mctskernel.profiling.spaces import read_space, space_name


@dataclass(frozen=True)
class Job:
    """One search of the space in a file."""

    path: Path
    contender: str
    seed: int
    in_flight: int
    budget: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        """That of its trace."""
        return space_name(self.path), self.contender, self.seed, self.in_flight


def jobs_of(
    paths: Iterable[Path], contenders: Sequence[str], seeds: Iterable[int], in_flight: int, budget: int
) -> list[Job]:
    """Every contender on every space, one seed after the other. Raises PolicyError and VariationError."""
    for contender in contenders:
        policy_of(contender)
    files = space_files(paths)
    return [
        Job(path, contender, seed, in_flight, budget)
        for seed, contender, path in itertools.product(seeds, contenders, files)
    ]


def run_jobs(jobs: Iterable[Job], processes: int, log: TraceLog, seconds: float | None = None) -> None:
    """Make the searches that the log doesn't have, with a progress bar. Raises SpaceError.

    After so many `seconds` no more are begun.
    """
    left = list(dict.fromkeys(job for job in jobs if job.key not in log.done))
    deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for trace in progress.track(_run(left, processes, deadline), total=len(left)):
            log.append(trace)


def space_files(paths: Iterable[Path]) -> list[Path]:
    """The files of spaces among these files and in these folders."""
    return [
        file
        for path in paths
        for file in (sorted((*path.glob("*.json"), *path.glob("*.json.gz"))) if path.is_dir() else (path,))
    ]


def _run(jobs: Sequence[Job], processes: int, deadline: float) -> Iterator[Trace]:
    # One thread each: the matrices are small, and the cores are taken.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    waiting, running = iter(jobs), set[Future[Trace]]()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        while True:
            if time.monotonic() < deadline:
                running |= {
                    pool.submit(search_one, job) for job in islice(waiting, 2 * processes - len(running))
                }
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def search_one(job: Job) -> Trace:
    """One search, here and now."""
    return search(_space(job.path), job.contender, job.seed, job.in_flight, job.budget)


@cache
def _space(path: Path) -> SearchSpace:
    return read_space(path)
