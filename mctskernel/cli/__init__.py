"""The command line: one module per command, imported when the command is used."""

from __future__ import annotations

import rich_click as click

from mctskernel import __version__
from mctskernel.cli.errors import EXIT_CODES, CommandGroup

COMMANDS: dict[str, tuple[str, ...]] = {
    "Search": ("doctor", "search", "resume"),
    "Look at runs": ("show", "watch", "report", "compare", "best", "export"),
    "Bring a task": ("tasks", "new-task", "check", "evaluate", "generate"),
    "Benchmark": ("bench", "ablate", "gauntlet"),
    "Integrate": ("ask", "tell", "mcp"),
}
"""The commands as the help page groups them; each is the function of that name in the module of that name."""


@click.group(
    cls=CommandGroup,
    groups=COMMANDS,
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES) + ".",
)
@click.version_option(__version__, prog_name="mctskernel")
def main() -> None:
    """Make a GPU kernel faster, and know why.

    A Monte Carlo tree search over edits of the kernel: every version is compiled, verified, timed and
    diagnosed, and the tree is saved. Start with:

        mctskernel doctor

        mctskernel search softmax --budget 50

        mctskernel show RUN
    """
