"""flashinfer-bench and SOL-ExecBench: a problem is a definition in JSON, whose workloads are in a file beside it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.problems.definitions.folder import (
    FLASHINFER_BENCH,
    SOL_EXECBENCH,
    find_definition,
    is_definition,
)
from mctskernel.problems.definitions.solution import solution
from mctskernel.problems.definitions.task import read_problem
from mctskernel.problems.problem import Benchmark, Problem


def read(path: Path, language: Language) -> Problem:
    """A problem as a task. Runs its reference at small sizes. Raises TaskError."""
    found = find_definition(path)
    try:
        return read_problem(found, language)
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


FLASHINFER_BENCH_PROBLEMS = Benchmark(
    FLASHINFER_BENCH, partial(is_definition, benchmark=FLASHINFER_BENCH), read, solution
)
SOL_EXECBENCH_PROBLEMS = Benchmark(
    SOL_EXECBENCH, partial(is_definition, benchmark=SOL_EXECBENCH), read, solution
)
