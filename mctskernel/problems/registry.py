"""The benchmarks whose problems can be searched, and whose solutions can be written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, TaskError
from mctskernel.problems.definitions.benchmark import FLASHINFER_BENCH_PROBLEMS, SOL_EXECBENCH_PROBLEMS
from mctskernel.problems.gpu_mode.benchmark import GPU_MODE
from mctskernel.problems.kernelbench.benchmark import KERNELBENCH
from mctskernel.problems.problem import PROBLEM_FILE, Benchmark, Problem, read_record

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (KERNELBENCH, SOL_EXECBENCH_PROBLEMS, FLASHINFER_BENCH_PROBLEMS, GPU_MODE)
}
"""By name."""


def find_benchmark(path: Path) -> Benchmark | None:
    """The benchmark that has problems as this path holds one; nothing of the path's is run."""
    return next((each for each in BENCHMARKS.values() if each.recognises(path)), None)


def read_problem(path: Path, language: Language) -> Problem:
    """A problem as a task. Runs the problem's Python. Raises TaskError."""
    benchmark = find_benchmark(path)
    if benchmark is None:
        raise TaskError(f"{path} is no problem of {', '.join(BENCHMARKS)}.")
    return benchmark.read(path, language)


def benchmark_of(task: Task) -> Benchmark | None:
    """The benchmark that a task's problem is of; None for a task that was made of no problem. Raises TaskError."""
    file = task.folder / PROBLEM_FILE
    if not file.is_file():
        return None
    name = read_record(task.folder, _Record).benchmark
    if name not in BENCHMARKS:
        raise TaskError(f"{file} is of the benchmark {name!r}; known are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def solution_of(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """The texts of a solution's files by name, in the form of the benchmark that the task's problem is of.

    Raises TaskError for a task that was made of no problem, and for a kernel that has no solution in that form.
    """
    benchmark = benchmark_of(task)
    if benchmark is None:
        raise TaskError(
            f"{task.name} was made of no benchmark's problem, so there is no form to write a solution in; "
            "`mctskernel best RUN` prints the kernel with its launch plan."
        )
    return benchmark.solution(task, kernel)


class _Record(msgspec.Struct, frozen=True):
    """What all benchmarks' records have."""

    benchmark: str
