"""Problems of flashinfer-bench and SOL-ExecBench: a definition in JSON with its workloads, a solution in JSON."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mctskernel.core.kernel import Language
from mctskernel.core.task import Precision, TaskError
from mctskernel.problems.definitions.definition import FLASHINFER_BENCH, SOL_EXECBENCH
from mctskernel.problems.definitions.folder import find_definition, is_definition
from mctskernel.problems.definitions.solution import solution
from mctskernel.problems.problem import Benchmark, Problem


def read(path: Path, language: Language | None, precision: Precision = Precision.LOCKED) -> Problem:
    """Read a problem as a task. Runs its reference at small sizes. Raises TaskError."""
    from mctskernel.problems.definitions.task import task_of  # noqa: PLC0415 - imports PyTorch, an extra

    found = find_definition(path)
    try:
        return task_of(found, language, precision)
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


DEFINITIONS = tuple(
    Benchmark(name, partial(is_definition, benchmark=name), read, solution)
    for name in (SOL_EXECBENCH, FLASHINFER_BENCH)
)
"""Both benchmarks."""
