"""`mctskernel ask RUN`: which nodes need edits next, for an external proposer."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import follow_search, refuse_without_baseline
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.edits.llm.experts import EDITS
from mctskernel.external.messages import Ask
from mctskernel.external.session import open_session
from mctskernel.loop import StopReason
from mctskernel.report.notes import counted
from mctskernel.run import write_text


@click.command()
@click.argument("run", type=options.PATH)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Maximum number of nodes."
)
@click.option("--out", type=options.FILE, help="The file to write. [default: standard output]")
@click.option("--text", "as_text", is_flag=True, help="A text for a language model in place of JSON.")
@click.option(
    "--edits",
    type=click.IntRange(1, 16),
    default=EDITS,
    show_default=True,
    help="Number of edits that a --text asks for.",
)
@options.single("workers")
@options.print_schema(Ask, "Print the JSON schema of a line.")
def ask(*, run: Path, count: int, out: Path | None, as_text: bool, edits: int, workers: int | None) -> None:
    """Print the nodes of RUN that need edits next, with their evidence, as lines of JSON.

    Answer with a line for each node and `mctskernel tell RUN FILE`. A run whose edits all come from outside begins
    with `mctskernel search TASK --proposer outside`, but `ask` works on any run. Asking twice loses nothing. With
    --text it prints one node as a prompt that needs nothing else; `tell` takes the answer as it is.

        mctskernel ask runs/first -n 8 --out asks.jsonl

        mctskernel ask runs/first --text
    """
    with (
        follow_search(PlainConsole(stderr=True)) as (follow, stop_requested),
        open_session(run, None, workers, follow, stop_requested) as session,
    ):
        if as_text:
            asks = [text] if (text := session.ask_text(edits)) else []
        else:
            asks = [f"{msgspec.json.encode(each).decode()}\n" for each in session.ask(count)]
        stop_reason = session.stop_reason
        if session.is_over and stop_reason is not StopReason.INTERRUPTED:
            refuse_without_baseline(session.finish())
    if out is None:
        deliver("".join(asks))
    else:
        write_text(out, "".join(asks))
    if not asks:
        echo(f"mctskernel: no node needs edits: {stop_reason}.", err=True)
        if stop_reason is StopReason.INTERRUPTED:
            sys.exit(INTERRUPTED)
        echo(f"The result:                 mctskernel show {run}", err=True)
    elif out is not None:
        echo(f"{counted(len(asks), 'node')} to edit: {out}", err=True)
