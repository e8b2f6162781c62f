"""A kernel as a `ModelNew` file for KernelBench's harness: the problem's text, the kernel, and what joins them.

`ModelNew` is the problem's Model with another forward, so both have the same parameters, made from the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, TaskError
from mctskernel.host_code import HostCodeError, host_module
from mctskernel.problems.kernelbench.python_text import global_names, renamed, without_docstrings
from mctskernel.problems.kernelbench.reference import SOURCE_FILE, ModuleProblem, read_module_problem

FUNCTION = "run_kernel"

_WANTED = frozenset({"Model", "ModelNew", "get_inputs", "get_init_inputs", FUNCTION})
"""Names that the harness, or this file, calls things by."""

_PROHIBITED = re.compile(r"\b(pass|try|except)\b")
"""Words that KernelBench's static check takes for a way around the kernel, in a docstring too."""


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """`NAME.py` with the class `ModelNew`. Raises TaskError for a kernel that can't stand in a module."""
    problem = read_module_problem(task.folder)
    original = _original(task.folder / SOURCE_FILE, kernel)
    reserved = sorted({*global_names(original), *_WANTED} - {FUNCTION, *_shared(kernel)})
    try:
        host = host_module(task, kernel, function=FUNCTION, reserved=reserved)
    except HostCodeError as error:
        raise TaskError(f"The kernel of {task.name} can't be written as a solution: {error}") from error
    torch = "" if "torch" in global_names(original) else "import torch\n\n"
    parts = (torch + original, host, _model_new(task, problem))
    return {f"{problem.name}.py": "\n\n\n".join(part.strip() for part in parts) + "\n"}


def _original(path: Path, kernel: Kernel) -> str:
    """The problem's text, without what the harness's static check or the kernel's own names would trip over."""
    text = without_docstrings(path.read_text("utf-8"), lambda words: bool(_PROHIBITED.search(words)))
    theirs = set(global_names(kernel.source)) if kernel.language is Language.TRITON else set()
    if wanted := sorted(theirs & _WANTED):
        raise TaskError(f"The kernel defines '{wanted[0]}', which a solution for KernelBench needs itself.")
    clashing = (theirs & set(global_names(text))) - _shared(kernel)
    return renamed(text, {name: f"{name}_of_the_problem" for name in clashing}) if clashing else text


def _shared(kernel: Kernel) -> frozenset[str]:
    """Names that a Triton kernel and a problem may both import: they mean the same."""
    return frozenset({"triton", "tl", "libdevice"}) if kernel.language is Language.TRITON else frozenset()


def _model_new(task: Task, problem: ModuleProblem) -> str:
    lines = [
        "class ModelNew(Model):",
        '    """The problem\'s Model, whose forward a kernel computes."""',
        "",
        f"    def forward(self, {', '.join(_parameters(problem))}):",
        *(f"        {line}" for line in _statements(task, problem)),
    ]
    return "\n".join(lines)


def _statements(task: Task, problem: ModuleProblem) -> Iterator[str]:
    parameters = _parameters(problem)
    if problem.modes_differ:
        yield "if not self.training:"
        yield f"    return super().forward({', '.join(parameters)})"
    for name, argument in zip(parameters, problem.arguments, strict=True):
        if not argument.input:
            yield f"if {name} != {argument.value!r}:"
            yield f'    raise ValueError(f"This kernel was made for {name} = {argument.value!r}, not {{{name}}}.")'
    yield f"out = {FUNCTION}("
    for tensor in task.inputs:
        place = problem.state.get(tensor.name)
        source = _attribute(place) if place else tensor.name
        shaped = ".reshape(1)" if tensor.name in problem.scalars else ""
        yield f"    {source}.detach().to(torch.{tensor.dtype}){shaped},"
    yield ")"
    (output,) = task.outputs
    floats = [
        each.name
        for each in task.inputs
        if each.name not in problem.state and is_floating(numpy_dtype(each.dtype))
    ]
    shaped = ".reshape(())" if output.name in problem.scalars else ""
    dtype = f".to({floats[0]}.dtype)" if floats and is_floating(numpy_dtype(output.dtype)) else ""
    yield f"return out{shaped}{dtype}"


def _parameters(problem: ModuleProblem) -> list[str]:
    """Names of forward's parameters, in its order."""
    return [each.input or f"value{number}" for number, each in enumerate(problem.arguments)]


def _attribute(place: str) -> str:
    """A parameter or buffer by its name in the module's state."""
    found = "self"
    for part in place.split("."):
        if part.isdecimal():
            found += f"[{part}]"
        elif part.isidentifier():
            found += f".{part}"
        else:
            return f"self.state_dict()[{place!r}]"
    return found
