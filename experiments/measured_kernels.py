"""From a line of a folder of variants to something that the model can price. docs/model_benchmark.md has the form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, Tensor, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.experiments.tunables import with_tunables
from mctskernel.experiments.variants import Buffer, Variant, VariantError


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel, and a task with the one shape at which it was measured."""

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
    buffers = _own_buffers(variant, names) or _documented_buffers(folder).get(variant.family, {})
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
        summary="",
        folder=Path(),
        inputs=tuple(tensors[:-1]),
        outputs=tuple(tensors[-1:]),
        scalars={},
        search_shapes=(variant.shape,),
        verify_shapes=(),
        held_out_shapes=(),
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


@cache
def _documented_buffers(folder: Path) -> Mapping[str, Mapping[str, Buffer]]:
    """Float buffers by family from the table in README.md that begins `family | what | floats in A, B, C`."""
    readme = folder / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.count("|") == 4]
    heading = next((row[2] for row in rows if row[2].startswith("floats in ")), "")
    names = heading.removeprefix("floats in ").split(", ")
    found: dict[str, dict[str, Buffer]] = {}
    for family, _, text in rows:
        counts = text.split(", ")
        if len(counts) == len(names) and all(count.isdigit() for count in counts):
            found[family] = {name: Buffer(int(count)) for name, count in zip(names, counts, strict=True)}
    return found
