"""`mctskernel resume RUN`: go on with a run."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.following import conclude, follow_search
from mctskernel.core.executor import CounterSet
from mctskernel.run import Budget
from mctskernel.runner import resume as resume_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--budget", type=click.IntRange(min=1), help="Evaluations in all, those of before included.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds in all, likewise.")
@options.max_usd("Money in all, likewise.")
@click.option("--workers", type=click.IntRange(min=1), help="Evaluations in flight. [default: as before]")
@options.server
@options.executor
def resume(
    run: Path,
    budget: int | None,
    seconds: float | None,
    dollars: float | None,
    workers: int | None,
    server: str,
    engine: str | None,
    gpus: tuple[str, ...],
    ray_address: str,
    counters: str | None,
) -> None:
    """Go on with RUN where it stopped: after Ctrl-C, a crash, or with a larger budget.

    Without a budget the run's own is used. Evaluations that were finished are never repeated. A machine whose
    times can't be compared with the run's is refused.
    """
    executor = options.executor_options(server or None, engine, gpus, ray_address)
    limits = Budget(evaluations=budget, seconds=seconds, dollars=dollars)
    with follow_search() as (follow, stop_requested):
        conclusion = resume_run(
            run,
            None if limits == Budget() else limits,
            workers,
            follow,
            stop_requested,
            executor=executor,
            server=server,
            counters=CounterSet(counters) if counters else None,
        )
    conclude(conclusion)
