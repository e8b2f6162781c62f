"""All microbenchmarks on one GPU, and the description of it that they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import tomlkit
from tomlkit.items import Table

from mctskernel.profiling.architecture import (
    MEASURED_TABLE,
    Architecture,
    architecture_of,
    known_architectures,
    load_architecture,
)
from mctskernel.profiling.calibration.benchmarks import clock, is_filled_by_mma, microbenchmarks
from mctskernel.profiling.calibration.microbenchmark import (
    Board,
    Machine,
    Measured,
    Microbenchmark,
    Refused,
    measure,
)
from mctskernel.profiling.gpu.cuda_driver import CudaError

SECONDS = 90.0
"""After so long, what is left keeps its value."""

DIGITS = 4
"""Significant digits that are kept: repeats differ in the third."""

WARM_UP_RUNS = 20
WARM_UP_CYCLES = 50_000_000
"""Half a second in all."""

CLOCK_CHANGE = 0.02

Follow = Callable[[str], None]


@dataclass(frozen=True)
class Calibration:
    """A GPU's constants as measured, beside the `shipped` description that the rest was taken from.

    `sources` says of every constant of `architecture` where it comes from, by its path (`throughput.fma`).
    """

    architecture: Architecture
    shipped: Architecture
    sources: Mapping[str, str]
    measured: Mapping[str, Measured]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...] = ()


def calibrate_gpu(
    machine: Machine,
    like: Architecture,
    follow: Follow = lambda _: None,
    now: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Measure what can be measured of the machine's GPU; the rest is as in `like`.

    `follow` is called with the name of every microbenchmark before it runs. Raises CudaError when the GPU is lost.
    """
    board = machine.board
    began, beat = now(), clock(board)
    follow(beat.constant)
    _warm_up(beat, machine)
    first = _measure(beat, machine, 0.0)
    clock_hz = first.value if isinstance(first, Measured) else like.chip.clock_hz
    found = [first]
    for benchmark in microbenchmarks(board):
        follow(benchmark.constant)
        late = now() - began > SECONDS
        found.append(
            Refused(benchmark.constant, "there was no time left for it")
            if late
            else _measure(benchmark, machine, clock_hz)
        )
    again = _measure(beat, machine, 0.0)
    measured = {each.constant: each for each in found if isinstance(each, Measured)}
    measured |= {each.constant: each for each in _derived(measured, board)}
    refused = {each.constant: each for each in found if isinstance(each, Refused)}
    description = msgspec.to_builtins(like) | {"name": board.name, "architecture": board.architecture}
    sources: dict[str, str] = {}
    for path, kept in constants(like):
        section, field = path.split(".")
        if path in board.constants:
            description[section][field] = board.constants[path]
            sources[path] = "the driver"
        elif path in measured:
            description[section][field] = _rounded(measured[path].value, kept)
            sources[path] = f"measured: {measured[path].why}"
        else:
            why = f": {refused[path].reason}" if path in refused else ""
            sources[path] = f"not measured{why}; as described for {like.name}"
    return Calibration(
        architecture=msgspec.convert(description, Architecture),
        shipped=like,
        sources=sources,
        measured=measured,
        refused=tuple(refused.values()),
        notes=tuple(_clock_notes(first, again)),
    )


def closest_architecture(code: str, name: str = "") -> Architecture:
    """The described GPU that is most like one: by its name and code, or else of the nearest generation."""
    described = architecture_of(code, name)
    if described is not None:
        return described
    known = [load_architecture(short) for short in known_architectures()]
    return min(known, key=lambda each: abs(_generation(each.architecture) - _generation(code)))


def _generation(code: str) -> int:
    return int("".join(character for character in code if character.isdigit()) or 0)


def constants(gpu: Architecture) -> Iterator[tuple[str, float]]:
    """All constants of a description by path: `throughput.fma`, 128."""
    for section, values in msgspec.to_builtins(gpu).items():
        if isinstance(values, dict):
            yield from ((f"{section}.{field}", value) for field, value in values.items())


def _warm_up(benchmark: Microbenchmark, machine: Machine) -> None:
    """A GPU that was idle takes a moment to reach its clock."""
    with suppress(CudaError):
        for _ in range(WARM_UP_RUNS):
            machine.seconds(benchmark, WARM_UP_CYCLES)


def _clock_notes(before: Measured | Refused, after: Measured | Refused) -> Iterator[str]:
    if not isinstance(before, Measured) or not isinstance(after, Measured):
        return
    change = after.value / before.value - 1
    if abs(change) > CLOCK_CHANGE:
        yield (
            f"The clock changed by {change:+.0%} while measuring (from {before.value / 1e6:.0f} to "
            f"{after.value / 1e6:.0f} MHz), so everything that counts in cycles may be off by as much."
        )


def _measure(benchmark: Microbenchmark, machine: Machine, clock_hz: float) -> Measured | Refused:
    try:
        return measure(benchmark, machine, clock_hz)
    except CudaError as error:
        if error.sticky:
            raise
        return Refused(benchmark.constant, f"the GPU refused it: {error}")
    finally:
        machine.release()


def _rounded(value: float, like: float) -> float:
    return round(value) if isinstance(like, int) else float(f"{value:.{DIGITS}g}")


def _derived(found: Mapping[str, Measured], board: Board) -> Iterator[Measured]:
    """The constants that follow from other measurements, as far as these exist."""
    issue = found.get("issue")
    if issue is not None and round(issue.value) >= 1:
        # Each issues at most one warp instruction a cycle, and comes close to it.
        why = f"{issue.value:.3g} warp instructions are issued a cycle"
        yield Measured("chip.schedulers", round(issue.value), issue.spread, why)
    mma = found.get("throughput.tensor_sync_fma")
    if mma is not None and is_filled_by_mma(board):
        yield replace(mma, constant="throughput.tensor_fma")


def document(calibration: Calibration, fingerprint: Mapping[str, str]) -> str:
    """The file's text: every constant with where it comes from, then the fingerprint of what measured it."""
    gpu = calibration.architecture
    text = tomlkit.document()
    title = f"{gpu.name}, as `mctskernel calibrate` measured it. Each value names where it comes from."
    text.add(tomlkit.comment(_printable(title)))
    text.add(tomlkit.nl())
    text.add("name", tomlkit.string(gpu.name))
    text.add("architecture", tomlkit.string(gpu.architecture))
    tables: dict[str, Table] = {}
    for path, value in constants(gpu):
        section, field = path.split(".")
        if section not in tables:
            tables[section] = tomlkit.table()
            text.add(section, tables[section])
        tables[section].add(field, value)
        tables[section][field].comment(_printable(_source(calibration, path)))
    origin = tomlkit.table()
    for key, said in fingerprint.items():
        origin.add(key, said)
    text.add(MEASURED_TABLE, origin)
    return tomlkit.dumps(text)


def _source(calibration: Calibration, path: str) -> str:
    found = calibration.measured.get(path)
    spread = f" (repeats within {found.spread:.1%})" if found is not None else ""
    return f"{calibration.sources[path]}{spread}"


def _printable(text: str) -> str:
    """A driver's message may hold what a comment can't."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
