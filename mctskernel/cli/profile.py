"""`mctskernel profile RUN NODE`: a full Nsight Compute report on one node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.text import Text

from mctskernel.cli.plain_console import PlainConsole
from mctskernel.profile import NodeProfile, profile_node
from mctskernel.profiling.ncu import Finding
from mctskernel.report.view import load_view


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("node", type=click.IntRange(min=0))
def profile(run: Path, node: int) -> None:
    """Profile NODE of RUN with Nsight Compute: keep the report and print what its rules find.

    The report is RUN/profiles/NODE.ncu-rep, for `ncu-ui`, with the kernel's text beside it. Needs `ncu` on the PATH, a
    GPU, and the permission to read its counters. Takes about half a minute.
    """
    view = load_view(run)
    console, progress = PlainConsole(), PlainConsole(stderr=True)
    with progress.status("") as status:
        found = profile_node(view, node, _reporter(progress, status.update))
    print_profile(console, found)


def _reporter(progress: Console, update: Callable[[str], None]) -> Callable[[str], None]:
    """In a terminal the last words stay beside a spinner; elsewhere each is a line."""

    def report(words: str) -> None:
        if progress.is_terminal:
            update(words)
        else:
            progress.print(Text(words))

    return report


def print_profile(console: Console, found: NodeProfile) -> None:
    """The findings by kernel, the largest estimated gain first, and the run's own diagnosis."""
    for kernel in dict.fromkeys(finding.kernel for finding in found.findings):
        console.print(Text(f"{kernel}: what Nsight Compute's rules find", "bold"))
        for finding in (each for each in found.findings if each.kernel == kernel):
            console.print(Text(f"  {_gain(finding)}{finding.sentence}"))
    if not found.findings:
        console.print(Text("Nsight Compute's rules find nothing."))
    if found.diagnosis is not None and found.diagnosis.causes:
        console.print(Text(f"The run's diagnosis ({found.source})", "bold"))
        for cause in found.diagnosis.causes:
            console.print(Text(f"  {cause.share:.0%}  {cause.sentence}"))
    console.print(Text(f"The report: {found.report}"))


def _gain(finding: Finding) -> str:
    if not finding.speedup:
        return ""
    return f"[{'of one unit, ' if finding.local else ''}up to {finding.speedup:.0%}] "
