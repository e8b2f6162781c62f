"""`mctskernel tell RUN FILE`: evaluate the edits of an external proposer."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import msgspec
import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.following import follow_search, print_outcome
from mctskernel.cli.plain_console import PlainConsole, deliver, echo
from mctskernel.core.budget import Budget
from mctskernel.core.quantities import time_text
from mctskernel.external.messages import Reply, read_replies
from mctskernel.external.session import EditResult, open_session


@click.command()
@click.argument("run", type=options.PATH)
@click.argument("replies", metavar="FILE", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.option(
    "--budget", type=click.IntRange(min=1), help="Maximum number of evaluations, including earlier ones."
)
@options.single("workers")
@click.option("--json", "as_json", is_flag=True, help="Print the result of each edit as a line of JSON.")
@options.print_schema(Reply, "Print the JSON schema of a line of FILE.")
def tell(*, run: Path, replies: TextIO, budget: int | None, workers: int | None, as_json: bool) -> None:
    """Evaluate the edits in FILE that promise most, until RUN needs others.

    FILE holds a line of JSON for each node (- is standard input):

        {"node": 0, "edits": [{"title": "float4 loads", "category": "vectorized access", "source": "..."}]}

    An edit has a whole `source` or a `patch`, a list of {"search": ..., "replace": ...}. It is built, verified and
    timed like any other. A file with a line that can't be read is refused as a whole. The answer of a language model to
    `ask --text` is taken as it is.
    """
    found = read_replies(replies.read())
    limits = Budget(evaluations=budget) if budget else None
    with (
        follow_search(PlainConsole(stderr=True)) as (follow, stop_requested),
        open_session(run, limits, workers, follow, stop_requested) as session,
    ):
        results = session.tell(found)
        search_result = session.finish() if session.is_over else None
    for result in results:
        if as_json:
            deliver(msgspec.json.encode(result).decode() + "\n")
        else:
            echo(_sentence(result))
    if search_result is not None:
        print_outcome(search_result)
    elif not as_json:
        echo(f"Ask again:                  mctskernel ask {run} -n 8", err=True)


def _sentence(result: EditResult) -> str:
    where = f"node {result.node}: {result.title}"
    if result.outcome is None:
        return f"{where}: waits for its turn"
    made = f" (node {result.made})" if result.made is not None else ""
    gain = ""
    if result.speedup and result.seconds:
        over = f"{result.gain:.3f}x its parent, {result.speedup:.3f}x the start, {result.over_best:.3f}x the best"
        gain = f", {time_text(result.seconds)}, {over}"
    return f"{where}: {result.outcome}{made}{gain}{': ' + result.message if result.message else ''}"
