"""How well the model ranks kernels whose times are known, what each of its parts contributes, and what it costs.

    python -m mctskernel.experiments.model_benchmark DIR... [--jobs 4] [--out rows.jsonl]
    python -m mctskernel.experiments.model_benchmark --from rows.jsonl

Each DIR is a folder of variants (docs/model_benchmark.md has the form): `mctskernel record` makes them. Pricing takes
about a second a kernel; the tables are made of the rows that it leaves, again and at once with `--from`. Tables go to
standard output as Markdown, progress to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import track

from mctskernel.core.evaluation import Outcome
from mctskernel.experiments.model.priced_kernels import Row, price_variant, read_rows
from mctskernel.experiments.model.tables import benchmark_tables
from mctskernel.experiments.records.documents import markdown
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.architecture import known_architectures
from mctskernel.variants import Variant, VariantError, read_variants


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--from",
    "rows_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Rows that --out wrote: make the tables again without pricing anything.",
)
@click.option("--family", "families", multiple=True, help="Only these families; may be given several times.")
@click.option(
    "--every", type=click.IntRange(min=1), default=1, show_default=True, help="Take every n-th variant."
)
@click.option(
    "--architecture",
    type=click.Choice(list(known_architectures())),
    default="H100",
    show_default=True,
    help="The GPU on which the kernels were measured.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that price."
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write a JSON object per variant."
)
@click.option(
    "--tables", type=click.Path(path_type=Path, dir_okay=False), help="Write the tables as JSON, too."
)
def main(
    *,
    folders: tuple[Path, ...],
    rows_file: Path | None,
    families: tuple[str, ...],
    every: int,
    architecture: str,
    jobs: int,
    out: Path | None,
    tables: Path | None,
) -> None:
    """Rank measured kernels by the model and print how well it did."""
    if bool(folders) == bool(rows_file):
        raise click.UsageError("Give folders of variants, or --from with rows that were written before.")
    try:
        if rows_file is not None:
            rows = [row for row in read_rows(rows_file) if not families or row.family in families]
        else:
            rows = list(_priced(_wanted(folders, families, every), architecture, jobs, out))
    except VariantError as error:
        raise click.ClickException(str(error)) from error
    if not any(row.modelled_us for row in rows):
        for row in rows:
            click.echo(f"{row.family} {row.name}: {row.error}", err=True)
        raise click.ClickException("No variant could be priced.")
    document = benchmark_tables(rows)
    if tables is not None:
        write_result(tables, document)
    click.echo(markdown(document))


def _wanted(folders: Sequence[Path], families: Sequence[str], every: int) -> list[tuple[Path, Variant]]:
    """Every n-th of the variants that have a time, folder by folder."""
    found = []
    for folder in folders:
        timed = [each for each in read_variants(folder) if each.outcome is Outcome.OK and each.us]
        chosen = [each for each in timed if not families or each.family in families]
        found += [(folder.resolve(), each) for each in chosen[::every]]
    return found


def _priced(
    wanted: Sequence[tuple[Path, Variant]], architecture: str, jobs: int, out: Path | None
) -> Iterator[Row]:
    """Price in other processes; each row is on disk as soon as it and all before it are known."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(price_variant, folder, variant, architecture) for folder, variant in wanted]
        console = Console(stderr=True)
        waiting = track(
            list(zip(wanted, futures, strict=True)),
            "Pricing",
            console=console,
            disable=not console.is_terminal,
        )
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(b"")
        for (folder, variant), future in waiting:
            row = _row(folder, variant, future)
            if out is not None:
                with out.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
            yield row


def _row(folder: Path, variant: Variant, future: Future[Row]) -> Row:
    """A future's row; a fault of the model is one without a price."""
    fault = future.exception()
    if fault is None:
        return future.result()
    if isinstance(fault, BrokenProcessPool):
        raise VariantError(f"The process that priced {folder} '{variant.name}' died: out of memory?")
    return Row(
        folder=folder.name,
        family=variant.family,
        name=variant.name,
        us=variant.us or 0.0,
        error=f"{type(fault).__name__}: {fault}",
    )


if __name__ == "__main__":
    sys.exit(main())
