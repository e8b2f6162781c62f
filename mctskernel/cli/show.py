"""`mctskernel show RUN`: the best path, edit by edit, with its evidence."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import PlainConsole
from mctskernel.report.terminal import print_node, print_run
from mctskernel.report.view import load_view


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--node", type=click.IntRange(min=0), help="Show everything that is known of this node instead."
)
def show(run: Path, node: int | None) -> None:
    """Show the best path of RUN, edit by edit: time, gain, what binds the kernel, and the diff.

    `mctskernel show RUN --node N` shows one node with its counters, the terms of its time, what each stage of
    its evaluation cost, and its diff against the parent.
    """
    view = load_view(run)
    if node is None:
        print_run(PlainConsole(), view)
    else:
        print_node(PlainConsole(), view, node)
