"""A kernel as a `solution.json`, as flashinfer-bench and SOL-ExecBench take it, and such files read.

The program in it is one file with the kernel's host code (`mctskernel.host_code`) and `run`: in Python it takes the
definition's inputs in their order and returns the outputs, in C++ it fills outputs that it is given behind them. The
schema: docs/solution.md of either repository.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Shape, Task, TaskError
from mctskernel.host_code import HostCodeError, host_module
from mctskernel.host_code.cpp_program import COMPILER_FLAGS, cpp_program
from mctskernel.problems.definitions.folder import SOL_EXECBENCH
from mctskernel.problems.definitions.reference import DefinitionProblem, read_definition_problem
from mctskernel.problems.definitions.schema import Name, Text

SOLUTION_FILE = "solution.json"
AUTHOR = "mctskernel"
ENTRY = "run"
PYTHON_FILE = "main.py"
CUDA_FILE = "kernel.cu"
KERNEL_FUNCTION = "run_kernel"


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a solution; its path begins at a folder of the harness's."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    content: str


class CompileOptions(msgspec.Struct, frozen=True):
    """Flags of nvcc. SOL-ExecBench's own would be fast math."""

    cuda_cflags: tuple[str, ...] = ()


class BuildSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a solution is built and called. flashinfer-bench has one `language`, SOL-ExecBench `languages`.

    Fields that aren't known are passed over: how a compiler is called has grown.
    """

    entry_point: str
    target_hardware: tuple[str, ...]
    language: str = ""
    languages: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    destination_passing_style: bool = True
    binding: Text = None
    compile_options: CompileOptions | None = None


class Solution(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program for a definition. Fields that aren't known are passed over."""

    name: Name
    definition: Name
    author: Name
    spec: BuildSpec
    sources: tuple[Source, ...]
    description: Text = None


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """`solution.json` of a kernel. Raises TaskError for one that has none in this form."""
    problem = read_definition_problem(task.folder)
    try:
        spec, source = _built(_unnumbered(task), problem, kernel)
    except HostCodeError as error:
        raise TaskError(str(error)) from error
    found = Solution(
        name=solution_name(problem, kernel),
        definition=problem.name,
        author=AUTHOR,
        description=f"Found by a Monte Carlo tree search over edits of a kernel ({kernel.language}).",
        spec=spec,
        sources=(source,),
    )
    return {SOLUTION_FILE: msgspec.json.format(_text(found), indent=2) + "\n"}


def solution_name(problem: DefinitionProblem, kernel: Kernel) -> str:
    """What the solution of a kernel is called."""
    return f"{problem.name}_{AUTHOR}_{kernel.identity[:12]}"


def read_solution(data: bytes) -> Solution:
    """A solution's file. Raises TaskError for one whose paths lead out of a folder, or that lacks its own entry."""
    try:
        found = msgspec.json.decode(data, type=Solution)
    except UNDECODABLE as error:
        raise TaskError(f"This is no solution: {excerpt(error)}.") from error
    paths = [source.path for source in found.sources]
    for path in map(PurePosixPath, paths):
        if path.is_absolute() or ".." in path.parts:
            raise TaskError(
                f"The solution {found.name} has the path {str(path)!r}, which leads out of its folder."
            )
    file, _, function = found.spec.entry_point.partition("::")
    if file not in paths or not function.isidentifier() or len(set(paths)) < len(paths):
        raise TaskError(
            f"The solution {found.name} has no file for its entry point {found.spec.entry_point!r}."
        )
    return found


def _built(task: Task, problem: DefinitionProblem, kernel: Kernel) -> tuple[BuildSpec, Source]:
    """How a kernel's program is built, and its text. Raises HostCodeError."""
    is_triton = kernel.language is Language.TRITON
    if problem.benchmark != SOL_EXECBENCH:
        # In CUDA C++ a Python program as well, which builds its kernel by PyTorch: `cuda` is for host code in C++.
        spec = BuildSpec(
            f"{PYTHON_FILE}::{ENTRY}",
            ("NVIDIA_GPU",),
            language="triton" if is_triton else "python",
            dependencies=("torch", "triton") if is_triton else ("torch",),
            destination_passing_style=False,
        )
        return spec, Source(PYTHON_FILE, _python_program(task, problem, kernel))
    if is_triton:
        spec = BuildSpec(
            f"{PYTHON_FILE}::{ENTRY}",
            ("LOCAL",),
            languages=("triton",),
            dependencies=("torch", "triton"),
            destination_passing_style=False,
        )
        return spec, Source(PYTHON_FILE, _python_program(task, problem, kernel))
    # Its harness builds C++ before it runs Python, in which it forbids to build any.
    spec = BuildSpec(
        f"{CUDA_FILE}::{ENTRY}",
        ("LOCAL",),
        languages=("cuda_cpp",),
        binding="torch",
        compile_options=CompileOptions(cuda_cflags=COMPILER_FLAGS),
    )
    inputs, outputs = problem.definition.inputs, problem.definition.outputs
    flat = [name for name, spec_ in (*inputs.items(), *outputs.items()) if spec_.shape == ()]
    return spec, Source(CUDA_FILE, cpp_program(task, kernel, list(inputs), function=ENTRY, flat=flat))


def _python_program(task: Task, problem: DefinitionProblem, kernel: Kernel) -> str:
    reserved = {ENTRY, *problem.definition.inputs}
    module = host_module(task, kernel, function=KERNEL_FUNCTION, reserved=reserved)
    program = f"{module.rstrip()}\n\n\n{_run(problem)}"
    ast.parse(program)  # what was written here is Python, whatever the names in it
    return program


def _run(problem: DefinitionProblem) -> str:
    """`run` of the definition, which calls the kernel's host code."""
    inputs, outputs = problem.definition.inputs, problem.definition.outputs
    given = [
        name if spec.shape else f"{name}.reshape(1)"
        for name, spec in inputs.items()
        if spec.shape is not None
    ]
    given += [f"{name}={name}" for name, spec in inputs.items() if spec.shape is None]
    call = f"{KERNEL_FUNCTION}({', '.join(given)})"
    without_extents = [place for place, spec in enumerate(outputs.values()) if not spec.shape]
    lines = [f"def {ENTRY}({', '.join(inputs)}):"]
    if not without_extents:
        lines.append(f"    return {call}")
    elif len(outputs) == 1:
        lines.append(f"    return {call}.reshape(())")
    else:
        parts = [
            f"outputs[{place}]" + (".reshape(())" if place in without_extents else "")
            for place in range(len(outputs))
        ]
        lines += [f"    outputs = {call}", f"    return ({', '.join(parts)},)"]
    return "\n".join(lines) + "\n"


def _unnumbered(task: Task) -> Task:
    """The task without the dimension that kernels don't see."""

    def kept(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        return tuple({name: size for name, size in each.items() if name != task.inputs_by} for each in shapes)

    return replace(
        task,
        search_shapes=kept(task.search_shapes),
        verify_shapes=kept(task.verify_shapes),
        held_out_shapes=kept(task.held_out_shapes),
        held_out_timed_shapes=kept(task.held_out_timed_shapes),
        tolerances_at=(),
        inputs_by="",
    )


def _text(found: Solution) -> str:
    return msgspec.json.encode(found).decode()
