"""How exactly machine code is counted: what the interpreter says of measured kernels, and what Nsight Compute said.

    python -m mctskernel.experiments.interpreter_against_ncu FOLDER... [--every 4] [--show 0.05]

Each folder holds measured variants with counters, as `mctskernel record` writes them and docs/model_benchmark.md
describes them. Needs no GPU. Counts differ where the compiler here isn't the one that made the measured code, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from mctskernel.experiments.model.priced_kernels import Row, price_variant
from mctskernel.profiling.counters import (
    INSTRUCTIONS,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    SHARED_WAVEFRONTS,
    STORE_REQUESTS,
    STORE_SECTORS,
)
from mctskernel.variants import read_variants

COUNTERS = (
    INSTRUCTIONS,
    LOAD_REQUESTS,
    LOAD_SECTORS,
    STORE_REQUESTS,
    STORE_SECTORS,
    SHARED_WAVEFRONTS,
)


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--every", type=click.IntRange(min=1), default=1, help="Take every n-th variant with counters.")
@click.option("--show", type=float, default=0.05, help="Name kernels whose instructions are off by more.")
@click.option("--gpu", default="H100", help="The GPU that the counters come from.")
def main(folders: tuple[Path, ...], every: int, show: float, gpu: str) -> None:
    """Compare counts with those measured, for every kernel of some folders."""
    rows = []
    for row in _rows(folders, every, gpu):
        rows.append(row)
        ratio = _ratio(row, INSTRUCTIONS)
        if row.error or (ratio is not None and abs(ratio - 1) > show):
            print(f"{row.family}: {row.name}: {row.error or f'{ratio:.3f} of the measured instructions'}")
    _print_table(rows)


def _rows(folders: Sequence[Path], every: int, gpu: str) -> Iterator[Row]:
    for folder in folders:
        measured = [variant for variant in read_variants(folder) if variant.ncu]
        for variant in measured[::every]:
            yield price_variant(folder, variant, gpu)


def _ratio(row: Row, counter: str) -> float | None:
    """What was counted over what was measured; None where either is missing or nothing was measured."""
    counted: Mapping[str, float] = row.counters
    if counter not in counted or not row.ncu.get(counter):
        return None
    return counted[counter] / row.ncu[counter]


def _print_table(rows: Sequence[Row]) -> None:
    print(f"{len(rows)} kernels, {sum(bool(row.error) for row in rows)} without counts")
    print(f"{'counter':66} {'n':>4} {'1 %':>5} {'5 %':>5}  counted over measured: 5, 25, 50, 75, 95 %")
    for counter in COUNTERS:
        found = [ratio for row in rows if (ratio := _ratio(row, counter)) is not None]
        if found:
            within = [statistics.mean(abs(ratio - 1) <= share for ratio in found) for share in (0.01, 0.05)]
            spread = " ".join(f"{value:6.3f}" for value in np.percentile(found, [5, 25, 50, 75, 95]))
            print(f"{counter:66} {len(found):4} {within[0]:5.0%} {within[1]:5.0%}  {spread}")


if __name__ == "__main__":
    main()
