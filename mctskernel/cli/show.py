"""`mctskernel show RUN [NODE] [NODE]`: the best path, one node, or the difference of two kernels."""

from __future__ import annotations

from pathlib import Path

import rich_click as click
from rich.text import Text

from mctskernel.cli import options, plain_console
from mctskernel.cli.plain_console import PlainConsole, deliver, deliver_json
from mctskernel.core.user_errors import RunError
from mctskernel.report.document import view_headline, view_story
from mctskernel.report.node_profile import profile_node
from mctskernel.report.terminal import explained_node, plain_diff, print_diff, print_node, print_run
from mctskernel.report.view import View, load_view

NODE = click.IntRange(min=0)


@click.command()
@click.argument("run", type=options.PATH)
@click.argument("node", type=NODE, required=False)
@click.argument("other", metavar="[NODE]", type=NODE, required=False)
@click.option("--diff", is_flag=True, help="Only what the edit that made NODE changed in its parent.")
@click.option(
    "--ncu",
    is_flag=True,
    help="Profile NODE (default: the best) with Nsight Compute: print its details and keep "
    "RUN/profiles/NODE.ncu-rep for `ncu-ui`. Needs `ncu`, a GPU, and the permission to read its counters; takes about "
    "half a minute.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: the headline and the best path of RUN, or what limits NODE.",
)
def show(run: Path, node: int | None, other: int | None, *, diff: bool, ncu: bool, as_json: bool) -> None:
    """Show the best path of RUN, edit by edit: time, gain, what binds the kernel, and the diff.

    With NODE, everything that is known of that node: which part of the GPU limits it, which is next, what relieving it
    would bring, what its edit changed, counters, the cost of each stage of its evaluation, and its diff. With two
    nodes, the diff from the first one's kernel to the second one's; node 0 is the starting kernel. In a terminal diffs
    are highlighted; elsewhere they are unified diffs, which `patch` takes.

        mctskernel show RUN

        mctskernel show RUN 17

        mctskernel show RUN 0 17 > edits.patch
    """
    view = load_view(run)
    if ncu:
        profiled = view.best.id if node is None else node
        with PlainConsole(stderr=True).status(f"profiling node {profiled}"):
            written, details, is_confined = profile_node(view, profiled)
        deliver(details)
        console = PlainConsole(stderr=True)
        if not is_confined:
            note = "ncu doesn't work here in a confined process: the kernel ran in a free one."
            console.print(Text(note, "yellow"))
        console.print(Text(f"The report: {written}"))
    elif as_json and node is None:
        deliver_json({"headline": view_headline(view), "path": view_story(view).steps})
    elif as_json and node is not None:
        deliver_json(explained_node(view, node) if other is None else explained_node(view, other, node))
    elif other is not None and node is not None:
        _print_diff(view, (node, other), "")
    elif diff:
        if node is None:
            raise click.UsageError("--diff needs a NODE.")
        parent = view.node(node).parent
        if parent is None:
            raise RunError(f"Node {node} of {view.folder.path} is the starting kernel, which no edit made.")
        _print_diff(view, (parent, node), "parent")
    elif node is not None:
        print_node(PlainConsole(), view, node)
    else:
        print_run(PlainConsole(), view)


def _print_diff(view: View, nodes: tuple[int, int], relation: str) -> None:
    if plain_console.on_terminal():
        print_diff(PlainConsole(), view, nodes, relation)
    else:
        deliver(plain_diff(view, nodes, relation))
