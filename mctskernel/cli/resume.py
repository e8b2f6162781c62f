"""`mctskernel resume RUN`: go on with a run, or with its best kernels on another device."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.following import follow_search, print_outcome, print_story, refuse_without_baseline
from mctskernel.cli.measuring import BEST_NODES, measure
from mctskernel.cli.options import Driver
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.cli.search import now
from mctskernel.core.budget import Budget
from mctskernel.core.executor import LOCAL, CounterSet
from mctskernel.executors import workers_on
from mctskernel.report.comparison_table import print_comparison
from mctskernel.report.view import View, load_view
from mctskernel.run import resume as resume_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@options.budget(None)
@click.option("--workers", type=click.IntRange(min=1), help="Evaluations in flight. [default: as before]")
@options.driver
@options.device_option(
    "gpu",
    "model",
    text="Evaluate the best kernels of RUN on this device, into a new run, and compare the times.",
)
@options.architecture
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=BEST_NODES,
    show_default=True,
    help="With --device: how many of the fastest kernels, beside all their ancestors.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="With --device: the new run's folder. [default: runs/TASK-measured-DATE-TIME]",
)
def resume(
    run: Path,
    *,
    budget: Budget,
    workers: int | None,
    driver: Driver,
    device: str | None,
    architecture: str,
    nodes: int,
    out: Path | None,
) -> None:
    """Go on with RUN where it stopped: after Ctrl-C, a crash, or with a larger budget.

    Without a budget the run's own is used. Finished evaluations are never repeated. A machine whose times can't be
    compared with the run's is refused.

    With --device the best kernels of RUN are evaluated on another device instead, typically a GPU after a search on
    the model. The new run has the same edits between the same kernels and an answer of its own, so every command
    works on it, `resume` too. RUN itself does not change.

        mctskernel resume RUN --budget 400

        mctskernel resume RUN --device gpu --nodes 20
    """
    if device is not None:
        _measure(load_view(run), device, architecture, workers, driver, nodes=nodes, out=out)
        return
    executor = driver.options(None)
    with follow_search() as (follow, stop_requested):
        search_result = resume_run(
            run,
            None if budget == Budget() else budget,
            workers,
            follow,
            stop_requested,
            executor=executor if driver.engine or driver.gpus else None,
            counters=CounterSet(driver.counters) if driver.counters else None,
        )
    print_outcome(search_result)


def _measure(
    before: View,
    device: str,
    architecture: str,
    workers: int | None,
    driver: Driver,
    *,
    nodes: int,
    out: Path | None,
) -> None:
    """Evaluate the best kernels of a run on another device, into a new run."""
    before.refuse_recorded()
    configuration = before.manifest.configuration
    path = out or Path("runs") / f"{configuration.task}-measured-{now()}"
    executor = driver.options(device) or LOCAL
    echo(f"Evaluating the best kernels of {before.folder.path} on {device} into {path}")
    with follow_search() as (follow, stop_requested):
        search_result = measure(
            before.folder,
            path,
            device=device,
            architecture=architecture,
            workers=workers or workers_on(device, configuration.language, executor),
            executor=executor,
            best_nodes=nodes,
            follow=follow,
            stop_requested=stop_requested,
        )
    refuse_without_baseline(search_result)
    after = View(search_result.folder, search_result.tree, search_result.answer)
    print_comparison(PlainConsole(), before, after)
    left = (after.manifest.configuration.budget.evaluations or 0) - after.tree.evaluations
    if left > 0:
        echo(f"{left} more kernel(s) were to be evaluated.")
    print_story(search_result)
