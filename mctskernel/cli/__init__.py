"""The command line: one module per command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import rich_click as click

from mctskernel import __version__
from mctskernel.cli.errors import EXIT_CODES, CommandGroup


class _Commands(CommandGroup):
    commands_by_name: ClassVar[Mapping[str, str]] = {
        "search": "mctskernel.cli.search",
        "resume": "mctskernel.cli.resume",
        "campaign": "mctskernel.cli.campaign",
        "measure": "mctskernel.cli.measure",
        "record": "mctskernel.cli.record",
        "ask": "mctskernel.cli.ask",
        "tell": "mctskernel.cli.tell",
        "mcp": "mctskernel.cli.mcp",
        "serve": "mctskernel.cli.serve",
        "watch": "mctskernel.cli.watch",
        "show": "mctskernel.cli.show",
        "diff": "mctskernel.cli.diff",
        "compare": "mctskernel.cli.compare",
        "scores": "mctskernel.cli.scores",
        "plot": "mctskernel.cli.plot",
        "explain": "mctskernel.cli.explain",
        "profile": "mctskernel.cli.profile",
        "best": "mctskernel.cli.best",
        "solution": "mctskernel.cli.solution",
        "report": "mctskernel.cli.report",
        "export": "mctskernel.cli.export",
        "memory": "mctskernel.cli.memory",
        "tasks": "mctskernel.cli.tasks",
        "new-task": "mctskernel.cli.new_task",
        "generate": "mctskernel.cli.generate",
        "check": "mctskernel.cli.check",
        "judge-module": "mctskernel.cli.judge_module",
        "calibrate": "mctskernel.cli.calibrate",
        "gauntlet": "mctskernel.cli.gauntlet",
        "ablate": "mctskernel.cli.ablate",
        "doctor": "mctskernel.cli.doctor",
    }


@click.group(
    cls=_Commands,
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES) + ".",
)
@click.version_option(__version__, prog_name="mctskernel")
def main() -> None:
    """Make a GPU kernel faster, and know why.

    A Monte Carlo tree search over edits of the kernel: every version is compiled, verified, timed and
    diagnosed, and the tree is written down. Start with:

        mctskernel search --budget 200

        mctskernel show RUN
    """
