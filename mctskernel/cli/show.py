"""`mctskernel show RUN [NODE] [NODE]`: the best path, one node, or the difference of two kernels."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli import plain_console
from mctskernel.cli.plain_console import PlainConsole, deliver
from mctskernel.report.terminal import CONTEXT, Compared, plain_diff, print_diff, print_node, print_run
from mctskernel.report.view import View, load_view
from mctskernel.run import RunError

NODE = click.IntRange(min=0)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("node", type=NODE, required=False)
@click.argument("other", metavar="[NODE]", type=NODE, required=False)
@click.option("--diff", is_flag=True, help="Only what the edit that made NODE changed in its parent.")
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=CONTEXT,
    show_default=True,
    help="Unchanged lines around each change of a diff.",
)
def show(run: Path, node: int | None, other: int | None, *, diff: bool, context: int) -> None:
    """Show the best path of RUN, edit by edit: time, gain, what binds the kernel, and the diff.

    With NODE, everything that is known of that node: counters, the terms of its time, the cost of each stage of its
    evaluation, and its diff. With two nodes, the diff from the first one's kernel to the second one's; node 0 is the
    starting kernel. In a terminal diffs are highlighted; elsewhere they are unified diffs, which `patch` takes.

        mctskernel show RUN

        mctskernel show RUN 17

        mctskernel show RUN 0 17 > edits.patch
    """
    view = load_view(run)
    if other is not None and node is not None:
        _print_diff(Compared(view, node, other), context)
    elif diff:
        if node is None:
            raise click.UsageError("--diff needs a NODE.")
        _print_diff(Compared(view, _parent(view, node), node, "parent"), context)
    elif node is not None:
        print_node(PlainConsole(), view, node)
    else:
        print_run(PlainConsole(), view)


def _print_diff(compared: Compared, context: int) -> None:
    if plain_console.on_terminal():
        print_diff(PlainConsole(), compared, context)
    else:
        deliver(plain_diff(compared, context))


def _parent(view: View, number: int) -> int:
    parent = view.node(number).parent
    if parent is None:
        raise RunError(f"Node {number} of {view.folder.path} is the starting kernel, which no edit made.")
    return parent
