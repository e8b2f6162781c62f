"""`mctskernel gauntlet`: whether anything gets past the evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mctskernel.cli import options
from mctskernel.cli.errors import LET_THROUGH
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.kernel import Language
from mctskernel.executors.room import workers_on
from mctskernel.experiments.records.provenance import write_result
from mctskernel.gauntlet.corpus import CORPUS, read_corpus
from mctskernel.gauntlet.run import Report, Result, Venue, run_gauntlet
from mctskernel.gauntlet.table import markdown, print_report
from mctskernel.run import write_text


@click.command()
@click.option(
    "--device",
    type=click.Choice(["model", "gpu", "both"]),
    default="model",
    show_default=True,
    help="Where to judge them. Some can only be shown on one of the two.",
)
@options.architecture
@click.option(
    "--corpus",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=CORPUS,
    help="Another folder of cheats and honest kernels, laid out like the one that comes with the package.",
)
@click.option(
    "--only",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only entries like this: cuda/cheats/*, *race*; again for more.",
)
@options.workers
@options.seed
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all of it here."
)
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table here.",
)
def gauntlet(
    device: str,
    architecture: str,
    corpus: Path,
    patterns: tuple[str, ...],
    workers: int | None,
    seed: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Judge kernels that cheat, and kernels that are only unusual, as a search judges its own.

    Prints what refused each of them. Exits with 1 when a cheat was let through or an honest kernel refused.
    """
    entries = [
        entry
        for entry in read_corpus(corpus)
        if not patterns
        or any(fnmatch(entry.label, pattern) or fnmatch(entry.name, pattern) for pattern in patterns)
    ]
    if not entries:
        raise click.BadParameter("no entry is like that.", param_hint="--only")
    console = PlainConsole()
    reports = []
    for place in ("model", "gpu") if device == "both" else (device,):
        venue = Venue(place, architecture, seed, workers or workers_on(place, Language.CUDA))
        with _progress(console, sum(entry.shows_on(place) for entry in entries)) as follow:
            reports.append(run_gauntlet(entries, venue, follow))
    report = _joined(reports)
    print_report(console, report)
    if json_file is not None:
        write_result(json_file, report)
    if markdown_file is not None:
        write_text(markdown_file, markdown(report))
    if not report.fine:
        sys.exit(LET_THROUGH)


def _joined(reports: list[Report]) -> Report:
    skipped = frozenset.intersection(*(frozenset(report.skipped) for report in reports))
    return Report(
        tuple(result for report in reports for result in report.results),
        {device: found for report in reports for device, found in report.fingerprints.items()},
        sum(report.seconds for report in reports),
        tuple(sorted(skipped)),
    )


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Result], None]]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        row = bar.add_task("running the gauntlet", total=total)

        def follow(result: Result) -> None:
            bar.update(row, advance=1)
            if not result.fine:
                bar.console.print(
                    f"{result.label}: {result.verdict}. {result.message}", style="red", markup=False
                )

        yield follow
