"""From a line of a folder of variants to something that the model can price. docs/model_benchmark.md has the form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import ResolvedLaunch
from mctskernel.core.task import Task, Tensor, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.profiling.emulable import Emulable
from mctskernel.profiling.emulator import Geometry, GlobalMemory, Module, count
from mctskernel.tunables import with_tunables
from mctskernel.variants import Buffer, Variant, VariantError

UNKNOWN_ELEMENTS = 1 << 30
"""What a buffer of unknown size has while its true extent is looked for; no memory is taken for it."""


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel, and a task with the one shape at which it was measured.

    `sized` is False where nothing says how large the buffers are.
    """

    kernel: Kernel
    task: Task
    sized: bool = True

    def with_sizes(self, sizes: Mapping[str, int]) -> MeasuredKernel:
        """The same with buffers of so many bytes."""

        def sized(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(
                replace(each, shape=(-(-sizes[each.name] // DTYPE_BYTES[each.dtype]),)) for each in tensors
            )

        task = replace(self.task, inputs=sized(self.task.inputs), outputs=sized(self.task.outputs))
        return MeasuredKernel(self.kernel, task)


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
    known = {name: buffers.get(name, Buffer(UNKNOWN_ELEMENTS)) for name in names}
    kernel = Kernel(_with_plan(source, variant) if variant.grid else source, variant.language)
    return MeasuredKernel(kernel, _plain_task(variant, kernel, known), all(name in buffers for name in names))


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


def footprints(prepared: Emulable) -> dict[str, int]:
    """Bytes of each buffer up to the last one that the blocks at the corners of a grid touch.

    For kernels whose blocks cover their buffers from the first block to the last, as almost all do.
    """
    candidate = prepared.candidate
    (plan,) = candidate.plans
    sizes: dict[str, int] = {}
    for launch in plan.launches:
        module = prepared.modules[candidate.index_of(launch)]
        for name, size in _touched(launch, candidate.entry_of(launch), module).items():
            sizes[name] = max(sizes.get(name, 0), size)
    return sizes


def _touched(launch: ResolvedLaunch, entry: str, module: Module) -> dict[str, int]:
    memory, unlimited = GlobalMemory(), 4 * UNKNOWN_ELEMENTS
    bases = {
        name: memory.add(name, unlimited, virtual=True)
        for name in dict.fromkeys(each for each in launch.arguments if isinstance(each, str))
    }
    arguments = [bases[each] if isinstance(each, str) else each for each in launch.arguments]
    geometry = Geometry(launch.grid, launch.block, launch.shared_bytes)
    counts = count(module, entry, geometry, arguments, memory, blocks=_corners(launch.grid))
    touched = [trace.sectors << 5 for trace in counts.traces if len(trace.sectors)]
    sizes = dict.fromkeys(bases, 4)
    for name, base in bases.items():
        for addresses in touched:
            inside = addresses[(addresses >= base) & (addresses < base + unlimited)]
            if len(inside):
                sizes[name] = max(sizes[name], int(inside.max()) + 32 - base)
    return sizes


def _corners(grid: tuple[int, int, int]) -> tuple[int, ...]:
    x, y, z = (extent - 1 for extent in grid)
    corners = {(a * x, b * y, c * z) for a in (0, 1) for b in (0, 1) for c in (0, 1)}
    return tuple(sorted(a + grid[0] * (b + grid[1] * c) for a, b, c in corners))


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
    """Float buffers by family from the table in README.md that has a column `floats in A, B, C`; empty without."""
    readme = folder / "README.md"
    found: dict[str, dict[str, Buffer]] = {}
    if not readme.is_file():
        return found
    names: list[str] = []
    column = 0
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        heading = [(place, match[1]) for place, cell in enumerate(cells) if (match := _HEADING.match(cell))]
        if heading:
            column, text = heading[0]
            names = [name.strip() for name in text.split(",")]
        elif names and len(cells) > column:
            extents = [_elements(part) for part in re.split(r",\s+|;", cells[column])]
            if len(extents) == len(names) and all(extents):
                found[cells[0]] = {name: Buffer(extent) for name, extent in zip(names, extents, strict=True)}
    return found


_HEADING = re.compile(r"(?:floats|elements) in (.+)$", re.IGNORECASE)


def _elements(text: str) -> int:
    """A count as people write it: `4194304`, `2048 x 2048`, `64Mi`; 0 for what is none."""
    total = 1
    for part in re.split(r"\s*[x*]\s*", text.strip()):
        match = re.fullmatch(r"(\d+)\s*(|Ki|Mi|Gi)", part)
        if not match:
            return 0
        total *= int(match[1]) << (10 * ("", "Ki", "Mi", "Gi").index(match[2]))
    return total if math.isfinite(total) else 0
