"""What this machine's GPU can do at most: the row that the suite's floors are made of.

python -m mctskernel.experiments.floors --rows rows.jsonl
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mctskernel.core.device import DeviceError
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.suites.rows import CeilingsRow
from mctskernel.profiling.ceilings import (
    Ceilings,
    default_cache_folder,
    documented_ceilings,
    highest,
    measured_ceilings,
)
from mctskernel.profiling.gpu.cuda_driver import CudaError, open_gpu


@click.command()
@click.option("--rows", type=click.Path(path_type=Path), required=True, help="Append the row there.")
def main(rows: Path) -> None:
    """Measure the GPU's ceilings, or take those of an earlier time."""
    try:
        gpu = open_gpu()
        measured = measured_ceilings(gpu, default_cache_folder())
    except (CudaError, DeviceError) as error:
        click.echo(f"mctskernel: {error}", err=True)
        sys.exit(1)
    append_line(rows, ceilings_row(measured, documented_ceilings(gpu)))


def ceilings_row(measured: Ceilings, documented: Ceilings) -> CeilingsRow:
    """A copy as measured; arithmetic as documented where that is more: no kernel of ours measures it all."""
    most = highest(measured, documented)
    return CeilingsRow(
        copy_bytes_per_second=measured.copy_bytes_per_second,
        fp32_flops_per_second=most.fp32_flops_per_second,
        tensor_flops_per_second=most.tensor_flops_per_second,
    )


if __name__ == "__main__":
    main()
