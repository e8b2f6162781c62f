"""`mctskernel mcp`: a server for coding agents, which propose edits."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from mctskernel.cli import options
from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import echo
from mctskernel.core.kernel import Language
from mctskernel.executors.room import workers_on
from mctskernel.profiling.devices import default_kind


@click.command()
@click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="The folder of the runs: an agent sees those in it, and begins others there.",
)
@click.option(
    "--tasks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of task folders of your own, beside the built-in tasks. Agents can't change them.",
)
@options.device
@options.architecture
@options.workers
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Evaluations of a run that an agent begins, at the most.",
)
@click.option(
    "--http",
    "port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve http://127.0.0.1:PORT/mcp, to programs of this machine only, instead of standard input and output.",
)
def mcp(
    *,
    runs: Path,
    tasks: Path | None,
    device: str,
    architecture: str,
    workers: int | None,
    budget: int,
    port: int | None,
) -> None:
    """Let a coding agent propose the edits, over the Model Context Protocol.

    The agent begins runs, asks which nodes need edits, and tells edits; this program builds, verifies, times and
    decides. Nothing that an agent can call changes a verdict, a baseline or a task. Add it to your agent as a server
    whose command is `mctskernel mcp --runs DIR`; docs/mcp.md says how. Needs `pip install "mctskernel[mcp]"`.

        mctskernel mcp --runs runs --tasks my_tasks

        mctskernel mcp --http 8848
    """
    try:
        from mctskernel.mcp_server.engine import Settings  # noqa: PLC0415 - an extra that may be missing
        from mctskernel.mcp_server.server import serve  # noqa: PLC0415 - as said above
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mctskernel"):
            raise
        echo(f'mctskernel: {error.name} is missing: pip install "mctskernel[mcp]"', err=True)
        sys.exit(BAD_MACHINE)

    def workers_for(kind: str, language: Language) -> int:
        return workers or workers_on(kind, language)

    kind = default_kind() if device == "auto" else device
    serve(Settings(runs, tasks, kind, architecture, budget, workers_for), port)
