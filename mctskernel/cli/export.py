"""`mctskernel export RUN`: the tree for other programs, and its steps to train models with."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import deliver
from mctskernel.report.training_data import FORMATS as TRAINING_FORMATS
from mctskernel.report.training_data import json_schema, write_lines
from mctskernel.report.view import load_view
from mctskernel.run import open_run
from mctskernel.tree.export import to_csv, to_json

TREE_FORMATS = {"json": to_json, "csv": to_csv}


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*TREE_FORMATS, *TRAINING_FORMATS]),
    default="json",
    show_default=True,
    help="Of the tree, JSON has everything; CSV a line for each node. To "
    "train models, JSON lines: sft has the edits that gained, preference pairs of edits, rl every step.",
)
@click.option(
    "--schema", is_flag=True, help="Write the JSON Schema of the lines of sft, preference or rl instead."
)
def export(*, run: Path | None, kind: str, schema: bool) -> None:
    """Write the tree of RUN to standard output, nodes in order of creation, or its steps as training data.

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
    else:
        deliver(TREE_FORMATS[kind](load_view(run).tree))
