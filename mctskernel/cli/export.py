"""`mctskernel export RUN`: the tree for other programs."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.report.view import load_view
from mctskernel.tree.export import to_csv, to_graphml, to_json

FORMATS = {"json": to_json, "csv": to_csv, "graphml": to_graphml}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(FORMATS)),
    default="json",
    show_default=True,
    help="JSON has everything; CSV a line for each node; GraphML opens in yEd, Gephi and networkx.",
)
def export(run: Path, kind: str) -> None:
    """Write the tree of RUN to standard output, nodes in order of creation.

    Every node has `id`, `parent`, `edit`, `outcome`, `seconds`, `speedup`, `reward` and its terms, `visits`
    and `value`; docs/export.md describes the schema.
    """
    click.echo(FORMATS[kind](load_view(run).tree), nl=False)
