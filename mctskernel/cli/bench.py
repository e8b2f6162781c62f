"""`mctskernel bench PROBLEM...`: search every problem of a folder, and print the table."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import stopping
from mctskernel.cli.plain_console import deliver, deliver_json, echo
from mctskernel.config import SearchConfig, read_config
from mctskernel.core.disk import write_whole
from mctskernel.core.executor import CounterSet
from mctskernel.core.user_errors import MisuseError
from mctskernel.experiments.bench.pipeline import Pipeline, Plan
from mctskernel.experiments.bench.rows import ROW_FILE, draw, find_problems, natural, read_row
from mctskernel.experiments.bench.table import document, summary
from mctskernel.experiments.results import provenance_here, write_result
from mctskernel.profiling.devices import default_kind

MOST_COMPILERS, CORES_OF_READER = 8, 16


@click.command()
@click.argument("paths", metavar="[FOLDER|FILE|TASK]...", nargs=-1, type=options.PATH)
@click.option(
    "--seconds-per-problem",
    "seconds",
    panel="Budget",
    type=click.FloatRange(min=0, min_open=True),
    help="Time limit of each search in seconds, including its final validation.",
)
@click.option(
    "--minutes",
    panel="Budget",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after this time; the same command continues. [default: no limit]",
)
@click.option(
    "--validate-only",
    is_flag=True,
    panel="Budget",
    help="Evaluate only the starting kernels, and validate the fastest: shows which problems are supported.",
)
@click.option(
    "--sample",
    panel="Problems",
    type=click.IntRange(min=1),
    help="Number of problems to draw at random, with --seed.",
)
@click.option(
    "--levels",
    panel="Problems",
    metavar="NAME,...",
    default="",
    help="Only problems in folders of these names, such as level1,level2.",
)
@options.settings(*options.SEARCH, "executor", without=("budget.seconds",), file=True)
@click.option(
    "--at-a-time",
    panel="Device",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Concurrent searches on each GPU, which slow each other down.",
)
@click.option(
    "--baselines/--no-baselines",
    panel="Output",
    default=True,
    show_default=True,
    help="On a GPU, time PyTorch eager and compiled beside the best kernel of each problem.",
)
@click.option(
    "--out",
    panel="Output",
    type=options.FOLDER,
    required=True,
    help="The folder of the rows, the runs and the table; give it again to continue.",
)
@click.option(
    "--json", "as_json", is_flag=True, panel="Output", help="Print the table as JSON, times in seconds."
)
def bench(
    paths: tuple[Path, ...],
    *,
    seconds: float | None,
    minutes: float | None,
    validate_only: bool,
    sample: int | None,
    levels: str,
    table: dict[str, Any],
    at_a_time: int,
    baselines: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Search every problem of FOLDERs, and print one table: speed-ups over PyTorch, fast_p, shares of the roofline.

    Problems are those of KernelBench, SOL-ExecBench, flashinfer-bench or GPU MODE, task folders, and built-in tasks
    by name, which are timed beside PyTorch's operators. A problem that fails has a row with the reason.

    OUT has the table as bench.md and bench.json, and the run of each problem. Where a benchmark was stopped,
    the same command continues with what is missing; without a FOLDER it prints the table of what is there.

        mctskernel bench KernelBench/level1 --seconds-per-problem 20 --out level1

        mctskernel bench KernelBench --levels level1,level2 --sample 48 --seed 1 --seconds-per-problem 20 --out sample

        mctskernel bench KernelBench --validate-only --out coverage
    """
    config = read_config(
        {**table, "budget": {**table.get("budget", {}), **({"seconds": seconds} if seconds else {})}}
    )
    say = partial(echo, err=as_json)
    is_complete = True
    if paths:
        chosen = draw(find_problems(paths, [each for each in levels.split(",") if each]), sample, config.seed)
        plan = _plan(config, at_a_time, baselines=baselines and not validate_only, each_start=validate_only)
        plan = replace(plan, seconds=60 * minutes) if minutes else plan
        out.mkdir(parents=True, exist_ok=True)
        pipeline = Pipeline(chosen, out, plan, say)
        with stopping() as stop_requested:
            pipeline.run(stop_requested)
            interrupted = stop_requested()
        rows, is_complete = list(pipeline.rows.values()), not interrupted
    else:
        rows = [read_row(file.parent) for file in sorted(out.glob(f"*/{ROW_FILE}"))]
        if not rows:
            raise MisuseError(f"{out} has no rows: name a FOLDER of problems to search.")
    provenance = provenance_here()
    waiting = sum(not row.is_over for row in rows)
    rows = sorted((row for row in rows if row.is_over), key=lambda row: natural(row.problem))
    text = document(rows, "Benchmark", provenance, waiting)
    try:
        write_whole(out / "bench.md", f"{text}\n".encode())
        write_result(out / "bench.json", {"summary": summary(rows), "rows": rows}, provenance)
    except OSError as error:
        echo(f"mctskernel: The table can't be written: {error}.", err=True)
    if as_json:
        deliver_json({"summary": summary(rows), "rows": rows})
    else:
        deliver(f"{text}\n")
    if not is_complete:
        echo("To continue: the same command.", err=True)
        sys.exit(INTERRUPTED)


def _plan(config: SearchConfig, at_a_time: int, *, baselines: bool, each_start: bool) -> Plan:
    """How problems are searched on this machine. Raises DeviceError for GPUs that aren't there."""
    kind = config.device if config.device != "auto" else default_kind()
    config = msgspec.structs.replace(config, device=kind)
    gpus: tuple[tuple[str, int], ...] = ()
    if kind == "gpu":
        from mctskernel.profiling.gpu.choice import chosen_gpus  # noqa: PLC0415 - needs the driver's bindings

        choice = chosen_gpus(config.executor.gpus)
        for note in choice.notes:
            echo(f"mctskernel: {note}", err=True)
        gpus = tuple((gpu.uuid, gpu.memory_bytes) for gpu in choice.gpus)
        # All counters take longer to read than a kernel to verify.
        executor = msgspec.structs.replace(
            config.executor, counters=config.executor.counters or CounterSet.FEW
        )
        config = msgspec.structs.replace(config, executor=executor)
    cores = os.cpu_count() or 1
    readers = max(2, cores // CORES_OF_READER)
    plan = Plan(config, gpus, at_a_time, readers, baselines=baselines and bool(gpus), each_start=each_start)
    if not config.workers and (gpus or plan.searches > 1):
        # The other half of the cores reads, opens and compiles for others.
        workers = min(MOST_COMPILERS, max(2, cores // (2 * plan.searches))) if gpus else 1
        plan = replace(plan, config=msgspec.structs.replace(config, workers=workers))
    return plan
