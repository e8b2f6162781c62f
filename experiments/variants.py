"""Folders of kernels whose times are known: what a model of a GPU is tested on. docs/model_benchmark.md has the form.

variants.jsonl   one variant a line
sources/         the text of each kernel
task/            the task of the kernels
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import Shape, Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.edits import syntax
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.triton import module as triton
from mctskernel.experiments.results import read_lines

OPTIONS = ("num_warps", "num_stages")  # what a variant in Triton sets of each launch beside constants


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel and what a GPU needed for one run of it, in microseconds, at the median.

    `source` and `task`, a task's folder, are relative to the folder. The launch plan stands in the source, `tunables`
    are set in it, and `shape` is the task's. `us` is None for a failure, which may have no shape. `ncu` holds Nsight
    Compute's counters in seconds, bytes and counts.
    """

    name: str
    family: str
    source: str
    us: float | None = None
    ncu: dict[str, float] = {}
    outcome: Outcome = Outcome.OK
    language: Language = Language.CUDA
    task: str
    shape: dict[str, int] = {}
    tunables: dict[str, int] = {}


def read_variants(folder: Path) -> list[Variant]:
    """The variants of a folder, failures included, in the order of the file. Raises RunError."""
    return read_lines(folder / "variants.jsonl", msgspec.json.Decoder(Variant))


def kernel_of(folder: Path, variant: Variant) -> Kernel:
    """The kernel of a line. Raises RunError."""
    try:
        source = (folder / variant.source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{folder / variant.source} can't be read: {error}.") from error
    return with_tunables(Kernel(source, variant.language), variant.tunables)


def task_at(folder: Path, language: Language, shape: Shape) -> Task:
    """The task of a folder at one shape alone. Raises TaskError."""
    return replace(
        load_task(folder, language),
        search_shapes=(shape,),
        verify_shapes=(),
        held_out_shapes=(),
        held_out_timed_shapes=(),
    )


def with_tunables(kernel: Kernel, values: Mapping[str, int]) -> Kernel:
    """The kernel with other macros, in Triton other constants and OPTIONS. Raises RunError for an unknown name."""
    if kernel.language is Language.CUDA:
        source = syntax.parse(kernel.source)
        return replace(kernel, source=syntax.replace(source, _changes(source.integer_macros, values)))
    module = triton.parse(kernel.source)
    if module is None:
        raise RunError("The source is no module of Triton kernels.")
    changes = _changes(module.constants, values, OPTIONS)
    result = replace(kernel, source=triton.replaced(module, changes))
    options: dict[str, Any] = {name: values[name] for name in OPTIONS if name in values}
    if not options:
        return result
    plan = plan_of(result)
    launches = (
        replace(launch, triton=replace(launch.triton, **options)) if launch.triton else launch
        for launch in plan.launches
    )
    return with_plan(result, replace(plan, launches=tuple(launches)))


def _changes(
    constants: Iterable[syntax.Constant], values: Mapping[str, int], others: Sequence[str] = ()
) -> list[syntax.Replacement]:
    """What sets constants to these values, but for `others`. Raises RunError for an unknown name."""
    known = {each.name: each for each in constants}
    if unknown := next((name for name in values if name not in (*known, *others)), None):
        names = ", ".join((*known, *others)) or "none"
        raise RunError(f"There is no tunable '{unknown}' (known: {names}).")
    return [
        syntax.Replacement(known[name].start, known[name].end, str(value))
        for name, value in values.items()
        if name in known
    ]
