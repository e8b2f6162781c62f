"""The space of a problem's template, timed on a GPU and kept as a search-space cache to compare strategies on.

    python -m mctskernel.experiments.template_spaces KernelBench/level1/23_Softmax.py --out FOLDER
    mctskernel ablate search --spaces FOLDER

A parameter is a macro of the kernel. Its values are those that an assertion lists, else the default times powers of
two, and small numbers beside it; assertions decide which combinations exist. Where those are too many, the values
furthest from the defaults are left out. Every configuration is built, and timed at the problem's own size, on values
that are drawn, with a cold L2 cache. Templates are right wherever their assertions hold, so none is verified.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import random
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

import click
import torch

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.space import Entry, Parameter, SearchSpace
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits import syntax
from mctskernel.edits.rules.tuning import asserts_hold
from mctskernel.experiments.tunables import tunables, with_tunables
from mctskernel.problems.registry import read_problem, write_problem
from mctskernel.problems.torch_task import drawn_tensors
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.gpu.cuda_driver import CudaError, open_gpu
from mctskernel.profiling.pytorch.interleaved import bound_plan, loaded, timed
from mctskernel.profiling.spaces import space_name, write_space
from mctskernel.profiling.stages import Stages

POWERS, SMALL, LARGEST = 3, 4, 4
"""A default is halved and doubled so often, one up to SMALL is counted up and down; and so many times more combinations
than are wanted are looked at."""

WARM_UP, RUNS = 2, 5
START = "start_templates.cu"


@click.command()
@click.argument("problems", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--configurations", type=click.IntRange(min=1), default=400, show_default=True, help="At most.")
@click.option("--seconds", type=float, default=600.0, show_default=True, help="Of each problem.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=8, show_default=True, help="Processes that compile."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(*, problems: tuple[Path, ...], configurations: int, seconds: float, jobs: int, out: Path) -> None:
    """Time the template of each problem on this machine's GPU."""
    out.mkdir(parents=True, exist_ok=True)
    gpu, context = open_gpu(), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__spec__.name])
    with ProcessPoolExecutor(jobs, context) as pool, tempfile.TemporaryDirectory() as tasks:
        for problem in problems:
            folder = Path(tasks) / problem.stem
            write_problem(read_problem(problem, Language.CUDA), folder)
            kernel = Kernel((folder / START).read_text("utf-8"))
            values, end = levels(kernel, configurations), time.monotonic() + seconds
            built = [
                (setting, pool.submit(build, folder, with_tunables(kernel, setting).source, gpu.architecture))
                for setting in shuffled(allowed(kernel, values))
            ]
            entries = timings(load_task(folder, Language.CUDA), built, end)
            parameters = tuple(Parameter(name, tuple(each)) for name, each in values.items())
            space = SearchSpace(space_name(Path(problem.stem)), parameters, tuple(entries), gpu.name, START)
            write_space(space, out / f"{space.name}.json.gz")
            click.echo(described(space))


def described(space: SearchSpace) -> str:
    """A line with the space's size, its optimum and the defaults' time."""
    times = [each.seconds for each in space.entries if each.seconds is not None]
    default = space.by_values.get(tuple(each.values[0] for each in space.parameters))
    first = default.seconds if default is not None and default.seconds else math.nan
    told = [min(times, default=math.nan), first, statistics.median(times or [math.nan])]
    best, at_first, median = (f"{1e3 * each:.4g} ms" for each in told)
    count = f"{len(space.entries)} configurations, {len(space.entries) - len(times)} failed"
    return f"{space.name}: {count}; best {best}, defaults {at_first}, median {median}"


def shuffled(settings: list[dict[str, int]]) -> list[dict[str, int]]:
    """In a random order, so that the first of them are a sample."""
    return random.Random(0).sample(settings, len(settings))  # noqa: S311 - no secret


def levels(kernel: Kernel, most: int) -> dict[str, list[int]]:
    """The values of each macro, the default first, of which at most so many combinations are allowed."""
    found = {}
    for name, default in tunables(kernel).items():
        values = {default << power for power in range(POWERS + 1)}
        values |= {default >> power for power in range(POWERS + 1) if default % (1 << power) == 0}
        values |= {default - 1, default + 1} if default <= SMALL else set()
        if re.search(rf"\b{name} == \d+ \|\|", kernel.source):
            values = {int(each) for each in re.findall(rf"\b{name} == (\d+)\b", kernel.source)}
        near = sorted(values - {0}, key=lambda each: abs(math.log2(each / default)))
        found[name] = [each for each in near if allowed(kernel, {name: [each]})]
    while math.prod(map(len, found.values())) > LARGEST * most or len(allowed(kernel, found)) > most:
        max(found.values(), key=len).pop()
    return found


def allowed(kernel: Kernel, values: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    source = syntax.parse(kernel.source)
    combinations = (dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))
    return [each for each in combinations if asserts_hold(source, with_tunables(kernel, each).macros)]


Built = tuple[Candidate | Outcome, dict[str, float]]
"""A kernel for this GPU, or what became of it, and the seconds of its stages."""


def timings(task: Task, built: list[tuple[dict[str, int], Future[Built]]], end: float) -> list[Entry]:
    """What became of each configuration, of as many as there is time for."""
    tensors = drawn_tensors(task.inputs, task.search_shapes[0], "cuda")
    found = []
    for setting, job in built:
        if time.monotonic() > end:
            job.cancel()
            continue
        candidate, stages = job.result()
        outcome, seconds, began = Outcome.OK, None, time.perf_counter()
        if isinstance(candidate, Candidate):
            try:
                seconds = median_seconds(task, candidate, tensors)
            except (CudaError, torch.OutOfMemoryError):
                outcome = Outcome.LAUNCH_ERROR
                try:
                    torch.cuda.synchronize()
                except RuntimeError:
                    break  # nothing runs in this process any more
        else:
            outcome = candidate
        stages["benchmark"] = time.perf_counter() - began
        found.append(Entry(tuple(setting.values()), outcome, seconds, stage_seconds=stages))
    return found


def build(folder: Path, source: str, architecture: str) -> Built:
    stages = Stages()
    try:
        with stages.timed("compile"):
            return prepare(_task(folder), Kernel(source), architecture, Stages()), stages.seconds
    except RefusedError as error:
        return error.outcome, stages.seconds


@lru_cache(maxsize=1)
def _task(folder: Path) -> Task:
    return load_task(folder, Language.CUDA)


def median_seconds(task: Task, candidate: Candidate, tensors: Mapping[str, torch.Tensor]) -> float:
    """The time of a run. Raises CudaError."""
    module = loaded(candidate)
    try:
        call, _ = bound_plan(task, task.search_shapes[0], candidate, module, tensors)
        run = timed(call)
        return statistics.median([run() for _ in range(WARM_UP + RUNS)][WARM_UP:])
    finally:
        module.unload()


if __name__ == "__main__":
    main()
