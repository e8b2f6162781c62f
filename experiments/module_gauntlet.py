"""Modules that cheat and unusual honest ones before the PyTorch door's referee: from a checkout.

    python -m mctskernel.experiments.module_gauntlet tests/gauntlet/pytorch [--device cuda] [--out FILE.json]

The folder has `references/`, `cheats/` and `honest/`. The docstring of a module says on its first line what the trick
is, or what is unusual, and then `Reference: NAME`; for a cheat `Caught by: GUARD` (or an outcome, or `no gain` where a
cheat may be accepted as long as it claims nothing by it); where it needs them `Runs on: gpu` (or `cpu`) and
`Own kernels: asked for`.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mctskernel.core.evaluation import Outcome
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.pytorch.processes import ForkServer, fork_server
from mctskernel.profiling.pytorch.referee import Limits, ModuleVerdict, Terms, referee

NO_GAIN = "no gain"
LIMITS = Limits(load_seconds=120.0, call_seconds=5.0)


@dataclass(frozen=True)
class Entry:
    """One module of the corpus; `caught_by` is empty for an honest one, `runs_on` for one that runs everywhere."""

    file: Path
    summary: str
    reference: Path
    caught_by: str
    runs_on: str
    own_kernels: bool

    @property
    def label(self) -> str:
        """`cheats/late_thread`."""
        return f"{self.file.parent.name}/{self.file.stem}"


class Result(msgspec.Struct, frozen=True):
    """What an entry came to; `fine` when it is what it should."""

    label: str
    summary: str
    fine: bool
    outcome: Outcome
    noticed_by: str
    message: str
    speedup: float
    at_least: float
    round_trip_seconds: float
    seconds: float


def read_modules(folder: Path) -> tuple[Entry, ...]:
    """Every module of the corpus, cheats first."""
    files = (*sorted(folder.glob("cheats/*.py")), *sorted(folder.glob("honest/*.py")))
    return tuple(_entry(file, folder) for file in files)


def judge_modules(
    entries: Iterable[Entry], device: str, runs: int, server: ForkServer
) -> Iterator[tuple[Entry, Result]]:
    """Judge entries, each reference opened once."""

    def key(entry: Entry) -> tuple[str, bool]:
        return str(entry.reference), entry.own_kernels

    for (reference, own_kernels), group in groupby(sorted(entries, key=key), key):
        terms = Terms(device=device, runs=runs, own_kernels=own_kernels, limits=LIMITS)
        with referee(Path(reference).read_text(), terms, server) as judge:
            for entry in group:
                began = time.monotonic()
                verdict = judge.judge(entry.file.read_text())
                yield entry, _result(entry, verdict, time.monotonic() - began)


def _entry(file: Path, folder: Path) -> Entry:
    words = ast.get_docstring(ast.parse(file.read_text())) or ""
    summary, *lines = words.splitlines()
    said: Mapping[str, str] = dict(line.split(": ", 1) for line in lines if ": " in line)
    return Entry(
        file,
        summary,
        folder / "references" / f"{said['Reference']}.py",
        said.get("Caught by", ""),
        said.get("Runs on", ""),
        "Own kernels" in said,
    )


def _result(entry: Entry, verdict: ModuleVerdict, seconds: float) -> Result:
    evaluation, speedup = verdict.evaluation, verdict.speedup
    noticed = str(evaluation.guard or ("" if evaluation.ok else evaluation.outcome))
    claimed = speedup.low if speedup is not None else 0.0
    if not entry.caught_by:
        fine = evaluation.ok
    elif entry.caught_by == NO_GAIN:
        fine = not evaluation.ok or claimed <= 1.0
    else:
        fine = not evaluation.ok
    return Result(
        entry.label,
        entry.summary,
        fine,
        evaluation.outcome,
        noticed,
        evaluation.message or evaluation.quarantine,
        speedup.ratio if speedup is not None else 0.0,
        speedup.at_least if speedup is not None else 0.0,
        speedup.round_trip_seconds if speedup is not None else 0.0,
        seconds,
    )


def _table(results: Sequence[Result]) -> Table:
    table = Table("module", "", "outcome", "noticed by", "times as fast", "at least", "s")
    for result in results:
        table.add_row(
            Text(result.label),
            Text("" if result.fine else "WRONG", "bold red"),
            result.outcome,
            Text(result.noticed_by),
            f"{result.speedup:.2f}" if result.speedup else "",
            f"{result.at_least:.2f}" if result.speedup else "",
            f"{result.seconds:.1f}",
        )
    return table


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--runs", default=5, show_default=True, help="Timed rounds of each.")
@click.option("--only", multiple=True, help="Names; all otherwise.")
@click.option("--out", type=click.Path(path_type=Path))
def main(folder: Path, device: str, runs: int, only: tuple[str, ...], out: Path | None) -> None:
    """Judge the modules of FOLDER and print what each came to."""
    place = "gpu" if device == "cuda" else "cpu"
    here = [each for each in read_modules(folder) if each.runs_on in ("", place)]
    entries = [each for each in here if not only or each.file.stem in only]
    console, results = Console(), []
    with fork_server() as server:
        for _, result in judge_modules(entries, device, runs, server):
            results.append(result)
            _write(results, out)
            console.print(Text(f"{'fine ' if result.fine else 'WRONG'} {result.label}: {result.message}"))
    results.sort(key=lambda each: each.label)
    console.print(_table(results))
    wrong = sum(not each.fine for each in results)
    console.print(f"{len(results) - wrong} of {len(results)} came to what they should.")
    _write(results, out)
    sys.exit(bool(wrong))


def _write(results: Sequence[Result], out: Path | None) -> None:
    if out is not None:
        write_result(out, results)


if __name__ == "__main__":
    main()
