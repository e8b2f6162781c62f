"""Folders of kernels whose times are known: what a model of a GPU is tested on. docs/model_benchmark.md has the form.

variants.jsonl   one variant a line
README.md        what was recorded, where and how
sources/         the text of each kernel
task/            the task that the kernels were judged by
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.task import Shape, shape_label

LINES = "variants.jsonl"


class VariantError(RuntimeError):
    """A folder of variants that can't be read; the message names the file and the line."""


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel and what a GPU needed for one run of it, in microseconds: median, least and most.

    `source` is relative to the folder. Without a `task`, `macros` are put before the source as `#define` lines, and
    `kernel` runs with this `grid`, `block`, `shared` bytes of dynamic shared memory, `arguments` (names of buffers,
    numbers) and `buffers`. With one (a task folder, relative too), the source is complete, the launch plan stands in
    it, and `shape` is the task's; `tunables` then say what the source was made with. `us` is None unless the outcome
    is ok. `ncu` holds Nsight Compute's counters in seconds, bytes and counts.
    """

    name: str
    family: str
    source: str
    us: float | None = None
    us_min: float | None = None
    us_max: float | None = None
    registers: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    ncu: dict[str, float] = {}
    outcome: Outcome = Outcome.OK
    message: str = ""
    language: Language = Language.CUDA
    task: str = ""
    shape: dict[str, int] = {}
    tunables: dict[str, int] = {}
    kernel: str = "k"
    macros: dict[str, int | float | str] = {}
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    arguments: tuple[str | int | float, ...] = ("A", "B", "C")
    buffers: dict[str, Buffer] = {}


class Buffer(msgspec.Struct, frozen=True):
    """A tensor of a variant that has no task."""

    elements: int
    dtype: str = "float32"


def read_variants(folder: Path) -> Iterator[Variant]:
    """The variants of a folder, failures included, in the order of the file. Raises VariantError."""
    path = folder / LINES
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise VariantError(f"{path} can't be read: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=Variant)
        except msgspec.DecodeError as error:
            raise VariantError(f"{path}, line {number}: {error}.") from error


def measured(evaluation: Evaluation, shape: Shape) -> dict[str, Any]:
    """What an evaluation says of one shape, as fields of a variant.

    Counters are taken at the first search shape alone, and go with it.
    """
    known: dict[str, Any] = {"outcome": evaluation.outcome, "message": evaluation.message}
    if resources := evaluation.resources:
        known["registers"] = max(each.registers for each in resources)
        known["shared_bytes"] = max(each.shared_bytes for each in resources)
        known["local_bytes"] = max(each.stack_bytes for each in resources)
    for index, timing in enumerate(evaluation.timings):
        if timing.shape == shape_label(shape):
            samples = timing.samples or (timing.low, timing.high)
            known |= _microseconds(us=timing.seconds, us_min=min(samples), us_max=max(samples))
            known["ncu"] = dict(evaluation.counters) if index == 0 else {}
    return known


def _microseconds(**seconds: float) -> Mapping[str, float]:
    return {name: round(value * 1e6, 4) for name, value in seconds.items()}
