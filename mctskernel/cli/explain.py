"""`mctskernel explain`: which part of the GPU binds a kernel, and what an edit moved."""

from __future__ import annotations

from pathlib import Path

import rich_click as click
from rich.console import Console

from mctskernel.cli import options
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.explain import model_kernels, read_kernel
from mctskernel.report.explained import print_explanation
from mctskernel.tasks import find_task


@click.command()
@click.argument("subject", metavar="RUN|TASK")
@click.option(
    "--kernel", type=click.Path(path_type=Path), help="A kernel of TASK instead of its starting one."
)
@click.option(
    "--language",
    type=click.Choice([language.value for language in Language]),
    help="The language of TASK's starting kernel.",
)
@options.architecture
def explain(subject: str, kernel: Path | None, language: str | None, architecture: str) -> None:
    """Say which part of the GPU binds a kernel, which is next, and what relieving it would bring."""
    folder = find_task(subject)
    chosen = Language(language) if language else None
    (evaluation,) = model_kernels(folder, (read_kernel(kernel) if kernel else None,), chosen, architecture)
    if not evaluation.ok:
        raise TaskError(f"There is nothing to explain: {evaluation.outcome}: {evaluation.message}")
    print_explanation(
        Console(), f"{kernel or 'starting kernel'} of {subject}, modelled on {architecture}", evaluation
    )
