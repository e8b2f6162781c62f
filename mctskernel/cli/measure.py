"""`mctskernel measure RUN`: a run's best kernels on another device."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.following import (
    follow_search,
    print_story,
    refuse_without_baseline,
)
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.executor import LOCAL
from mctskernel.executors.room import workers_on
from mctskernel.measure import BEST_NODES, Target
from mctskernel.measure import measure as measure_run
from mctskernel.report.comparison import print_comparison
from mctskernel.report.view import View, load_view


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=BEST_NODES,
    show_default=True,
    help="How many of the fastest kernels, beside all that led to them.",
)
@options.device_option(("gpu", "model"), "Where to judge them: on this machine's GPU, or by a model of one.")
@options.architecture
@options.workers
@options.executor
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The new run's folder. [default: runs/TASK-measured-DATE-TIME]",
)
def measure(
    run: Path,
    nodes: int,
    device: str,
    architecture: str,
    workers: int | None,
    engine: str | None,
    gpus: tuple[str, ...],
    ray_address: str,
    counters: str | None,
    out: Path | None,
) -> None:
    """Judge the best kernels of RUN on this machine's GPU, into a new run.

    RUN was made by a model of a GPU, or on another one. Its fastest kernels, its answer and every kernel on the
    way to them are built, verified, timed and profiled here. The new run has the same edits between the same
    kernels and an answer of its own, so `show`, `export` and `resume` work on it. Says at the end how the times of
    the two runs compare. RUN itself is not changed.

        mctskernel measure runs/softmax-20260101-120000 --nodes 20
    """
    before = load_view(run)
    before.refuse_recorded()
    task, language = before.manifest.configuration.task, before.manifest.configuration.language
    path = out or Path("runs") / f"{task}-measured-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    executor = options.executor_options(device, engine, gpus, ray_address, counters) or LOCAL
    target = Target(device, architecture, workers or workers_on(device, language, executor), executor)
    echo(f"Measuring the best kernels of {run} on {device} into {path}")
    with follow_search() as (follow, stop_requested):
        conclusion = measure_run(
            before, path, target, best_nodes=nodes, follow=follow, stop_requested=stop_requested
        )
    refuse_without_baseline(conclusion)
    after = View(conclusion.folder, conclusion.tree, conclusion.answer)
    print_comparison(PlainConsole(), before, after)
    left = (after.manifest.configuration.budget.evaluations or 0) - after.tree.evaluations
    if left > 0:
        echo(f"{left} more kernel(s) were to be measured.")
    print_story(conclusion)
