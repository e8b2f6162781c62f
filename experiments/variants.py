"""Folders of kernels whose times are known: what a model of a GPU is tested on. docs/model_benchmark.md has the form.

variants.jsonl   one variant a line
sources/         the text of each kernel
task/            the task that the kernels were judged by
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of, resolve
from mctskernel.core.task import Task, shape_label
from mctskernel.core.user_errors import BadRunError
from mctskernel.profiling.reward import is_eligible

LINES = "variants.jsonl"
TASK = "task"


class VariantError(BadRunError, RuntimeError):
    """A folder of variants that can't be read; the message names the file and the line."""


class Variant(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel and what a GPU needed for one run of it, in microseconds: median, least and most.

    `source` is relative to the folder. Without a `task`, `macros` are put before the source as `#define` lines, and
    `kernel` runs with this `grid`, `block`, `shared` bytes of dynamic shared memory, `arguments` (names of buffers,
    numbers) and `buffers` (by name or in order; a bare number counts floats). With one (a task folder, relative too),
    the launch plan stands in the source, `tunables` are set in it, and `shape` is the task's. `us` is None unless the
    outcome is ok. `ncu` holds Nsight Compute's counters in seconds, bytes and counts.
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
    macros: dict[str, bool | int | float | str] = {}
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    arguments: tuple[str | int | float, ...] = ("A", "B", "C")
    buffers: dict[str, Buffer | int] | tuple[int, ...] = {}


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
        except UNDECODABLE as error:
            raise VariantError(f"{path}, line {number}: {excerpt(error)}.") from error


def variants_of(
    task: Task,
    kernel: Kernel,
    evaluation: Evaluation,
    *,
    name: str,
    family: str = "",
    tunables: Mapping[str, int] | None = None,
) -> tuple[Variant, ...]:
    """A judged kernel as lines of a folder whose task is in `task/`: one for each search shape, one for a failure.

    A quarantined time is a failure. Counters are taken at the first search shape alone, and go with it.
    """
    resources = evaluation.resources
    refused = Outcome.REJECTED if evaluation.quarantine else evaluation.outcome
    common = Variant(
        name=name,
        family=family or f"{task.name}_{kernel.language}",
        source=source_path(kernel),
        language=kernel.language,
        task=TASK,
        tunables=dict(tunables or {}),
        outcome=refused,
        message=evaluation.quarantine or evaluation.message,
        registers=max((each.registers for each in resources), default=0),
        shared_bytes=max((each.shared_bytes for each in resources), default=0),
        local_bytes=max((each.stack_bytes for each in resources), default=0),
    )
    if not is_eligible(evaluation):
        return (common,)
    shapes = {shape_label(shape): shape for shape in task.search_shapes}
    lines = []
    for index, timing in enumerate(evaluation.timings):
        samples = timing.samples or (timing.low, timing.high)
        lines.append(
            msgspec.structs.replace(
                common,
                name=name if len(shapes) == 1 else f"{name} at {timing.shape}",
                shape=dict(shapes[timing.shape]),
                us=_microseconds(timing.seconds),
                us_min=_microseconds(min(samples)),
                us_max=_microseconds(max(samples)),
                ncu=dict(evaluation.counters) if index == 0 else {},
            )
        )
    return tuple(lines)


def source_path(kernel: Kernel) -> str:
    """Where the text of a kernel is in a folder."""
    return f"sources/{kernel.identity[:16]}{kernel.language.suffix}"


EXACT = (
    "smsp__inst_executed.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)
"""Counters that every launch of the same machine code on the same data agrees on."""


def code(task: Task, kernel: Kernel, variant: Variant) -> Hashable:
    """Equal for kernels of a task that run the same machine code, as far as launches, counters and registers show it.

    Most edits that change the text alone leave the same code. A kernel without counters equals itself alone.
    """
    if any(name not in variant.ncu for name in EXACT):
        return kernel.identity
    try:
        plan = plan_of(kernel)
        launches = tuple(
            resolve(plan, task.names(each, kernel), task.buffer_names) for each in task.search_shapes
        )
    except LaunchPlanError:
        return kernel.identity
    counted = tuple(variant.ncu[name] for name in EXACT)
    return launches, variant.registers, variant.shared_bytes, variant.local_bytes, counted


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 4)
