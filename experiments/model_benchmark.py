"""How well the model ranks kernels whose times are known, and how well it counts.

    python -m mctskernel.experiments.model_benchmark DIR... [--jobs 4] [--out rows.jsonl]
    python -m mctskernel.experiments.model_benchmark --from rows.jsonl

Each DIR is a folder of variants (docs/model_benchmark.md has the form). Pricing takes about a second a kernel; the
tables are made of the rows that it leaves, again and at once with `--from`. Tables go to standard output as Markdown,
progress to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import track

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Outcome
from mctskernel.core.task import Task, TaskError
from mctskernel.experiments.json_lines import LineError, append_line, read_lines
from mctskernel.experiments.model_tables import Row, benchmark_page
from mctskernel.experiments.tunables import TunableError
from mctskernel.experiments.variants import (
    MeasuredKernel,
    Variant,
    VariantError,
    measured_kernel,
    read_variants,
)
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.profiling.candidate import RefusedError
from mctskernel.profiling.machine_code.cubin import DisassemblerError
from mctskernel.profiling.pricing import Modelled, Pricing
from mctskernel.profiling.stages import Stages

SEED = 0
"""Of the inputs; their contents decide which way a kernel branches."""


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--from",
    "rows_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Rows that --out wrote: make the tables again without pricing anything.",
)
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
def main(
    *,
    folders: tuple[Path, ...],
    rows_file: Path | None,
    every: int,
    architecture: str,
    jobs: int,
    out: Path | None,
) -> None:
    """Rank measured kernels by the model and print how well it did."""
    if bool(folders) == bool(rows_file):
        raise click.UsageError("Give folders of variants, or --from with rows that were written before.")
    try:
        if rows_file is not None:
            rows = read_lines(rows_file, msgspec.json.Decoder(Row))
        else:
            rows = list(_priced(_wanted(folders, every), architecture, jobs, out))
    except (VariantError, LineError) as error:
        raise click.ClickException(str(error)) from error
    if not any(row.modelled_us for row in rows):
        for row in rows:
            click.echo(f"{row.family} {row.name}: {row.error}", err=True)
        raise click.ClickException("No variant could be priced.")
    click.echo(benchmark_page(rows))


def price_variant(folder: Path, variant: Variant, architecture: str) -> Row:
    """Model one measured variant; an error that the variant causes is in the row."""
    row = _unpriced(folder, variant)
    try:
        found = _pricer(architecture).price(measured_kernel(folder, variant))
    except (VariantError, TunableError, TaskError, RefusedError, DeviceError, DisassemblerError) as error:
        return msgspec.structs.replace(row, error=str(error))
    return msgspec.structs.replace(
        row,
        modelled_us=float(found.seconds) * 1e6,
        counters={name: float(value) for name, value in found.counters.items()},
    )


def _unpriced(folder: Path, variant: Variant) -> Row:
    us = variant.us or 0.0
    return Row(folder=folder.name, family=variant.family, name=variant.name, us=us, ncu=variant.ncu)


class _Pricer:
    """Prices kernels of one task after another, and draws a task's inputs once."""

    def __init__(self, architecture: str) -> None:
        self._gpu = load_architecture(architecture)
        self._task: Task | None = None
        self._pricing: Pricing | None = None

    def price(self, measured: MeasuredKernel) -> Modelled:
        """Raises RefusedError, DeviceError and DisassemblerError."""
        stages = Stages()
        if self._pricing is None or measured.task is not self._task:
            self._task, self._pricing = measured.task, Pricing(measured.task, self._gpu, SEED)
        prepared = self._pricing.prepare(measured.kernel, stages)
        with self._pricing.disassembling(prepared) as disassemblies:
            (found,) = self._pricing.price(prepared, disassemblies, stages)
        return found


_pricer = cache(_Pricer)
"""One in each process."""


def _wanted(folders: Sequence[Path], every: int) -> list[tuple[Path, Variant]]:
    """Every n-th of the variants that have a time, folder by folder."""
    found = []
    for folder in folders:
        timed = [each for each in read_variants(folder) if each.outcome is Outcome.OK and each.us]
        found += [(folder.resolve(), each) for each in timed[::every]]
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
            out.unlink(missing_ok=True)
        for (folder, variant), future in waiting:
            row = _row(folder, variant, future)
            if out is not None:
                append_line(out, row)
            yield row


def _row(folder: Path, variant: Variant, future: Future[Row]) -> Row:
    """A future's row; a fault of the model is one without a price."""
    fault = future.exception()
    if fault is None:
        return future.result()
    if isinstance(fault, BrokenProcessPool):
        raise VariantError(f"The process that priced {folder} '{variant.name}' died: out of memory?")
    return msgspec.structs.replace(_unpriced(folder, variant), error=f"{type(fault).__name__}: {fault}")


if __name__ == "__main__":
    sys.exit(main())
