"""`mctskernel ask RUN`: which nodes need edits next, for a proposer that isn't part of this program."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from mctskernel.asks import ask_schema, encode_asks
from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import follow_search, refuse_without_baseline
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.search import Ending
from mctskernel.session import open_session


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes, at the most."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write there, and not to standard output.",
)
@options.workers
@options.print_schema(ask_schema, "Print the JSON schema of a line.")
def ask(run: Path, count: int, out: Path | None, workers: int | None) -> None:
    """Say which nodes of RUN need edits next, each with its evidence: a line of JSON for each.

    Whoever has edits writes a line for each node and runs `mctskernel tell RUN FILE`. A run that is to be told all of
    its edits begins with `mctskernel search TASK --proposer outside`; but any run can be asked. Nothing is lost by
    asking twice.

        mctskernel ask runs/first -n 8 --out asks.jsonl
    """
    with (
        follow_search(PlainConsole(stderr=True)) as (follow, stop_requested),
        open_session(run, None, workers, follow, stop_requested) as session,
    ):
        asks = session.ask(count)
        ending = session.ending
        if session.is_over and ending is not Ending.INTERRUPTED:
            refuse_without_baseline(session.conclude())
    text = encode_asks(asks)
    if out is None:
        deliver(text)
    else:
        out.write_text(text, "utf-8")
    if not asks:
        echo(f"mctskernel: nothing is asked for: {ending}.", err=True)
        if ending is Ending.INTERRUPTED:
            sys.exit(INTERRUPTED)
        echo(f"What came of it:            mctskernel show {run}", err=True)
    elif out is not None:
        echo(f"{len(asks)} node(s) need edits: {out}", err=True)
