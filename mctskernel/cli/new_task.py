"""`mctskernel new-task DIR`: a template that runs, or a draft of a CUDA C++ file, a function or a problem."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.plain_console import echo
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.task import Precision
from mctskernel.problems.from_torch import create_task_from_torch
from mctskernel.problems.problem import Problem
from mctskernel.problems.registry import read_problem, write_problem
from mctskernel.tasks.from_cuda import create_task_from_cuda
from mctskernel.tasks.template import Drafted, create_task


@click.command("new-task")
@click.argument("folder", type=options.PATH)
@click.option(
    "--from", "file", type=options.PATH, help="Draft a task around the kernels of this CUDA C++ file."
)
@click.option("--kernel", default="", help="With --from: only this __global__ function.")
@click.option("--from-torch", "function", help="Make the task of a function: package.module:function.")
@click.option(
    "--triton",
    "launcher",
    default="",
    help="With --from-torch: a function of the same tensors, package.module:function, that launches Triton kernels of "
    "your own, which become the starting kernels.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    help="With --from-torch: a tensor's shape, 8192x4096 or rows=8192xcols=4096; once for each tensor.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    default=["float32"],
    show_default=True,
    help="With --from-torch: the tensors' dtype, or once for each.",
)
@click.option(
    "--from-problem",
    "problem",
    type=options.PATH,
    help="Make the task of a problem of KernelBench, SOL-ExecBench, flashinfer-bench or GPU MODE.",
)
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    help="With --from-torch and --from-problem: only a starting kernel in this language. [default: plain CUDA C++ and, "
    "on a machine with a GPU, what torch.compile generates]",
)
@click.option(
    "--precision",
    type=click.Choice([each.value for each in Precision]),
    default=Precision.LOCKED.value,
    show_default=True,
    help="With --from-problem: as precise as PyTorch is, or only as the benchmark asks; then every result says so.",
)
def new_task(
    *,
    folder: Path,
    file: Path | None,
    kernel: str,
    function: str | None,
    launcher: str,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    problem: Path | None,
    language: str | None,
    precision: str,
) -> None:
    """Write a task folder: task.toml, reference.py and a starting kernel.

    Without options it is a commented template that runs as it is. With --from it is a draft around your own kernel,
    with a comment beside every guess. With --from-torch your function is the reference; its module is imported, so its
    code runs. With --from-problem a benchmark's problem is the reference, and its own Python runs. Both start with
    plain CUDA C++ and, on a GPU, with what torch.compile generates.
    """
    chosen = Language(language) if language else None
    if sum(each is not None for each in (file, function, problem)) > 1:
        raise click.UsageError("--from, --from-torch and --from-problem exclude each other.")
    if (shapes or launcher) and function is None:
        raise click.UsageError(f"--{'shape' if shapes else 'triton'} needs --from-torch.")
    if precision != Precision.LOCKED and problem is None:
        raise click.UsageError(f"--precision {precision} needs --from-problem.")
    made: Drafted | Problem
    if file is not None:
        made = create_task_from_cuda(folder, file, kernel)
    elif function is not None:
        made = create_task_from_torch(folder, function, shapes, dtypes, chosen, launcher=launcher)
    elif problem is not None:
        made = read_problem(problem, chosen, Precision(precision))
        write_problem(made, folder)
    else:
        made = create_task(folder)
    *others, last = made.files
    echo(f"Wrote {folder}/{', '.join(others)} and {last}.")
    for note in made.notes:
        echo(note)
    if not any(f"kernel{language.suffix}" in made.files for language in SOURCE_LANGUAGES):
        echo("Write kernel.cu or kernel.py, or use `mctskernel generate`.")
    echo(f"Next: mctskernel check {folder}")
