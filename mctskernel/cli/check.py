"""`mctskernel check`: what is wrong with a task, or whether PyTorch modules are right and faster."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import BAD_TASK, REFUSED
from mctskernel.cli.plain_console import deliver, echo
from mctskernel.cli.tasks import find_task_or_problem
from mctskernel.core.kernel import Language
from mctskernel.core.quantities import time_text
from mctskernel.core.task_file import read_text
from mctskernel.profiling.pytorch.evaluator import ModuleVerdict, Settings, open_evaluator
from mctskernel.profiling.pytorch.verdict import Speedup
from mctskernel.tasks.check import check_task

MOST_RUNS = 1000
"""Timed rounds of a module whose time is short against the round trip to its process, for at most a minute."""


@click.command()
@click.argument("task", metavar="TASK|REFERENCE")
@click.argument("candidates", type=options.PATH, nargs=-1, metavar="[CANDIDATE]...")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Modules only: where they run.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Modules only: the seed of inputs and weights. [default: drawn, and printed]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=5),
    help="Modules only: timed rounds. [default: 30, and more for up to a minute where the module takes less than the "
    "round trip to its process]",
)
@click.option(
    "--own-kernels", is_flag=True, help="Modules only: refuse one that defines no kernel of its own."
)
@click.option("--json", "as_json", is_flag=True, help="Modules only: print a JSON object for each candidate.")
@click.pass_context
def check(
    context: click.Context,
    *,
    task: str,
    candidates: tuple[Path, ...],
    device: str,
    seed: int | None,
    runs: int | None,
    own_kernels: bool,
    as_json: bool,
) -> None:
    """Run the reference and the starting kernel of TASK and list problems, or check PyTorch modules.

    TASK is a folder, the name of a built-in task, or a benchmark's problem. Exits with 3 when there is a problem.

    With CANDIDATE files, REFERENCE is a Python file with a class Model, get_inputs() and get_init_inputs(), as in
    KernelBench; each CANDIDATE has a class ModelNew, which may define Triton kernels or compile extensions. Each runs
    in a process of its own, and is verified and timed from outside. Exits with 7 when one is refused.

        mctskernel check my_task/

        mctskernel check problem.py solution.py --device cuda --own-kernels
    """
    if not candidates:
        _check_task(context, task)
        return
    for path in (Path(task), *candidates):
        if not path.is_file():
            raise click.UsageError(f"There is no file {path}.")
    chosen = secrets.randbits(48) if seed is None else seed
    settings = Settings(device=device, seed=chosen, most_runs=MOST_RUNS, own_kernels=own_kernels)
    if runs is not None:
        settings = replace(settings, runs=runs, most_runs=runs)
    sources, refused = {path: read_text(path) for path in candidates}, False
    with open_evaluator(read_text(Path(task)), settings) as evaluator:
        for path, source in sources.items():
            verdict = evaluator.evaluate(source)
            refused |= not verdict.evaluation.ok
            if as_json:
                found = {
                    "candidate": str(path),
                    "seed": chosen,
                    "evaluation": verdict.evaluation,
                    "speedup": verdict.speedup,
                }
                deliver(msgspec.json.encode(found).decode() + "\n")
            else:
                echo(_as_text(path, verdict, chosen))
    sys.exit(REFUSED if refused else 0)


def _check_task(context: click.Context, task: str) -> None:
    report = check_task(find_task_or_problem(context, task, Language.CUDA))
    for line in report.checked:
        echo(f"ok       {line}")
    for problem in report.problems:
        echo(f"problem  {problem}")
    if not report.ok:
        sys.exit(BAD_TASK)
    echo(f"Next: mctskernel search {task}")


def _as_text(path: Path, verdict: ModuleVerdict, seed: int) -> str:
    evaluation = verdict.evaluation
    guard = f" (by: {evaluation.guard})" if evaluation.guard else ""
    lines = [f"{path}: {evaluation.outcome}{guard}"]
    lines += [f"  {evaluation.message}"] if evaluation.message else []
    lines += [f"  {line}" for line in evaluation.log.splitlines()[-8:]]
    if verdict.speedup is not None:
        lines += [f"  {line}" for line in _times(verdict.speedup)]
        lines += [f"  right in {len(evaluation.checks)} calls, each on fresh inputs (seed {seed})"]
    lines += [f"  warning: {flag}" for flag in evaluation.flags]
    return "\n".join(lines)


def _times(found: Speedup) -> list[str]:
    if found.doubt:
        return [found.doubt]
    timing = found.timing
    return [
        f"{found.ratio:.2f} times as fast as the reference [{found.low:.2f} to {found.high:.2f}]; "
        f"at least {found.at_least:.2f} times, whatever it did to the round trip",
        f"{time_text(timing.seconds)} against {time_text(timing.baseline_seconds or 0.0)}, "
        f"without the round trip of {time_text(found.round_trip_seconds)}",
    ]
