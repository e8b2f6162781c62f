"""What Kernel Tuner's strategies find in recorded spaces, by its own simulation mode.

    python -m mctskernel.experiments.kernel_tuner_baseline FOLDER --seeds 10 --jobs 2 --out traces.jsonl

Kernel Tuner is no dependency of this project: `pip install kernel-tuner` first. FOLDER holds its cache files, as
`.json` or `.json.gz`. Traces are of the form that `mctskernel.experiments.search_strategies table` reads, beside
those of this project's strategies. An evaluation is a configuration of the space that a strategy asks for the first
time, whether it failed or not; what isn't in the space costs nothing: so does Kernel Tuner count its budget. The
traces "by requests" count every request for a configuration of the space, those that its cache answers too.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import random
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from rich.progress import Progress

from mctskernel.experiments.strategies.traces import Trace, TraceLog, improvements

STRATEGIES = (
    "adaptive_tabu_greywolf",
    "hybrid_vndx",
    "firefly_algorithm",
    "pso",
    "diff_evo",
    "simulated_annealing",
    "genetic_algorithm",
    "random_sample",
    "mls",
    "dual_annealing",
    "greedy_ils",
)

BY_REQUESTS = ", by requests"
"""Ends the contender's name where every request counts."""

KEPT = ("time", "compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
"""What a strategy's simulation reads of a configuration, beside its parameters."""


@dataclass(frozen=True)
class Job:
    """One search: a strategy on a cache file that `slim` wrote."""

    cache: Path
    strategy: str
    seed: int
    budget: int


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--strategies", default=",".join(STRATEGIES), show_default=True, help="Separated by commas.")
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--budget", type=click.IntRange(min=1), default=200, show_default=True, help="Evaluations.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(*, folder: Path, strategies: str, seeds: int, budget: int, jobs: int, out: Path) -> None:
    """Search every space of FOLDER with Kernel Tuner's strategies, and go on where it was cut off."""
    log = TraceLog(out)
    with tempfile.TemporaryDirectory() as slimmed, ProcessPoolExecutor(jobs) as pool:
        caches = [slim(path, Path(slimmed)) for path in sorted(folder.glob("*.json*"))]
        wanted = itertools.product(range(seeds), strategies.split(","), caches)
        left = [
            Job(cache, strategy, seed, budget)
            for seed, strategy, cache in wanted
            if (cache.stem, _contender(strategy), seed, 1) not in log.done
        ]
        with Progress() as progress:
            task = progress.add_task("searches", total=len(left))
            for future in as_completed([pool.submit(search, job) for job in left]):
                for trace in future.result():
                    log.append(trace)
                progress.advance(task)


def slim(path: Path, folder: Path) -> Path:
    """A cache file's copy with what a simulation reads and nothing else, which is a twentieth of it."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    space = msgspec.json.decode(content)
    names = (*space["tune_params_keys"], *KEPT)
    space["cache"] = {
        key: {name: row[name] for name in names if name in row} for key, row in space["cache"].items()
    }
    target = folder / f"{path.name.split('.')[0]}.json"
    target.write_bytes(msgspec.json.encode(space))
    return target


def search(job: Job) -> tuple[Trace, Trace]:
    """Run one strategy on one space: its trace by configurations, and that by requests."""
    space = msgspec.json.decode(job.cache.read_bytes())
    began = time.process_time()
    rows = _simulate(job, space)
    seconds = time.process_time() - began
    known = (row["time"] for row in space["cache"].values())
    optimum = min(each for each in known if isinstance(each, int | float))
    requests = [(tuple(row[name] for name in space["tune_params_keys"]), _time_of(row)) for row in rows]
    first = dict(reversed(requests))

    def trace(contender: str, times: Sequence[float | None]) -> Trace:
        return Trace(
            space=job.cache.stem,
            contender=contender,
            seed=job.seed,
            evaluations=len(times),
            failures=times.count(None),
            improvements=improvements(times, optimum),
            seconds=seconds,
            code=f"kernel_tuner {version('kernel_tuner')}",
        )

    by_configuration = [first[values] for values in dict.fromkeys(values for values, _ in requests)]
    return (
        trace(_contender(job.strategy), by_configuration[: job.budget]),
        trace(f"{_contender(job.strategy)}{BY_REQUESTS}", [time for _, time in requests][: job.budget]),
    )


def _simulate(job: Job, space: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Imported here: the tests, and whoever reads a table, have no Kernel Tuner.
    from kernel_tuner import tune_kernel  # noqa: PLC0415 - as said above

    names, known = space["tune_params_keys"], space["cache"].keys()

    # No lambda, whose source text Kernel Tuner would take apart.
    def exists(values: Mapping[str, Any]) -> bool:
        return ",".join(str(values[name]) for name in names) in known

    random.seed(job.seed)
    np.random.seed(job.seed)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        rows, _ = tune_kernel(
            space["kernel_name"],
            "",
            space["problem_size"],
            [],
            space["tune_params"],
            restrictions=exists,
            lang="CUDA",
            simulation_mode=True,
            cache=str(job.cache),
            strategy=job.strategy,
            strategy_options={"max_fevals": job.budget},
            quiet=True,
            seed=job.seed,
        )
    return list(rows)


def _time_of(row: Mapping[str, Any]) -> float | None:
    """None for a failure."""
    found = row.get("time")
    return float(found) if isinstance(found, int | float) and "__error__" not in row else None


def _contender(strategy: str) -> str:
    return f"kernel_tuner:{strategy}"


if __name__ == "__main__":
    main()
