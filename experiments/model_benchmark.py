"""How well the model ranks kernels whose times are known, and how well it counts.

    python -m mctskernel.experiments.model_benchmark DIR... [--jobs 4]

Each DIR is a folder of variants (docs/model_benchmark.md has the form). Pricing takes about a second a kernel. Tables
go to standard output as Markdown, progress to standard error.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.resampling import rank_correlation
from mctskernel.core.task import Array, TaskError
from mctskernel.core.user_errors import RunError
from mctskernel.experiments.results import page, table
from mctskernel.experiments.variants import Variant, kernel_of, read_variants, task_at
from mctskernel.profiling import counters as names
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.profiling.candidate import RefusedError
from mctskernel.profiling.machine_code.cubin import DisassemblerError
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages

PICKS = 5

COUNTS = (
    names.INSTRUCTIONS,
    names.LOAD_REQUESTS,
    names.LOAD_SECTORS,
    names.STORE_REQUESTS,
    names.STORE_SECTORS,
    names.WAVEFRONTS,
    names.SHARED_WAVEFRONTS,
    names.L2_READS,
    names.L2_WRITES,
    names.DRAM_READ,
    names.DRAM_BYTES,
)
CLOSE = 0.05
FAIRLY_CLOSE = 0.25
SEED = 0  # of the inputs; their contents decide which way a kernel branches


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A variant's measured and modelled microseconds, modelled `counters`, measured `ncu`, or an `error`."""

    family: str
    name: str
    us: float
    ncu: dict[str, float] = {}
    modelled_us: float | None = None
    counters: dict[str, float] = {}
    error: str = ""


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
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
def main(*, folders: tuple[Path, ...], every: int, architecture: str, jobs: int) -> None:
    """Rank measured kernels by the model and print how well it did."""
    try:
        rows = list(_priced(_wanted(folders, every), architecture, jobs))
    except RunError as error:
        raise click.ClickException(str(error)) from error
    if not any(row.modelled_us for row in rows):
        for row in rows:
            click.echo(f"{row.family} {row.name}: {row.error}", err=True)
        raise click.ClickException("No variant could be priced.")
    click.echo(benchmark_page(rows))


def price_variant(folder: Path, variant: Variant, architecture: str) -> Row:
    """Model one measured variant; an error that the variant causes is in the row."""
    row, stages, shape = _unpriced(variant), Stages(), tuple(variant.shape.items())
    try:
        kernel = kernel_of(folder, variant)
        pricing = _pricing(folder / variant.task, variant.language, shape, architecture)
        prepared = pricing.prepare(kernel, stages)
        with pricing.disassembling(prepared) as disassemblies:
            (found,) = pricing.price(prepared, disassemblies, stages)
    except (RunError, TaskError, RefusedError, DeviceError, DisassemblerError) as error:
        return msgspec.structs.replace(row, error=str(error))
    return msgspec.structs.replace(
        row,
        modelled_us=float(found.seconds) * 1e6,
        counters={name: float(value) for name, value in found.counters.items()},
    )


@lru_cache(maxsize=1)
def _pricing(
    folder: Path, language: Language, shape: tuple[tuple[str, int], ...], architecture: str
) -> Pricing:
    """That of the last task, of which inputs are drawn once."""
    return Pricing(task_at(folder, language, dict(shape)), load_architecture(architecture), SEED)


def _unpriced(variant: Variant) -> Row:
    return Row(family=variant.family, name=variant.name, us=variant.us or 0.0, ncu=variant.ncu)


def _wanted(folders: Sequence[Path], every: int) -> list[tuple[Path, Variant]]:
    """Every n-th of the variants that have a time, folder by folder."""
    found = []
    for folder in folders:
        timed = [each for each in read_variants(folder) if each.outcome is Outcome.OK and each.us]
        found += [(folder.resolve(), each) for each in timed[::every]]
    return found


def _priced(wanted: Sequence[tuple[Path, Variant]], architecture: str, jobs: int) -> Iterator[Row]:
    """Price in other processes."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(price_variant, folder, variant, architecture) for folder, variant in wanted]
        console = Console(stderr=True)
        waiting = track(
            list(zip(wanted, futures, strict=True)),
            "Pricing",
            console=console,
            disable=not console.is_terminal,
        )
        for (folder, variant), future in waiting:
            yield _row(folder, variant, future)


def _row(folder: Path, variant: Variant, future: Future[Row]) -> Row:
    """A future's row; a fault of the model is one without a price."""
    fault = future.exception()
    if fault is None:
        return future.result()
    if isinstance(fault, BrokenProcessPool):
        raise RunError(f"The process that priced {folder} '{variant.name}' died: out of memory?")
    return msgspec.structs.replace(_unpriced(variant), error=f"{type(fault).__name__}: {fault}")


def benchmark_page(rows: Sequence[Row]) -> str:
    """Make all tables of rows, at least one of which has a price."""
    priced = [row for row in rows if row.modelled_us]
    can_rank = max(Counter(row.family for row in priced).values()) > 1
    sections = [
        ("Ranking", _ranking(priced) if can_rank else ""),
        ("Counts against Nsight Compute", _counts([row for row in priced if row.ncu])),
        ("Not priced", "\n".join(f"- {r.family} {r.name}: {r.error}" for r in rows if not r.modelled_us)),
    ]
    blocks = (block for title, text in sections if text for block in (f"## {title}", text))
    return page("The model against measurements", *blocks)


def regret(measured: Array, modelled: Array, picks: int) -> float:
    """Time of the best of the first `picks` over the true best's; of tied predictions the slowest counts first."""
    chosen = np.lexsort((-measured, modelled))[:picks]
    return float(measured[chosen].min() / measured.min())


def _ranking(rows: Sequence[Row]) -> str:
    """A line for each family, and the means over families, in which an undefined correlation is 0."""
    columns = ("family", "kernels", "Spearman", "first pick", "best of 5", "modelled / measured, quartiles")
    lines, found = [], []
    for family, kernels in Counter(row.family for row in rows).items():
        if kernels == 1:
            continue
        times = [(row.us, row.modelled_us) for row in rows if row.family == family]
        measured, modelled = np.array(times, dtype=float).T
        picks = regret(measured, modelled, 1), regret(measured, modelled, PICKS)
        figures = (rank_correlation(measured, modelled), *picks)
        quartiles = " ".join(f"{value:.2f}" for value in np.percentile(modelled / measured, [25, 50, 75]))
        lines.append((family, str(kernels), *(f"{figure:.3f}" for figure in figures), quartiles))
        found.append(np.nan_to_num(figures))
    kernels = sum(int(line[1]) for line in lines)
    lines.append(("mean", str(kernels), *(f"{figure:.3f}" for figure in np.mean(found, axis=0)), ""))
    return table(columns, lines)


def _counts(rows: Sequence[Row]) -> str:
    lines = []
    for name in COUNTS:
        both = [
            (row.counters[name], row.ncu[name]) for row in rows if row.ncu.get(name) and name in row.counters
        ]
        if not both:
            continue
        ratios = np.array([modelled / measured for modelled, measured in both])
        quantiles = " ".join(f"{value:.2f}" for value in np.percentile(ratios, [5, 25, 50, 75, 95]))
        shares = (f"{np.mean(np.abs(ratios - 1.0) <= limit):.0%}" for limit in (CLOSE, FAIRLY_CLOSE))
        lines.append((name, str(len(ratios)), *shares, quantiles))
    within = (f"within {limit:.0%}" for limit in (CLOSE, FAIRLY_CLOSE))
    columns = ("counter", "kernels", *within, "modelled / measured: 5, 25, 50, 75, 95 %")
    return table(columns, lines) if lines else ""


if __name__ == "__main__":
    sys.exit(main())
