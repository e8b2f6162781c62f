"""`mctskernel evaluate TASK [FILE]`: one kernel without a search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import rich_click as click
from rich.text import Text

from mctskernel.api import evaluate_kernels, read_kernel
from mctskernel.cli import options
from mctskernel.cli.errors import NO_KERNEL
from mctskernel.cli.plain_console import PlainConsole, deliver_json
from mctskernel.cli.tasks import find_task_or_problem
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.task_file import load_task
from mctskernel.report.explained import explained, print_explained
from mctskernel.tree.trajectory import run_seconds


@click.command()
@click.argument("task")
@click.argument("file", type=options.PATH, required=False)
@click.option("--against", type=options.PATH, metavar="FILE", help="Another kernel to compare with.")
@options.single("device", type=click.Choice(("auto", "gpu", "model")))
@options.single("architecture")
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    help="The language of TASK's starting kernel. [default: FILE's]",
)
@options.single("seed")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in seconds.")
@click.pass_context
def evaluate(
    context: click.Context,
    *,
    task: str,
    file: Path | None,
    against: Path | None,
    device: str,
    architecture: str,
    language: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Build, verify, time and diagnose the kernel in FILE, or TASK's starting kernel, as a search would.

    TASK is a folder, a built-in task, or a benchmark's problem. Printed are the outcome, the time, which part of the
    GPU limits it, which is next, and what relieving it would bring; --json has all checks, timings and counters too.

    Each row of a modelled kernel's table is a term: the seconds that this part of the GPU would take alone, the share
    of the time that it explains, and the time if it took half as long, or none. Terms overlap, so they don't add up to
    the time. A measured kernel's counters say how long each unit was busy.

        mctskernel evaluate softmax

        mctskernel evaluate softmax mine.cu --against theirs.cu --device model --architecture A100

    The exit code is 6 if a kernel is wrong or fails.
    """
    given = [each for each in (file, against) if each is not None]
    kernels = {str(each): read_kernel(each) for each in given}
    chosen = Language(language) if language else next((each.language for each in kernels.values()), None)
    folder = find_task_or_problem(context, task, chosen or Language.CUDA)
    if file is None:
        kernels = {f"starting kernel of {task}": load_task(folder, chosen).starting_kernel, **kernels}
    evaluations = evaluate_kernels(folder, tuple(kernels.values()), device, architecture, seed)
    found = dict(zip(kernels, evaluations, strict=True))
    if as_json:
        deliver_json(_report(*found.items()))
    else:
        _print(found)
    if not all(evaluation.ok for evaluation in evaluations):
        sys.exit(NO_KERNEL)


def _report(first: tuple[str, Evaluation], *others: tuple[str, Evaluation]) -> dict[str, Any]:
    """A kernel with its evaluation, as JSON has it; `seconds` and `explanation` are null where it has no time."""
    name, evaluation = first
    timed = [each for each in others if each[1].timings]
    return {
        "kernel": name,
        "seconds": run_seconds(evaluation),
        "evaluation": evaluation,
        "explanation": explained(name, evaluation, *(timed[0] if timed else ()))
        if evaluation.timings
        else None,
        "against": _report(*others) if others else None,
    }


def _print(found: dict[str, Evaluation]) -> None:
    console = PlainConsole()
    for name, evaluation in found.items():
        if not evaluation.ok:
            console.print(Text(f"{name}: {evaluation.outcome}: {evaluation.message}", "red"), soft_wrap=True)
            if evaluation.log:
                console.print(Text(evaluation.log), soft_wrap=True)
    timed = {name: evaluation for name, evaluation in found.items() if evaluation.ok}
    if not timed:
        return
    (first, evaluation), *others = timed.items()
    print_explained(console, explained(first, evaluation, *(others[0] if others else ())))
