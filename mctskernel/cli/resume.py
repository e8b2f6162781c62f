"""`mctskernel resume RUN`: continue a run, or with its best kernels on another device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.following import follow_search, print_outcome, pytorch_timing, time_pytorch
from mctskernel.cli.plain_console import echo
from mctskernel.config import SearchConfig, check, read_config
from mctskernel.core.budget import Budget
from mctskernel.executors import workers_on
from mctskernel.report.view import View, load_view
from mctskernel.run import new_path, open_run, read_manifest
from mctskernel.run.repeating import BEST_NODES, measure
from mctskernel.run.search import resume as resume_run


@click.command()
@click.argument("run", type=options.PATH)
@options.settings(
    "budget",
    "workers",
    "executor",
    "device",
    "architecture",
    changes={
        "budget.evaluations": {"default": "as before"},
        "workers": {"default": "as before"},
        "executor": {"default": "as before"},
        "device": {
            "type": click.Choice(("gpu", "model")),
            "help": "Evaluate the best kernels of RUN on this device, into a new run.",
        },
    },
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=BEST_NODES,
    show_default=True,
    help="With --device: number of the fastest kernels to evaluate, beside all their ancestors.",
)
@click.option(
    "--out",
    type=options.PATH,
    help="With --device: the new run's folder. [default: runs/TASK-measured-DATE-TIME]",
)
def resume(run: Path, *, table: dict[str, Any], nodes: int, out: Path | None) -> None:
    """Continue the search of RUN: after Ctrl-C, a crash, or with a larger budget.

    Without a budget the run's own is used. Finished evaluations are never repeated. A machine whose times can't be
    compared with the run's is refused.

    With --device the best kernels of RUN are evaluated on another device instead, typically a GPU after a search on
    the model. The new run has the same edits between the same kernels and an answer of its own, so every command
    works on it, `resume` too. RUN itself does not change.

        mctskernel resume RUN --budget 400

        mctskernel resume RUN --device gpu --nodes 20
    """
    chosen = read_config(table)
    check(chosen)
    if "device" in table:
        _measure(load_view(run), chosen, nodes, out)
        return
    executor, folder = table.get("executor", {}), open_run(run)
    before = read_manifest(folder).configuration
    with pytorch_timing(folder.task, before.device, before.budget.seconds) as timing:
        with follow_search() as (follow, stop_requested):
            search_result = resume_run(
                run,
                msgspec.convert(table["budget"], Budget) if "budget" in table else None,
                chosen.workers or None,
                follow,
                stop_requested,
                executor=chosen.executor if executor.keys() - {"counters"} else None,
                counters=chosen.executor.counters,
            )
        time_pytorch(search_result, timing)
    print_outcome(search_result)


def _measure(before: View, chosen: SearchConfig, nodes: int, out: Path | None) -> None:
    before.refuse_recorded()
    configuration = before.manifest.configuration
    path = out or new_path(f"{configuration.task}-measured")
    echo(f"Evaluating the best kernels of {before.folder.path} on {chosen.device} into {path}")
    with follow_search() as (follow, stop_requested):
        search_result = measure(
            before.folder,
            path,
            device=chosen.device,
            architecture=chosen.architecture,
            workers=chosen.workers or workers_on(chosen.device, chosen.executor),
            executor=chosen.executor,
            best_nodes=nodes,
            follow=follow,
            stop_requested=stop_requested,
        )
    print_outcome(search_result)
