"""What the model says of kernels whose times are known: one row each, kept as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.task import TaskError
from mctskernel.experiments.measured_kernels import MeasuredKernel, footprints, measured_kernel
from mctskernel.profiling.architecture import Architecture, load_architecture
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.emulable import Emulable, emulable
from mctskernel.profiling.machine_code.nvdisasm import disassemble
from mctskernel.profiling.model.modelled import Modelled, Unmodelled, model_kernel
from mctskernel.profiling.stages import Stages
from mctskernel.variants import Variant, VariantError


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
        found = _priced(measured_kernel(folder, variant), load_architecture(architecture), stages)
    except (VariantError, TaskError, RefusedError, DeviceError) as error:
        return msgspec.structs.replace(row, error=str(error))
    if isinstance(found, Unmodelled):
        return msgspec.structs.replace(row, error=found.message)
    stages.add(found.stage_seconds)
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


def _priced(measured: MeasuredKernel, gpu: Architecture, stages: Stages) -> Modelled | Unmodelled:
    """Raises RefusedError and DeviceError."""
    prepared = emulable(
        measured.task, prepare(measured.task, measured.kernel, gpu.architecture, stages), stages
    )
    candidate = prepared.candidate
    disassembled = cache(lambda index: disassemble(candidate.builds[index].cubin))
    return model_kernel(
        candidate,
        lambda launch: prepared.modules[candidate.index_of(launch)],
        lambda launch: disassembled(candidate.index_of(launch)),
        candidate.at(measured.task, measured.shape),
        gpu,
        buffers=_sizes(measured, prepared),
        contents=measured.contents,
    )


def _sizes(measured: MeasuredKernel, prepared: Emulable) -> dict[str, int]:
    if measured.sized:
        return measured.sizes
    candidate = prepared.candidate
    (launch,) = candidate.at(measured.task, measured.shape).launches
    return footprints(launch, candidate.entry_of(launch), prepared.modules[candidate.index_of(launch)])
