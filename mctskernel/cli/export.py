"""`mctskernel export RUN`: the tree for other programs, its steps to train models with, the answer for PyTorch."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.plain_console import deliver
from mctskernel.core.task import TaskError
from mctskernel.problems.host_code import HostCodeError, torch_operator
from mctskernel.report.training_data import FORMATS as TRAINING_FORMATS
from mctskernel.report.training_data import json_schema, write_lines
from mctskernel.report.view import View, load_view
from mctskernel.run import open_run
from mctskernel.tree.blobs import get_kernel
from mctskernel.tree.export import to_json

JSON, TORCH = "json", "torch"


@click.command()
@click.argument("run", type=options.PATH, required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice([JSON, *TRAINING_FORMATS, TORCH]),
    default=JSON,
    show_default=True,
    help="Of the tree, JSON has everything. To train models, JSON lines: sft has the edits that gained, preference "
    "pairs of edits, rl every step. Of the best kernel, torch is a Python module with an operator of PyTorch, which "
    "needs nothing of mctskernel.",
)
@click.option(
    "--schema", is_flag=True, help="Write the JSON Schema of the lines of sft, preference or rl instead."
)
def export(*, run: Path | None, kind: str, schema: bool) -> None:
    """Write the tree of RUN to standard output, nodes in order of creation, its steps as training data, or its answer.

    Every node has `id`, `parent`, `edit`, `outcome`, `seconds`, `speedup`, `reward` and its terms, `visits`
    and `value`; docs/export.md describes the schema, docs/training_data.md that of the training data.
    """
    if schema:
        if kind not in TRAINING_FORMATS:
            raise click.UsageError(f"--schema is for --format {', '.join(TRAINING_FORMATS)}.")
        deliver(json_schema(kind))
    elif run is None:
        raise click.UsageError("Missing argument 'RUN'.")
    elif kind in TRAINING_FORMATS:
        for line in write_lines(open_run(run), kind):
            deliver(line)
    elif kind == TORCH:
        deliver(_operator(load_view(run)))
    else:
        deliver(to_json(load_view(run).tree))


def _operator(view: View) -> str:
    view.refuse_recorded()
    try:
        return torch_operator(view.folder.load_task(), get_kernel(view.folder.blobs, view.best.kernel))
    except HostCodeError as error:
        raise TaskError(str(error)) from error
