"""The share of the optimum that Kernel Tuner's strategies reach on search-space caches, by its own simulation mode.

    pip install kernel-tuner
    python -m mctskernel.experiments.kernel_tuner FOLDER --seeds 10 --jobs 2 --out traces.jsonl

FOLDER holds cache files (`.json` or `.json.gz`). The same figures of this project's strategies come from
`mctskernel ablate strategies --spaces FOLDER`. As there, an evaluation is a configuration that a strategy asks for the
first time, failed ones included: Kernel Tuner counts its budget so. FILE keeps a line a search, and a run that was
interrupted goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import random
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from rich.progress import Progress

from mctskernel.experiments.ablation.statistics import grouped
from mctskernel.experiments.ablation.trials import Trial, improvements
from mctskernel.experiments.json_lines import append_line, read_lines
from mctskernel.experiments.results import table_lines
from mctskernel.report.resampling import estimate

CHECKPOINTS = (50, 100, 200)

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
    """Search every space of FOLDER, then print a table."""
    done = read_lines(out, msgspec.json.Decoder(Trial))
    known = {trial.key for trial in done}
    with tempfile.TemporaryDirectory() as folder_of_slim, ProcessPoolExecutor(jobs) as pool:
        caches = [slim(path, Path(folder_of_slim)) for path in sorted(folder.glob("*.json*"))]
        left = [
            Job(cache, strategy, seed, budget)
            for seed, strategy, cache in itertools.product(range(seeds), strategies.split(","), caches)
            if (strategy, cache.stem, seed) not in known
        ]
        with Progress() as progress:
            task = progress.add_task("searches", total=len(left))
            for future in as_completed([pool.submit(search, job) for job in left]):
                done.append(future.result())
                append_line(out, done[-1])
                progress.advance(task)
    click.echo("\n".join(table(done)))


def table(trials: list[Trial]) -> list[str]:
    """Make a Markdown table: each strategy's mean share over spaces with its 95 % bootstrap interval, best first."""
    rows = []
    for strategy in dict.fromkeys(trial.arm for trial in trials):
        spaces = grouped(trial for trial in trials if trial.arm == strategy).values()
        means = [
            estimate([np.array([trial.after(at) for trial in each]) for each in spaces]) for at in CHECKPOINTS
        ]
        cells = [f"{mean.mean:.3f} ({mean.low:.3f} to {mean.high:.3f})" for mean in means]
        rows.append((means[-1].mean, [f"`{strategy}`", *cells]))
    rows.sort(key=lambda row: row[0], reverse=True)
    head = ["strategy", *(f"after {count} evaluations" for count in CHECKPOINTS)]
    return list(table_lines(head, [cells for _, cells in rows]))


def slim(path: Path, folder: Path) -> Path:
    """Copy a cache file with only what a simulation reads, which is a twentieth of it."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    space = msgspec.json.decode(content)
    names = (*space["tune_params_keys"], *KEPT)
    space["cache"] = {
        key: {name: row[name] for name in names if name in row} for key, row in space["cache"].items()
    }
    target = folder / f"{path.name.split('.')[0]}.json"
    target.write_bytes(msgspec.json.encode(space))
    return target


def search(job: Job) -> Trial:
    space = msgspec.json.decode(job.cache.read_bytes())
    measured = (row["time"] for row in space["cache"].values())
    optimum = min(each for each in measured if isinstance(each, int | float))
    times: dict[tuple[object, ...], float | None] = {}
    for row in _simulate(job, space):
        times.setdefault(tuple(row[name] for name in space["tune_params_keys"]), _time_of(row))
    found = improvements(optimum / each if each is not None else 0.0 for each in times.values())
    return Trial(
        arm=job.strategy,
        subject=job.cache.stem,
        seed=job.seed,
        evaluations=len(times),
        improvements=found,
    )


def _simulate(job: Job, space: Mapping[str, Any]) -> list[dict[str, Any]]:
    from kernel_tuner import tune_kernel  # noqa: PLC0415 - only the extra `comparison` brings it

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
    found = row.get("time")
    return float(found) if isinstance(found, int | float) and "__error__" not in row else None


if __name__ == "__main__":
    main()
