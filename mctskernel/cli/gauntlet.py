"""`mctskernel gauntlet`: whether anything gets past the evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from mctskernel.cli import options
from mctskernel.cli.errors import LET_THROUGH
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.kernel import SOURCE_LANGUAGES
from mctskernel.executors import workers_on
from mctskernel.experiments.gauntlet.corpus import CORPUS, PYTORCH, read_corpus
from mctskernel.experiments.gauntlet.run import Result, Venue, markdown, print_report, run_gauntlet
from mctskernel.experiments.results import write_result
from mctskernel.run import write_text


@click.command()
@click.option(
    "--device",
    type=click.Choice(["model", "gpu"]),
    default="model",
    show_default=True,
    help="Where to evaluate them. Some entries need a GPU, and some the model.",
)
@options.single("architecture")
@click.option(
    "--corpus",
    type=options.FOLDER,
    default=CORPUS,
    help="Another folder of cheats and honest kernels, laid out like tests/gauntlet of a checkout.",
)
@click.option(
    "--modules", is_flag=True, help="Evaluate PyTorch modules too, on the CPU or a GPU; needs PyTorch."
)
@click.option(
    "--only",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only entries that match, such as cuda/cheats/* or *race*; repeatable.",
)
@options.single("workers")
@options.single("seed")
@click.option("--json", "json_file", type=options.FILE, help="Write all results to this file.")
@click.option("--markdown", "markdown_file", type=options.FILE, help="Write the table to this file.")
def gauntlet(
    device: str,
    architecture: str,
    corpus: Path,
    *,
    modules: bool,
    patterns: tuple[str, ...],
    workers: int | None,
    seed: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Evaluate kernels that cheat, and honest but unusual ones, as a search evaluates its candidates.

    Prints which check refused each of them. Exits with 1 when a cheat is accepted or an honest kernel refused.
    """
    kinds = [*SOURCE_LANGUAGES, *([PYTORCH] if modules else [])]
    entries = [entry for entry in read_corpus(corpus, kinds) if _is_chosen(entry.label, patterns)]
    if not entries:
        raise click.BadParameter("no entry is like that.", param_hint="--only")
    console = PlainConsole()
    venue = Venue(device, architecture, seed, workers or workers_on(device))
    with _progress(console, sum(entry.shows_on(device) for entry in entries)) as follow:
        report = run_gauntlet(entries, venue, follow)
    print_report(console, report)
    if json_file is not None:
        write_result(json_file, report)
    if markdown_file is not None:
        write_text(markdown_file, markdown(report))
    if not report.fine:
        sys.exit(LET_THROUGH)


def _is_chosen(label: str, patterns: tuple[str, ...]) -> bool:
    name = label.rpartition("/")[2]
    return not patterns or any(fnmatch(label, each) or fnmatch(name, each) for each in patterns)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Result], None]]:
    with Progress(*Progress.get_default_columns()[:2], MofNCompleteColumn(), console=console) as bar:
        row = bar.add_task("running the gauntlet", total=total)

        def follow(result: Result) -> None:
            bar.update(row, advance=1)
            if not result.fine:
                bar.console.print(
                    f"{result.label}: {result.verdict}. {result.message}", style="red", markup=False
                )

        yield follow
