"""`mctskernel mcp`: a Model Context Protocol server for coding agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import echo
from mctskernel.config import read_config


@click.command()
@click.option(
    "--runs",
    type=options.FOLDER,
    default=Path("runs"),
    show_default=True,
    help="The folder of runs that an agent can see and add to.",
)
@click.option(
    "--tasks",
    type=options.KNOWN_FOLDER,
    help="A folder of task folders of your own, beside the built-in tasks. Agents can't change them.",
)
@options.settings(
    "budget.evaluations",
    "device",
    "architecture",
    "workers",
    changes={
        "budget.evaluations": {
            "help": "Maximum number of evaluations of a run that an agent begins. [default: 200]"
        },
        "device": {"type": click.Choice(("auto", "gpu", "model"))},
    },
)
@click.option(
    "--http",
    "port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve http://127.0.0.1:PORT/mcp, to programs of this machine only, instead of standard input and output.",
)
def mcp(*, runs: Path, tasks: Path | None, table: dict[str, Any], port: int | None) -> None:
    """Let a coding agent propose the edits, over the Model Context Protocol.

    The agent begins runs, asks which nodes need edits, and submits edits; this program builds, verifies and times them.
    No tool changes a verdict, a baseline or a task. Add it to your agent as a server with the command
    `mctskernel mcp --runs DIR` (docs/mcp.md). Needs `pip install "mctskernel[mcp]"`.

        mctskernel mcp --runs runs --tasks my_tasks

        mctskernel mcp --http 8848
    """
    try:
        from mctskernel.external.mcp import serve  # noqa: PLC0415 - an extra that may be missing
        from mctskernel.external.mcp_engine import Engine  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mctskernel"):
            raise
        echo(f'mctskernel: {error.name} is missing: pip install "mctskernel[mcp]"', err=True)
        sys.exit(BAD_MACHINE)

    serve(Engine(runs, tasks, read_config(table)), port)
