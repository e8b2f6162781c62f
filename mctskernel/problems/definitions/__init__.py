"""Problems of flashinfer-bench and SOL-ExecBench: a definition in JSON with its workloads, a solution in JSON.

A solution's program is one file with the kernel's host code and `run`: in Python it takes the definition's inputs in
order and returns the outputs, in C++ it fills the outputs, which follow the inputs. The schema: docs/solution.md of
either repository.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Precision, Task, TaskError, short_caveats
from mctskernel.problems.definitions.definition import (
    FLASHINFER_BENCH,
    SOL_EXECBENCH,
    find_definition,
    is_definition,
)
from mctskernel.problems.definitions.reference import DefinitionProblem, read_definition_problem
from mctskernel.problems.host_code import HostCodeError, host_module
from mctskernel.problems.host_code.cpp_program import cpp_program
from mctskernel.problems.host_code.cuda import COMPILER_FLAGS
from mctskernel.problems.problem import Benchmark, Problem

SOLUTION_FILE = "solution.json"
AUTHOR = "mctskernel"
ENTRY = "run"
PYTHON_FILE = "main.py"
CUDA_FILE = "kernel.cu"
KERNEL_FUNCTION = "run_kernel"


def read(path: Path, language: Language | None, precision: Precision = Precision.LOCKED) -> Problem:
    """Read a problem as a task. Runs its reference at small sizes. Raises TaskError."""
    from mctskernel.problems.definitions.task import task_of  # noqa: PLC0415 - imports PyTorch, an extra

    found = find_definition(path)
    try:
        return task_of(found, language, precision)
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """`solution.json` of a kernel. Raises TaskError for a kernel that can't be a solution."""
    problem = read_definition_problem(task.folder)
    try:
        spec, path, content = _built(task, problem, kernel)
    except HostCodeError as error:
        raise TaskError(str(error)) from error
    found = {
        "name": f"{problem.name}_{AUTHOR}_{kernel.identity[:12]}",
        "definition": problem.name,
        "author": AUTHOR,
        "spec": spec,
        "sources": [{"path": path, "content": content}],
        "description": f"Found by a Monte Carlo tree search over edits of a kernel ({kernel.language})"
        f"{short_caveats(task.caveats)}.",
    }
    return {SOLUTION_FILE: json.dumps(found, indent=2) + "\n"}


def _built(task: Task, problem: DefinitionProblem, kernel: Kernel) -> tuple[dict[str, object], str, str]:
    """The build instructions, and the path and text of a kernel's program. Raises HostCodeError."""
    is_triton, is_sol = kernel.language is Language.TRITON, problem.benchmark == SOL_EXECBENCH
    hardware = "LOCAL" if is_sol else "NVIDIA_GPU"
    if is_triton or not is_sol:
        # For flashinfer-bench a CUDA kernel is in a Python program, which builds it with PyTorch: its `cuda` is for
        # host code in C++.
        language = "triton" if is_triton else "python"
        spec = {
            "entry_point": f"{PYTHON_FILE}::{ENTRY}",
            "target_hardware": [hardware],
            **({"languages": [language]} if is_sol else {"language": language}),
            "dependencies": ["torch", "triton"] if is_triton else ["torch"],
            "destination_passing_style": False,
        }
        reserved = {ENTRY, *problem.definition.inputs}
        module = host_module(task, kernel, function=KERNEL_FUNCTION, reserved=reserved)
        program = f"{module.rstrip()}\n\n\n{_run(problem)}"
        ast.parse(program)  # names come from the definition
        return spec, PYTHON_FILE, program
    # The harness of SOL-ExecBench builds C++ itself, and forbids building it from Python. Its default is fast math.
    spec = {
        "entry_point": f"{CUDA_FILE}::{ENTRY}",
        "target_hardware": [hardware],
        "languages": ["cuda_cpp"],
        "binding": "torch",
        "compile_options": {"cuda_cflags": list(COMPILER_FLAGS)},
    }
    return spec, CUDA_FILE, cpp_program(task, kernel, list(problem.definition.inputs))


def _run(problem: DefinitionProblem) -> str:
    inputs, outputs = problem.definition.inputs, problem.definition.outputs
    given = [
        name if spec.shape else f"{name}.reshape(1)"
        for name, spec in inputs.items()
        if spec.shape is not None
    ]
    given += [f"{name}={name}" for name, spec in inputs.items() if spec.shape is None]
    call = f"{KERNEL_FUNCTION}({', '.join(given)})"
    ends = ["" if spec.shape else ".reshape(())" for spec in outputs.values()]
    head = f"def {ENTRY}({', '.join(inputs)}):\n"
    if len(outputs) == 1 or not any(ends):
        return f"{head}    return {call}{ends[0]}\n"
    parts = ", ".join(f"outputs[{place}]{end}" for place, end in enumerate(ends))
    return f"{head}    outputs = {call}\n    return ({parts},)\n"


DEFINITIONS = tuple(
    Benchmark(name, partial(is_definition, benchmark=name), read, solution)
    for name in (SOL_EXECBENCH, FLASHINFER_BENCH)
)
