"""Folders of kernels whose times are known: what a model of a GPU is tested on. docs/model_benchmark.md has the form.

variants.jsonl   one variant a line
sources/         the text of each kernel
task/            the task of the kernels
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, Tensor, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import BadRunError
from mctskernel.experiments.tunables import with_tunables

LINES = "variants.jsonl"


class VariantError(BadRunError, RuntimeError):
    """A folder of variants that can't be read; the message names the file and the line."""


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel and what a GPU needed for one run of it, in microseconds, at the median.

    `source` is relative to the folder. Without a `task`, `macros` are put before the source as `#define` lines, and
    `kernel` runs with this `grid`, `block`, `shared` bytes of dynamic shared memory, `arguments` (names of buffers,
    numbers) and `buffers` (by name or in order; a bare number counts floats). With one (a task folder, relative too),
    the launch plan stands in the source, `tunables` are set in it, and `shape` is the task's. `us` is None for a
    failure. `ncu` holds Nsight Compute's counters in seconds, bytes and counts, `stage_seconds` the evaluation's.
    """

    name: str
    family: str
    source: str
    us: float | None = None
    ncu: dict[str, float] = {}
    stage_seconds: dict[str, float] = {}
    outcome: Outcome = Outcome.OK
    message: str = ""
    language: Language = Language.CUDA
    task: str = ""
    shape: dict[str, int] = {}
    tunables: dict[str, int] = {}
    kernel: str = "k"
    macros: dict[str, bool | int | float | str] = {}
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    arguments: tuple[str | int | float, ...] = ("A", "B", "C")
    buffers: dict[str, Buffer | int] | tuple[int, ...] = {}


class Buffer(msgspec.Struct, frozen=True):
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
    if variant.task:
        shape = tuple(variant.shape.items())
        kernel = with_tunables(Kernel(source, variant.language), variant.tunables)
        return MeasuredKernel(kernel, _task_at(folder / variant.task, variant.language, shape))
    names = [each for each in variant.arguments if isinstance(each, str)]
    buffers = _own_buffers(variant, names)
    if missing := [name for name in names if name not in buffers]:
        raise VariantError(f"'{variant.name}' does not say in `buffers` how large '{missing[0]}' is.")
    kernel = Kernel(_with_plan(source, variant) if variant.grid else source, variant.language)
    return MeasuredKernel(kernel, _plain_task(variant, kernel, {name: buffers[name] for name in names}))


@lru_cache(maxsize=1)
def _task_at(folder: Path, language: Language, shape: tuple[tuple[str, int], ...]) -> Task:
    """A task without its other shapes; the same object for the same question, so that inputs are drawn once."""
    task = load_task(folder, language)
    return replace(
        task,
        search_shapes=(dict(shape),),
        verify_shapes=(),
        held_out_shapes=(),
        held_out_timed_shapes=(),
    )


def _own_buffers(variant: Variant, names: Sequence[str]) -> dict[str, Buffer]:
    """What the line itself says of its buffers."""
    said = variant.buffers
    by_name = said if isinstance(said, dict) else dict(zip(names, said, strict=False))
    return {name: Buffer(each) if isinstance(each, int) else each for name, each in by_name.items()}


def _plain_task(variant: Variant, kernel: Kernel, buffers: Mapping[str, Buffer]) -> Task:
    """A task that says no more than where a kernel's buffers are: the last of them is the output."""
    tensors = [Tensor(name, each.dtype, (each.elements,), "uniform") for name, each in buffers.items()]
    return Task(
        name=variant.family,
        inputs=tuple(tensors[:-1]),
        outputs=tuple(tensors[-1:]),
        search_shapes=(variant.shape,),
        tolerance=Tolerance(),
        starting_kernel=kernel,
    )


def _with_plan(source: str, variant: Variant) -> str:
    """A CUDA source behind its launch plan and its macros."""
    if variant.language is not Language.CUDA:
        raise VariantError(
            f"'{variant.name}' has a grid of its own; in Triton the plan stands in the source."
        )
    plan = "\n".join(
        (
            "[[launch]]",
            f"kernel = {json.dumps(variant.kernel)}",
            f"grid = {json.dumps(variant.grid)}",
            f"block = {json.dumps(variant.block)}",
            f"shared = {variant.shared}",
            f"args = {json.dumps(variant.arguments)}",
        )
    )
    defines = "".join(
        f"#define {name} {int(value) if isinstance(value, bool) else value}\n"
        for name, value in variant.macros.items()
    )
    return f"/*\n{plan}\n*/\n{defines}{source}"
