"""`mctskernel search [TASK]...`: a new run, or several under one budget."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rich_click as click
from click.core import ParameterSource

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import (
    follow_search,
    print_outcome,
    print_result,
    pytorch_timing,
    stopping,
    time_pytorch,
)
from mctskernel.cli.options import Registered
from mctskernel.cli.plain_console import echo
from mctskernel.cli.tasks import compiled_start, find_task_or_problem
from mctskernel.config import OUTSIDE, REPLAY, SearchConfig, for_task, read_config
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task, other_starts
from mctskernel.executors import opening_ahead
from mctskernel.loop import Snapshot, StopReason
from mctskernel.problems.pytorch_timing import FIRST
from mctskernel.problems.registry import is_problem
from mctskernel.profiling.devices import default_kind
from mctskernel.profiling.processes.forked import import_first
from mctskernel.profiling.spaces import read_space
from mctskernel.report.live import improvement_text
from mctskernel.report.notes import counted
from mctskernel.run import RunFolder, new_path
from mctskernel.run.repeating import replay
from mctskernel.run.search import begin
from mctskernel.run.several import Plan, read_weights, search_all, shared, speedup_of_model
from mctskernel.tasks.builtin import DEFAULT_TASK
from mctskernel.tasks.space import choose_start, write_space_task
from mctskernel.tasks.starts import set_plain_aside

AddStart = Callable[[Path], None]  # to a run's task folder, once the device is open


@click.command()
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option(
    "--space",
    panel="Task",
    type=options.PATH,
    help="Search the recorded configurations of a cache file of Kernel Tuner, in place of a TASK.",
)
@options.settings(
    *options.SEARCH,
    "precision",
    "executor",
    file=True,
    changes={"proposer": {"type": Registered("proposer", REPLAY)}},
)
@click.option(
    "--from",
    "source",
    panel="Proposer",
    type=options.PATH,
    help="The run whose edits --proposer replay repeats.",
)
@click.option(
    "--weights",
    panel="Task",
    type=options.KNOWN_FILE,
    help="With several TASKs: a TOML file with a line `task = number` for each, its seconds in the whole model or its "
    "share. [default: all equal]",
)
@click.option(
    "--out",
    panel="Output",
    type=options.PATH,
    help="The run's folder; with several TASKs, the folder of their runs. [default: runs/TASK-DATE-TIME]",
)
@click.option(
    "--baselines/--no-baselines",
    panel="Output",
    default=True,
    show_default=True,
    help="For a PyTorch function or problem on a GPU, time PyTorch beside the best kernel at the end.",
)
@click.pass_context
def search(
    context: click.Context,
    *,
    tasks: tuple[str, ...],
    space: Path | None,
    table: dict[str, Any],
    source: Path | None,
    weights: Path | None,
    out: Path | None,
    baselines: bool,
) -> None:
    """Search for a faster version of TASK's kernel, or of the kernels of several TASKs under one budget.

    TASK is a folder with task.toml, reference.py and a kernel (`mctskernel new-task DIR` makes one), the
    name of a built-in task (`mctskernel tasks` lists them), or a problem of KernelBench, SOL-ExecBench,
    flashinfer-bench or GPU MODE. Every version is compiled, verified against the reference, timed and diagnosed. The
    tree is saved as it grows, so Ctrl-C or a crash loses nothing: `mctskernel resume RUN` continues. With --workers 1
    the same seed gives the same tree.

    Of several TASKs, each next evaluation goes where the model of edits expects to save the most time, by the
    --weights. Each task has a run of its own, OUT/TASK; the same command with the same --out continues all of them.

        mctskernel search softmax --budget 100

        mctskernel search softmax layernorm my_task/ --weights weights.toml --out runs/block

        mctskernel search my_task/ --device gpu --seconds 600 --out runs/first

        mctskernel search --space recorded.json.gz --budget 200

        mctskernel search softmax --proposer mixed --model qwen3-coder --base-url http://localhost:8000/v1
    """
    if source is not None or table.get("proposer") == REPLAY:
        _replay(context, source, out)
        return
    config = read_config(table)
    if len(tasks) > 1 and space is None:
        folders = [find_task_or_problem(context, task, config.language, config.precision) for task in tasks]
        _search_several(folders, config, weights, out, baselines=baselines)
        return
    if weights is not None:
        raise click.UsageError("--weights is for several TASKs.")
    add_start: AddStart | None = None
    if space is None:
        named = tasks[0] if tasks else DEFAULT_TASK
        device = default_kind() if config.device == "auto" else config.device
        is_on_gpu = device == "gpu" and is_problem(named)
        if is_on_gpu:
            import_first(FIRST)
        context.with_resource(opening_ahead(device, config.executor))
        read = partial(find_task_or_problem, context, named, precision=config.precision)
        if is_on_gpu and config.language is None:
            add_start = context.with_resource(compiled_start(named, config.precision))
            try:
                folder = read(Language.CUDA)
            except TaskError:
                folder = read(None)
        else:
            folder = read(config.language)
        if is_on_gpu:
            set_plain_aside(folder)
    elif tasks:
        raise click.UsageError("Give a TASK or a --space, not both.")
    else:
        folder = Path(context.with_resource(TemporaryDirectory()))
        recorded = read_space(space)
        write_space_task(space, recorded, choose_start(recorded, config.seed).entry, folder)
    search_task(folder, config, out, add_start, baselines=baselines)


def search_task(
    folder: Path,
    config: SearchConfig,
    out: Path | None,
    add_start: AddStart | None = None,
    *,
    baselines: bool = True,
) -> None:
    """Search one task folder in a new run, and print how it ended. Raises what `run.begin` raises."""
    gc.freeze()  # what was imported stays: to look through it takes as long as an evaluation
    task = load_task(folder, config.language)
    config = for_task(config, task)
    path = out or new_path(task.name)
    note = "".join(f" ({each})" for each in task.caveats)
    workers = counted(config.workers, "worker") if config.workers else "all workers of the cluster"
    starts = [task.starting_kernel, *other_starts(folder, config.language).values()]
    languages = " and ".join(dict.fromkeys(kernel.language for kernel in starts))
    echo(f"Searching {task.name} in {languages} on {config.device} with {workers} into {path}{note}")
    with pytorch_timing(folder, config.device, config.budget.seconds, wanted=baselines) as timing:
        with follow_search() as (follow, stop_requested):
            ready = partial(add_start, RunFolder(path).task) if add_start else lambda: None
            search_result = begin(path, folder, config, follow, stop_requested, ready=ready)
        time_pytorch(search_result, timing)
    print_outcome(search_result)


def _search_several(
    folders: Sequence[Path], config: SearchConfig, weights: Path | None, out: Path | None, *, baselines: bool
) -> None:
    """Search several task folders, each in a run of its own, and print how they ended."""
    if config.executor.engine == "ray":
        raise click.UsageError("--executor ray is for one TASK at a time.")
    if config.proposer == OUTSIDE:
        raise click.UsageError(f"--proposer {OUTSIDE} is for one TASK at a time.")
    tasks = [load_task(folder, config.language) for folder in folders]
    found = [for_task(config, task) for task in tasks]
    names = [each.task for each in found]
    if len(set(names)) < len(names):
        raise click.UsageError("Two of the tasks have the same name.")
    shares = read_weights(weights, names) if weights else dict.fromkeys(names, 1.0)
    path = out or new_path("several")
    plans = [
        Plan(path / each.task, folder, shared(each, len(found)), shares[each.task])
        for folder, each in zip(folders, found, strict=True)
    ]
    echo(f"Searching {', '.join(names)} on {found[0].device} into {path}")
    with stopping() as stop_requested:
        results = search_all(plans, config.budget, _print_improvement, stop_requested)
    for plan, search_result in zip(plans, results, strict=True):
        chosen = plan.configuration
        with pytorch_timing(
            plan.task_folder, chosen.device, chosen.budget.seconds, wanted=baselines
        ) as timing:
            time_pytorch(search_result, timing)
        print_result(chosen.task, search_result)
    echo(f"All of them together: {speedup_of_model(plans, results):.2f}x by their weights.")
    if any(search_result.stop_reason is StopReason.INTERRUPTED for search_result in results):
        echo(f"To continue: the same command with --out {path}")
        sys.exit(INTERRUPTED)


def _print_improvement(task: str, snapshot: Snapshot) -> None:
    if snapshot.note:
        echo(f"{task}: {snapshot.note}")
    if snapshot.improved_by:
        echo(f"{task}: {improvement_text(snapshot).strip()}")


def _replay(context: click.Context, source: Path | None, out: Path | None) -> None:
    """Repeat the edits of a run."""
    if source is None or context.params["proposer"] != REPLAY:
        raise click.UsageError("A replay needs both --proposer replay and --from RUN.")
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    elsewhere = {name: given[name] for name in ("device", "architecture") if name in given}
    if others := given.keys() - elsewhere.keys() - {"proposer", "source", "out"}:
        message = (
            f"A replay takes everything but the device from {source}: leave {', '.join(sorted(others))} out."
        )
        raise click.UsageError(message)
    path = out or new_path(f"{source.name}-replayed")
    echo(f"Replaying {source} into {path}")
    with follow_search() as (follow, stop_requested):
        search_result, difference = replay(path, source, follow, stop_requested, **elsewhere)
    echo(difference or f"Every node of {source} was made again.")
    print_outcome(search_result)
