"""`mctskernel tell RUN FILE`: evaluate edits that another program proposes."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import msgspec
import rich_click as click

from mctskernel.asks import read_replies, reply_schema
from mctskernel.cli import options
from mctskernel.cli.following import conclude, follow_search
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.run import Budget
from mctskernel.session import Told, open_session


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("replies", metavar="FILE", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.option("--budget", type=click.IntRange(min=1), help="Evaluations in all, those of before included.")
@options.workers
@click.option("--json", "as_json", is_flag=True, help="Print what became of each edit as a line of JSON.")
@options.print_schema(reply_schema, "Print the JSON schema of a line of FILE.")
def tell(*, run: Path, replies: TextIO, budget: int | None, workers: int | None, as_json: bool) -> None:
    """Tell RUN the edits in FILE, and evaluate those that promise most until others are wanted.

    FILE holds a line of JSON for each node (- is standard input):

        {"node": 0, "edits": [{"title": "float4 loads", "category": "vectorized access", "source": "..."}]}

    An edit has a whole `source` or a `patch`, a list of {"search": ..., "replace": ...}. It is built, verified and
    timed like any other. A file with a line that can't be read is refused as a whole.
    """
    told = read_replies(replies.read())
    limits = Budget(evaluations=budget) if budget else None
    with (
        follow_search(PlainConsole(stderr=True)) as (follow, stop_requested),
        open_session(run, limits, workers, follow, stop_requested) as session,
    ):
        results = session.tell(told)
        conclusion = session.conclude() if session.is_over else None
    for result in results:
        if as_json:
            deliver(msgspec.json.encode(result).decode() + "\n")
        else:
            echo(_sentence(result))
    if conclusion is not None:
        conclude(conclusion)
    elif not as_json:
        echo(f"Ask again:                  mctskernel ask {run} -n 8", err=True)


def _sentence(told: Told) -> str:
    where = f"node {told.node}: {told.title}"
    if told.outcome is None:
        return f"{where}: waits for its turn"
    made = f" (node {told.made})" if told.made is not None else ""
    gain = f", {told.gain:.3f}x its parent, {told.speedup:.3f}x the start" if told.speedup else ""
    return f"{where}: {told.outcome}{made}{gain}{': ' + told.message if told.message else ''}"
