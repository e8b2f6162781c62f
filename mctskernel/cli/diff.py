"""`mctskernel diff RUN NODE [NODE]`: what an edit changed, or what became of one kernel in another."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.cli.plain_console import PlainConsole, deliver, on_terminal
from mctskernel.report.source_diff import CONTEXT, Compared, plain_diff, print_diff
from mctskernel.report.view import View, load_view
from mctskernel.run import RunError

NODE = click.IntRange(min=0)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("node", type=NODE)
@click.argument("other", metavar="[NODE]", type=NODE, required=False)
@click.option(
    "--against",
    type=click.Choice(["parent", "baseline"]),
    help="What NODE is compared with, where no other node is given. [default: parent]",
)
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=CONTEXT,
    show_default=True,
    help="Unchanged lines to show around what changed.",
)
def diff(run: Path, node: int, other: int | None, against: str | None, context: int) -> None:
    """Show what the edit that made NODE of RUN changed in its parent, or in the starting kernel.

    Of two nodes it shows what became of the first one's kernel in the second's, wherever in the tree they are.
    Above the lines it says what happened to the time and to the counts behind it. In a terminal the lines are
    highlighted; elsewhere they are a unified diff, which `patch` takes.

        mctskernel diff RUN 17

        mctskernel diff RUN 17 --against baseline

        mctskernel diff RUN 3 17 > edits.patch
    """
    view = load_view(run)
    if other is not None:
        if against is not None:
            raise click.UsageError(
                "--against is for one node: of two, the first is compared with the second."
            )
        compared = Compared(view, node, other)
    elif against == "baseline":
        compared = Compared(view, 0, node, "baseline")
    else:
        compared = Compared(view, _parent(view, node), node, "parent")
    if on_terminal():
        print_diff(PlainConsole(), compared, context)
    else:
        deliver(plain_diff(compared, context))


def _parent(view: View, number: int) -> int:
    parent = view.node(number).parent
    if parent is None:
        raise RunError(f"Node {number} of {view.folder.path} is the starting kernel, which no edit made.")
    return parent
