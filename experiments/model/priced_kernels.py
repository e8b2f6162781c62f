"""What the model says of kernels whose times are known: one row each, kept as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.task import Task, TaskError
from mctskernel.experiments.subjects.measured_kernels import MeasuredKernel, footprints, measured_kernel
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.candidate import RefusedError
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError
from mctskernel.profiling.model.modelled import Modelled
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.tunables import TunableError
from mctskernel.variants import Variant, VariantError

SEED = 0
"""Inputs whose contents decide where a kernel goes are drawn from it."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A variant with its measured and its modelled time, in microseconds.

    `launches_us` are the terms of each launch of its plan and `gaps_us` what lies between them, so that a price can
    be made again without the kernel. `counters` and `ncu` are the modelled and the measured ones; `stage_seconds` is
    what the price cost. `error` is a sentence where there is no price.
    """

    folder: str
    family: str
    name: str
    us: float
    ncu: dict[str, float] = {}
    modelled_us: float | None = None
    launches_us: list[dict[str, float]] = []
    gaps_us: float = 0.0
    counters: dict[str, float] = {}
    diagnosis: str = ""
    stage_seconds: dict[str, float] = {}
    error: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a row is of."""
        return self.folder, self.family, self.name


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, a torn last line aside. Raises VariantError."""
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield msgspec.json.decode(line, type=Row)
        except msgspec.DecodeError as error:
            raise VariantError(f"{path}, line {number}: {error}.") from error


def price_variant(folder: Path, variant: Variant, architecture: str) -> Row:
    """The model's answer for one measured variant."""
    row = Row(
        folder=folder.name, family=variant.family, name=variant.name, us=variant.us or 0.0, ncu=variant.ncu
    )
    stages = Stages()
    try:
        found = _pricer(architecture).price(measured_kernel(folder, variant), stages)
    except (VariantError, TunableError, TaskError, RefusedError, DeviceError, DisassemblerError) as error:
        return msgspec.structs.replace(row, error=str(error))
    launches = sum(launch.price.seconds for launch in found.launches)
    return msgspec.structs.replace(
        row,
        modelled_us=float(found.seconds) * 1e6,
        launches_us=[
            {str(term): float(seconds) * 1e6 for term, seconds in launch.price.terms.items()}
            for launch in found.launches
        ],
        gaps_us=float(found.seconds - launches) * 1e6,
        counters={name: float(value) for name, value in found.counters.items()},
        diagnosis=found.diagnosis.summary,
        stage_seconds=stages.seconds,
    )


class _Pricer:
    """Prices kernels of one task after another, and draws a task's inputs once."""

    def __init__(self, architecture: str) -> None:
        self._gpu = load_architecture(architecture)
        self._task: Task | None = None
        self._pricing: Pricing | None = None

    def price(self, measured: MeasuredKernel, stages: Stages) -> Modelled:
        """Raises RefusedError, DeviceError and DisassemblerError."""
        prepared = self._pricing_of(measured.task).prepare(measured.kernel, stages)
        if not measured.sized:
            measured = measured.with_sizes(footprints(prepared))
        pricing = self._pricing_of(measured.task)
        with pricing.disassembling(prepared) as disassemblies:
            (found,) = pricing.price(prepared, disassemblies, stages)
        return found

    def _pricing_of(self, task: Task) -> Pricing:
        if self._pricing is None or task is not self._task:
            self._task, self._pricing = task, Pricing(task, self._gpu, SEED)
        return self._pricing


_pricer = cache(_Pricer)
"""One in each process."""
