"""Make folders of kernels whose times are known, to test a model of a GPU on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task
from mctskernel.profiling.reward import is_eligible
from mctskernel.report.view import View
from mctskernel.run import RunError
from mctskernel.tree.node import Node
from mctskernel.variants import LINES, Variant, measured


def record_run(run: View, out: Path, limit: int) -> int:
    """Make a folder of at most `limit` of a run's measured kernels, spread over their times; says how many.

    Kernels that the counters can't tell apart, and that take the same registers and shared memory, count as one:
    most edits that change the text alone leave the same machine code. Raises RunError.
    """
    task, language = run.folder.load_task(), run.manifest.configuration.language
    nodes = [node for node in run.tree.nodes if node.evaluation is not None and is_eligible(node.evaluation)]
    chosen = spread([*{_code(node): node for node in nodes}.values()], limit)
    if not chosen:
        raise RunError(f"{run.folder.path} has no measured kernel to record.")
    _copy_task(run.folder.task, out / "task")
    variants = [
        variant(task, Kernel(run.source(node.id), language), shape, node.evaluation, name=f"node {node.id}")
        for node in chosen
        for shape in task.search_shapes
        if node.evaluation is not None
    ]
    for node in chosen:
        write_source(out, Kernel(run.source(node.id), language))
    (out / LINES).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in variants))
    return len(chosen)


def spread(nodes: Sequence[Node], limit: int) -> list[Node]:
    """At most `limit` nodes, spread evenly over the logarithm of the time, in order of time."""
    rest = sorted(nodes, key=_log_seconds)
    if len(rest) <= limit:
        return rest
    low, high = _log_seconds(rest[0]), _log_seconds(rest[-1])
    chosen = []
    for index in range(limit):
        wanted = low + (high - low) * index / max(limit - 1, 1)
        nearest = min(rest, key=lambda node: abs(_log_seconds(node) - wanted))  # noqa: B023 - called at once
        rest.remove(nearest)
        chosen.append(nearest)
    return sorted(chosen, key=_log_seconds)


def variant(
    task: Task, kernel: Kernel, shape: Shape, evaluation: Evaluation, *, name: str, **more: object
) -> Variant:
    """One line: a kernel at one search shape. The family is the task in its language."""
    return msgspec.convert(
        {
            "name": name,
            "family": f"{task.name}_{kernel.language}",
            "source": source_path(kernel),
            "language": kernel.language,
            "task": "task",
            "shape": dict(shape),
            **measured(evaluation, shape),
            **more,
        },
        Variant,
    )


def source_path(kernel: Kernel) -> str:
    """Where the text of a kernel is in a folder."""
    return f"sources/{kernel.identity[:16]}{kernel.language.suffix}"


def write_source(folder: Path, kernel: Kernel) -> None:
    """Put the text of a kernel into a folder."""
    path = folder / source_path(kernel)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(kernel.source, encoding="utf-8")


def _log_seconds(node: Node) -> float:
    timings = node.evaluation.timings if node.evaluation is not None else ()
    return math.fsum(math.log(timing.seconds) for timing in timings)


_EXACT = (
    "smsp__inst_executed.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)
"""Counters that are the same in every launch of the same machine code on the same data."""


def _code(node: Node) -> object:
    """Equal for nodes whose machine code is, as far as what was measured of them shows."""
    evaluation = node.evaluation
    if evaluation is None or any(name not in evaluation.counters for name in _EXACT):
        return node.id
    launch = evaluation.counters.get("launch__waves_per_multiprocessor")
    return (evaluation.resources, launch, tuple(evaluation.counters[name] for name in _EXACT))


def _copy_task(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)
