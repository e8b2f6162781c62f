"""`mctskernel doctor`: what this machine can and can't do."""

from __future__ import annotations

import sys

import rich_click as click
from rich.table import Table
from rich.text import Text

from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.report.doctor import Missing, Present, examine


@click.command()
def doctor() -> None:
    """List what this machine can do, what is missing, and how to get it.

    Exits with 5 when something that every search needs is missing.
    """
    findings = examine()
    table = Table(box=None, pad_edge=False)
    for heading in ("", "capability", "seen", "to get it"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        match finding:
            case Present(capability, detail):
                table.add_row(Text("yes", "green"), capability, Text(detail))
            case Missing(capability, detail, remedy, required):
                mark = Text("no", "red" if required else "yellow")
                table.add_row(mark, capability, Text(detail), remedy)
    PlainConsole().print(table)
    if any(isinstance(finding, Missing) and finding.required for finding in findings):
        sys.exit(BAD_MACHINE)
