"""`mctskernel new-task DIR`: a template that runs, or a draft from a CUDA C++ file or a function of PyTorch."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import echo
from mctskernel.new_task import create_task
from mctskernel.new_task_from_cuda import create_task_from_cuda
from mctskernel.new_task_from_torch import create_task_from_torch


@click.command("new-task")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--from", "file", type=click.Path(path_type=Path), help="Draft the task of this CUDA C++ file's kernels."
)
@click.option("--kernel", default="", help="Of the file's __global__ functions, this one alone.")
@click.option("--from-torch", "function", help="Make the task of a function: package.module:function.")
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
def new_task(
    *,
    folder: Path,
    file: Path | None,
    kernel: str,
    function: str | None,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
) -> None:
    """Write a task folder: task.toml, reference.py and a starting kernel.

    Without options it is a commented template that runs as it is. With --from it is a draft around your own kernel,
    with a comment beside everything that was guessed. With --from-torch your function is the reference (its module is
    imported, so its code runs) and, on a machine with a GPU, what torch.compile generates for it is the starting
    kernel.
    """
    if file is not None and function is not None:
        raise click.UsageError("--from and --from-torch are two ways; choose one.")
    if shapes and function is None:
        raise click.UsageError("--shape goes with --from-torch.")
    if file is not None:
        drafted = create_task_from_cuda(folder, file, kernel)
        _say(folder, list(drafted.files), drafted.remarks)
    elif function is not None:
        made = create_task_from_torch(folder, function, shapes, dtypes)
        remarks: tuple[str, ...] = ()
        if made.problem:
            remarks = (
                f"There is no starting kernel from torch.compile: {made.problem}",
                "Write kernel.cu or kernel.py, or let a model do it.",
            )
        _say(folder, list(made.files), remarks)
    else:
        create_task(folder)
        _say(folder, ["task.toml", "reference.py", "kernel.cu"], ())


def _say(folder: Path, files: list[str], remarks: tuple[str, ...]) -> None:
    *others, last = files
    echo(f"Wrote {folder}/{', '.join(others)} and {last}.")
    for remark in remarks:
        echo(remark)
    echo(f"Next: mctskernel check {folder}")
