"""A long run of fuzzing over everything that reads what comes from outside, and its table.

    python -m mctskernel.experiments.fuzzing --seconds 900 --seed 0 --out docs/results/fuzzing.json

Targets take turns until the processor's seconds are spent; the table is written after every round, so that a run that
is ended early says what it did. What a target is and what counts as a defect: `fuzz.targets`, `fuzz.watch`.
"""

from __future__ import annotations

import codecs
import os
import platform
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click
import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings

from mctskernel.experiments.fuzz.inputs import inputs
from mctskernel.experiments.fuzz.targets import Target, targets
from mctskernel.experiments.fuzz.watch import kind_of, watched
from mctskernel.experiments.records.provenance import write_result

ROUND = 200
"""Inputs of a target in a round, with a seed of their own."""

SHOWN_BYTES = 120


class Row(msgspec.Struct, frozen=True):
    """What became of a target's inputs. `errors` counts refusals that differ in more than what they quote.

    `defects` are sentences with the first bytes of the shortest input that made each; `slowest_ms` is of the processor.
    """

    target: str
    inputs: int
    taken: int
    errors: int
    defects: dict[str, str]
    slowest_ms: float
    largest_bytes: int


class Table(msgspec.Struct, frozen=True):
    """A run: its seed, the processor's seconds that it took with the drawing of inputs, the machine, and its rows."""

    seed: int
    rounds: int
    processor_seconds: float
    machine: dict[str, str]
    rows: tuple[Row, ...]


@dataclass
class _Tally:
    target: Target
    folder: Path
    inputs: int = 0
    taken: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    defects: dict[str, bytes] = field(default_factory=dict)
    slowest: float = 0.0
    largest: int = 0

    def add(self, data: bytes) -> None:
        self.inputs += 1
        self.largest = max(self.largest, len(data))
        try:
            reading = watched(self.target.read, self.target.refusals, data, emptied(self.folder))
        except AssertionError as error:
            what = kind_of(str(error).partition("\n")[0] or "an invariant is broken")
            if what not in self.defects or len(data) < len(self.defects[what]):
                self.defects[what] = data
            return
        self.slowest = max(self.slowest, reading.seconds)
        if reading.refusal:
            self.errors[kind_of(reading.refusal)] += 1
        else:
            self.taken += 1

    def row(self) -> Row:
        shown = {what: repr(data[:SHOWN_BYTES]) for what, data in self.defects.items()}
        milliseconds = round(self.slowest * 1e3, 1)
        return Row(
            self.target.name, self.inputs, self.taken, len(self.errors), shown, milliseconds, self.largest
        )


@cache
def warmed_up(target: Target) -> tuple[bytes, ...]:
    """The examples of a target, once it has read them: what is imported on the first call is no reaching for files."""
    examples = target.examples()
    codecs.lookup("unicode_escape")  # the parser of Python reads it from a file when it first needs it
    with tempfile.TemporaryDirectory() as folder:
        for each in examples:
            try:
                target.read(each, emptied(Path(folder)))
            except target.refusals:
                continue
    return examples


def emptied(folder: Path) -> Path:
    """The folder, without what is in it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return folder


def fuzz(wanted: Sequence[Target], seconds: float, first_seed: int, follow: Callable[[Table], None]) -> Table:
    """Fuzz targets in turn for so many seconds of the processor; `follow` gets the table after each round."""
    began = time.process_time()
    table = Table(first_seed, 0, 0.0, machine(), ())
    with tempfile.TemporaryDirectory() as root:
        tallies = []
        for number, target in enumerate(wanted):
            folder = Path(root).resolve() / str(number)
            folder.mkdir()
            tallies.append(_Tally(target, folder))
        rounds = 0
        while rounds == 0 or time.process_time() - began < seconds:
            for tally in tallies:
                _one_round(tally, first_seed + rounds)
            rounds += 1
            spent = round(time.process_time() - began, 1)
            table = Table(first_seed, rounds, spent, table.machine, tuple(each.row() for each in tallies))
            follow(table)
    return table


def _one_round(tally: _Tally, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(warmed_up(tally.target), tally.target.words, tally.target.most))
    def run(data: bytes) -> None:
        tally.add(data)

    run()


def machine() -> dict[str, str]:
    """What the run was on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(names, platform.machine()),
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "hypothesis": hypothesis.__version__,
    }


@click.command()
@click.option("--seconds", default=900.0, show_default=True, help="Seconds of the processor's time.")
@click.option(
    "--seed", "first_seed", default=0, show_default=True, help="Of the first round; each has the next."
)
@click.option("--target", "names", multiple=True, help="Only targets whose names have this in them.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the table goes, as JSON.")
def main(seconds: float, first_seed: int, names: tuple[str, ...], out: Path | None) -> None:
    """Fuzz every reader of what comes from outside."""

    def keep(table: Table) -> None:
        if out is not None:
            write_result(out, table)
        found = sum(len(row.defects) for row in table.rows)
        click.echo(
            f"round {table.rounds}: {table.processor_seconds:.0f} s of the processor, {found} defects",
            err=True,
        )

    chosen = [target for target in targets() if not names or any(name in target.name for name in names)]
    table = fuzz(chosen, seconds, first_seed, keep)
    click.echo(f"{'target':<28}{'inputs':>9}{'taken':>8}{'errors':>8}{'defects':>9}{'slowest, ms':>13}")
    for row in table.rows:
        click.echo(
            f"{row.target:<28}{row.inputs:>9}{row.taken:>8}{row.errors:>8}{len(row.defects):>9}{row.slowest_ms:>13.1f}"
        )
        for what, data in row.defects.items():
            click.echo(f"    {what}: {data}")


if __name__ == "__main__":
    main()
