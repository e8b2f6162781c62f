"""`mctskernel calibrate`: measure the constants of the GPU in this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.cli.options import GPUS, described_gpu
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.device import DeviceError
from mctskernel.profiling.architecture import FILE_SUFFIX, load_architecture
from mctskernel.profiling.calibration.calibration import (
    Calibration,
    calibrate_gpu,
    closest_architecture,
    constants,
    document,
)
from mctskernel.profiling.calibration.machine import open_machine
from mctskernel.profiling.calibration.microbenchmark import Machine
from mctskernel.profiling.gpu.cuda_driver import CudaError


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write. [default: the GPU's name with .toml]",
)
@click.option(
    "--against",
    metavar=GPUS,
    callback=described_gpu,
    help="The description to compare with and to complete: a name, or a file. [default: that of the closest GPU]",
)
def calibrate(out: Path | None, against: str | None) -> None:
    """Measure the constants of the GPU in this machine, and write them as a file for --architecture.

    Microbenchmarks load one part of the GPU each: a pipe, a cache, a queue. It takes less than two minutes on an idle
    GPU. What can't be measured reliably stays as described for the closest GPU, and the file says so.

        mctskernel calibrate --out mine.toml

        mctskernel search softmax --device model --architecture mine.toml
    """
    console, progress = PlainConsole(), PlainConsole(stderr=True)
    with _gpu(progress) as (machine, fingerprint, notes):
        shipped = (
            load_architecture(against)
            if against
            else closest_architecture(machine.board.architecture, machine.board.name)
        )
        path = out or Path(re.sub(r"\W+", "-", machine.board.name.lower()) + FILE_SUFFIX)
        with _writing(path):  # before a minute is spent on measuring
            path.parent.mkdir(parents=True, exist_ok=True)
        with progress.status("measuring") as status:
            found = calibrate_gpu(machine, shipped, lambda each: status.update(f"measuring {each}"))
    print_calibration(console, found)
    for note in (*notes, *found.notes):
        console.print(Text(note, "yellow"))
    with _writing(path):
        path.write_text(document(found, fingerprint), encoding="utf-8")
    console.print(Text(f"Written to {path}: use it with --architecture {path}"))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.UsageError(f"The file {path} can't be written: {error.strerror}.") from error


@contextmanager
def _gpu(console: Console) -> Iterator[tuple[Machine, Mapping[str, str], tuple[str, ...]]]:
    try:
        with console.status("compiling"):
            opened = open_machine()
        yield opened
    except CudaError as error:
        raise DeviceError(
            f"The GPU can't be measured: {error}. Perhaps another process has filled it."
        ) from error


def print_calibration(console: Console, found: Calibration) -> None:
    """Print the measured constants beside those of the description they are compared with."""
    table = Table(box=None, pad_edge=False)
    for heading in ("constant", "measured", "described", "difference", "repeats within"):
        table.add_column(heading, justify="left" if heading == "constant" else "right")
    described = dict(constants(found.shipped))
    for path, value in constants(found.architecture):
        measured = found.measured.get(path)
        if measured is None and value == described[path]:
            continue
        spread = f"{measured.spread:.1%}" if measured is not None else "the driver"
        difference = f"{value / described[path] - 1:+.0%}" if described[path] else ""
        table.add_row(path, f"{value:.4g}", f"{described[path]:.4g}", difference, spread)
    console.print(table)
    for refused in found.refused:
        console.print(Text(f"{refused.constant} is not measured: {refused.reason}.", "yellow"))
    kept = [path for path, source in found.sources.items() if source.startswith("not measured")]
    if kept:
        console.print(Text(f"As described for {found.shipped.name}: {', '.join(kept)}.", "dim"))
