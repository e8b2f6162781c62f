"""Folders of kernels whose times are known: what a model of a GPU is tested on. docs/model_benchmark.md has the form.

variants.jsonl   one variant a line
sources/         the text of each kernel
task/            the task of the kernels
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import BadRunError
from mctskernel.experiments.tunables import with_tunables

LINES = "variants.jsonl"


class VariantError(BadRunError, RuntimeError):
    """A folder of variants that can't be read; the message names the file and the line."""


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel and what a GPU needed for one run of it, in microseconds, at the median.

    `source` and `task`, a task's folder, are relative to the folder. The launch plan stands in the source, `tunables`
    are set in it, and `shape` is the task's. `us` is None for a failure. `ncu` holds Nsight Compute's counters in
    seconds, bytes and counts.
    """

    name: str
    family: str
    source: str
    us: float | None = None
    ncu: dict[str, float] = {}
    outcome: Outcome = Outcome.OK
    language: Language = Language.CUDA
    task: str
    shape: dict[str, int]
    tunables: dict[str, int] = {}


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
        except UNDECODABLE as error:
            raise VariantError(f"{path}, line {number}: {excerpt(error)}.") from error


@dataclass(frozen=True)
class MeasuredKernel:
    kernel: Kernel
    task: Task


def measured_kernel(folder: Path, variant: Variant) -> MeasuredKernel:
    """The kernel of a line. Raises VariantError, and TaskError for a task folder that can't be read."""
    try:
        source = (folder / variant.source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise VariantError(f"{folder / variant.source} can't be read: {error}.") from error
    task = _task_at(folder / variant.task, variant.language, tuple(variant.shape.items()))
    return MeasuredKernel(with_tunables(Kernel(source, variant.language), variant.tunables), task)


@lru_cache(maxsize=1)
def _task_at(folder: Path, language: Language, shape: tuple[tuple[str, int], ...]) -> Task:
    """A task without its other shapes; the same object for the same question, so that inputs are drawn once."""
    task = load_task(folder, language)
    return replace(
        task, search_shapes=(dict(shape),), verify_shapes=(), held_out_shapes=(), held_out_timed_shapes=()
    )
