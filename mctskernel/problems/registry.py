"""The benchmarks: recognise a problem, read it as a task folder, and write solutions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Precision, Task, TaskError
from mctskernel.core.task_file import write_new_task
from mctskernel.problems.definitions import DEFINITIONS
from mctskernel.problems.gpu_mode import GPU_MODE
from mctskernel.problems.kernelbench.benchmark import KERNELBENCH
from mctskernel.problems.problem import PROBLEM_FILE, Benchmark, Problem, read_record
from mctskernel.problems.torch_reference import few_threads
from mctskernel.profiling.processes.forked import Caller
from mctskernel.tasks.builtin import builtin_tasks

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (KERNELBENCH, *DEFINITIONS, GPU_MODE)
}


def is_problem(name_or_path: str | Path) -> bool:
    """Whether this is a path of a benchmark's problem, and no built-in task's name or task folder."""
    path = Path(name_or_path)
    if str(name_or_path) in builtin_tasks() or path.name == "task.toml" or (path / "task.toml").is_file():
        return False
    return path.exists() and find_benchmark(path) is not None


def find_benchmark(path: Path) -> Benchmark | None:
    """The benchmark of the problem at a path; runs nothing."""
    return next((each for each in BENCHMARKS.values() if each.recognises(path)), None)


def read_problem(
    path: Path, language: Language | None = None, precision: Precision = Precision.LOCKED
) -> Problem:
    """Read a problem as a task, with its starting kernels in one language or all. Runs its Python. Raises TaskError."""
    benchmark = find_benchmark(path)
    if benchmark is None:
        raise TaskError(f"{path} is no problem of {', '.join(BENCHMARKS)}.")
    with warnings.catch_warnings(), ExitStack() as stack:
        # It is called at many shapes, and PyTorch would repeat itself at each.
        warnings.simplefilter("ignore")
        with suppress(ImportError):  # PyTorch is an extra
            stack.enter_context(few_threads())  # tensors are small
        try:
            return benchmark.read(path, language, precision)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise TaskError(f"{path} needs PyTorch, which isn't installed: mctskernel[gpu].") from error


def read_beside(_: Caller, path: Path, language: Language, precision: Precision) -> Problem:
    """Read a problem in a process of its own (`ForkedCall`)."""
    return read_problem(path, language, precision)


def write_problem(problem: Problem, folder: Path) -> None:
    """Write a problem's files into a folder, created if needed. Raises TaskError before overwriting one."""
    write_new_task(folder, problem.files)


def benchmark_of(task: Task) -> Benchmark | None:
    """The benchmark of a task's problem; None for a task that wasn't made from one. Raises TaskError."""
    file = task.folder / PROBLEM_FILE
    if not file.is_file():
        return None
    name = read_record(task.folder, _Record).benchmark
    if name not in BENCHMARKS:
        raise TaskError(f"{file} names the benchmark {name!r}; known are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def solution_of(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """A solution's files by name, in the benchmark's format. Raises TaskError where that is impossible."""
    benchmark = benchmark_of(task)
    if benchmark is None:
        raise TaskError(
            f"{task.name} wasn't made from a benchmark's problem, so there is no solution format for it; "
            "`mctskernel best RUN` prints the kernel with its launch plan."
        )
    return benchmark.solution(task, kernel)


class _Record(msgspec.Struct, frozen=True):
    """The part that all benchmarks' records share."""

    benchmark: str
