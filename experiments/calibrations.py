"""How well a calibration repeats, and how far it is from what is described: two of them on this machine's GPU.

python -m mctskernel.experiments.calibrations --out calibrations/

The first is the command itself in a process of its own, the second runs here and keeps every time that it took.
`calibrations.json` has both beside the description, and those times, from which constants can be fitted again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.architecture import (
    Architecture,
    ArchitectureError,
    load_architecture,
    read_architecture,
)
from mctskernel.profiling.calibration.calibration import (
    Calibration,
    calibrate_gpu,
    closest_architecture,
    constants,
)
from mctskernel.profiling.calibration.document import document
from mctskernel.profiling.calibration.fit import Measured, Refused, Timings
from mctskernel.profiling.calibration.machine import open_machine
from mctskernel.profiling.calibration.microbenchmark import Board
from mctskernel.profiling.gpu.cuda_driver import CudaError

WITHIN = 0.10
"""How far a calibration may be from what is described for the same GPU."""


class Row(msgspec.Struct, frozen=True):
    """A constant as described and as calibrated twice, with the spread of the second's repeats."""

    constant: str
    described: float
    first: float
    second: float
    spread: float

    @property
    def difference(self) -> float:
        """Of the second from the description, as a fraction of it."""
        return self.second / self.described - 1 if self.described else float("nan")

    @property
    def repeat(self) -> float:
        """Of the second from the first."""
        return self.second / self.first - 1 if self.first else float("nan")


class Report(msgspec.Struct, frozen=True):
    """What `calibrations.json` holds; `seconds` are those of each calibration, its start included."""

    fingerprint: Mapping[str, str]
    board: Board
    described: str
    seconds: tuple[float, float]
    rows: tuple[Row, ...]
    others: Mapping[str, Measured]
    refused: tuple[Refused, ...]
    remarks: tuple[str, ...]
    timings: Mapping[str, Timings]


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="A folder.")
@click.option("--against", default="", help="The description to compare with. [default: the closest]")
def main(out: Path, against: str) -> None:
    """Calibrate twice, write both files and a report, and print what differs."""
    try:
        report = calibrate_twice(out, against)
    except (ArchitectureError, CudaError, DeviceError) as error:
        click.echo(f"mctskernel: {error}", err=True)
        sys.exit(1)
    write_result(out / "calibrations.json", report)
    for line in lines(report):
        click.echo(line)


def calibrate_twice(out: Path, against: str) -> Report:
    """Both calibrations; the first one is over before the second opens the GPU."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    chosen = ("--against", against) if against else ()
    command = (sys.executable, "-m", "mctskernel", "calibrate", "--out", str(out / "first.toml"), *chosen)
    if subprocess.run(command, check=False).returncode:
        raise DeviceError("The first calibration failed; it says above why.")
    middle = time.perf_counter()
    machine, fingerprint, remarks = open_machine()
    board = machine.board
    described = (
        load_architecture(against) if against else closest_architecture(board.architecture, board.name)
    )
    second = calibrate_gpu(machine, described)
    end = time.perf_counter()
    (out / "second.toml").write_text(document(second, fingerprint), encoding="utf-8")
    return Report(
        fingerprint,
        board,
        described.name,
        (middle - began, end - middle),
        rows(described, read_architecture(out / "first.toml"), second),
        second.others,
        second.refused,
        (*remarks, *second.remarks),
        second.timings,
    )


def rows(described: Architecture, first: Architecture, second: Calibration) -> tuple[Row, ...]:
    """The constants that the second calibration measured."""
    before, once, twice = (dict(constants(each)) for each in (described, first, second.architecture))
    return tuple(
        Row(path, before[path], once[path], value, second.measured[path].spread)
        for path, value in twice.items()
        if path in second.measured
    )


def lines(report: Report) -> list[str]:
    """A table in Markdown, then what is beyond the tenth, and what could not be measured."""
    found = [
        f"{report.fingerprint.get('gpu', '')}: {report.seconds[0]:.0f} s and {report.seconds[1]:.0f} s",
        "",
        f"| constant | {report.described} | first | second | difference | between both | repeats within |",
        "|---|---|---|---|---|---|---|",
    ]
    found += [
        f"| {row.constant} | {row.described:.4g} | {row.first:.4g} | {row.second:.4g} | {row.difference:+.1%} | "
        f"{row.repeat:+.1%} | {row.spread:.1%} |"
        for row in report.rows
    ]
    found += [
        f"| {name} | | | {each.value:.4g} | | | {each.spread:.1%} |" for name, each in report.others.items()
    ]
    near = [row for row in report.rows if abs(row.difference) <= WITHIN]
    beyond = [row.constant for row in report.rows if not abs(row.difference) <= WITHIN]
    found += ["", f"{len(near)} of {len(report.rows)} within {WITHIN:.0%} of the description; beyond: "]
    found[-1] += ", ".join(beyond) or "none"
    found += [f"{each.constant} is not measured: {each.reason}." for each in report.refused]
    return [*found, *report.remarks]


if __name__ == "__main__":
    main()
