"""All microbenchmarks on one GPU, and the description of it that comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from mctskernel.profiling.architecture import (
    Architecture,
    architecture_of,
    known_architectures,
    load_architecture,
)
from mctskernel.profiling.calibration.catalogue import clock, microbenchmarks
from mctskernel.profiling.calibration.derivation import derived
from mctskernel.profiling.calibration.fit import Machine, Measured, Refused, Timings, fit, time_benchmark
from mctskernel.profiling.calibration.microbenchmark import Board, Microbenchmark
from mctskernel.profiling.gpu.cuda_driver import CudaError

SECONDS = 90.0
"""After so long, what is left keeps its value."""

DIGITS = 4
"""Significant digits that are kept: repeats differ in the third."""

WARM_UP_RUNS = 20
WARM_UP_CYCLES = 50_000_000
"""Half a second in all."""

CLOCK_CHANGE = 0.02
CLOCK_AGAIN = "chip.clock_hz, at the end"

Follow = Callable[[str], None]


@dataclass(frozen=True)
class Calibration:
    """A GPU's constants as measured, beside the `shipped` description that the rest was taken from.

    `sources` says of every constant of `architecture` where it comes from, by its path (`throughput.fma`).
    `others` are measurements of what no constant is made of. `timings` are what everything was made from.
    """

    architecture: Architecture
    shipped: Architecture
    sources: Mapping[str, str]
    measured: Mapping[str, Measured]
    refused: tuple[Refused, ...]
    timings: Mapping[str, Timings]
    remarks: tuple[str, ...] = ()

    @property
    def others(self) -> dict[str, Measured]:
        """Measurements that no constant is made of."""
        return {name: each for name, each in self.measured.items() if name not in self.sources}


def calibrate_gpu(
    machine: Machine,
    like: Architecture,
    name: str = "",
    follow: Follow = lambda _: None,
    now: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Measure what can be measured of the machine's GPU; the rest is as in `like`.

    The file is to be called `name`, or as the driver calls the GPU. `follow` hears of every microbenchmark before it
    runs. Raises CudaError when the GPU is lost.
    """
    return describe_gpu(machine.board, time_gpu(machine, follow, now), like, name)


def time_gpu(machine: Machine, follow: Follow, now: Callable[[], float]) -> dict[str, Timings | Refused]:
    """Run every microbenchmark, the clock's first and once more at the end."""
    began, first = now(), clock(machine.board)
    follow(first.constant)
    _warm_up(first, machine)
    found: dict[str, Timings | Refused] = {first.constant: _time(first, machine)}
    for benchmark in microbenchmarks(machine.board):
        follow(benchmark.constant)
        late = now() - began > SECONDS
        found[benchmark.constant] = (
            Refused(benchmark.constant, "there was no time left for it")
            if late
            else _time(benchmark, machine)
        )
    found[CLOCK_AGAIN] = _time(first, machine)
    return found


def describe_gpu(
    board: Board, times: Mapping[str, Timings | Refused], like: Architecture, name: str = ""
) -> Calibration:
    """What the times of `time_gpu` come to."""

    def fitted(benchmark: Microbenchmark, which: str, clock_hz: float) -> Measured | Refused:
        found = times[which]
        return found if isinstance(found, Refused) else fit(benchmark, found, clock_hz, board.sms)

    beat = clock(board)
    first, again = fitted(beat, beat.constant, 0.0), fitted(beat, CLOCK_AGAIN, 0.0)
    clock_hz = first.value if isinstance(first, Measured) else like.chip.clock_hz
    found = [first, *(fitted(each, each.constant, clock_hz) for each in microbenchmarks(board))]
    measured = {each.constant: each for each in found if isinstance(each, Measured)}
    measured |= derived(measured, board)
    refused = {each.constant: each for each in found if isinstance(each, Refused)}
    document: dict[str, Any] = asdict(replace(like, name=name or board.name, architecture=board.architecture))
    sources: dict[str, str] = {}
    for path, kept in constants(like):
        section, field = path.split(".")
        if path in board.constants:
            document[section][field] = board.constants[path]
            sources[path] = "the driver"
        elif path in measured:
            document[section][field] = _rounded(measured[path].value, kept)
            sources[path] = f"measured: {measured[path].why}"
        else:
            why = f": {refused[path].reason}" if path in refused else ""
            sources[path] = f"not measured{why}; as described for {like.name}"
    return Calibration(
        architecture=msgspec.convert(document, Architecture),
        shipped=like,
        sources=sources,
        measured=measured,
        refused=tuple(refused.values()),
        timings={which: each for which, each in times.items() if isinstance(each, Timings)},
        remarks=tuple(_clock_remarks(first, again)),
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
    for section, values in asdict(gpu).items():
        if isinstance(values, dict):
            yield from ((f"{section}.{field}", value) for field, value in values.items())


def _warm_up(benchmark: Microbenchmark, machine: Machine) -> None:
    """A GPU that was idle takes a moment to reach its clock."""
    with suppress(CudaError):
        for _ in range(WARM_UP_RUNS):
            machine.seconds(benchmark, WARM_UP_CYCLES)


def _clock_remarks(before: Measured | Refused, after: Measured | Refused) -> Iterator[str]:
    if not isinstance(before, Measured) or not isinstance(after, Measured):
        return
    change = after.value / before.value - 1
    if abs(change) > CLOCK_CHANGE:
        yield (
            f"The clock changed by {change:+.0%} while measuring (from {before.value / 1e6:.0f} to "
            f"{after.value / 1e6:.0f} MHz), so everything that counts in cycles may be off by as much."
        )


def _time(benchmark: Microbenchmark, machine: Machine) -> Timings | Refused:
    try:
        return time_benchmark(benchmark, machine)
    except CudaError as error:
        if error.sticky:
            raise
        return Refused(benchmark.constant, f"the GPU refused it: {error}")
    finally:
        machine.release()


def _rounded(value: float, like: float) -> float:
    return round(value) if isinstance(like, int) else float(f"{value:.{DIGITS}g}")
