"""KernelBench: a problem is a Python file with `class Model(nn.Module)`, `get_inputs()` and `get_init_inputs()`.

A solution is a file with `ModelNew`: the problem's Model with another forward, so both have the same parameters from
the same seed. The format and the harness are in src/kernelbench/eval.py of
https://github.com/ScalingIntelligence/KernelBench.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Precision, Task, TaskError
from mctskernel.core.task_file import read_text
from mctskernel.problems.host_code import HostCodeError, host_module
from mctskernel.problems.host_code.expressions import TEMPLATES
from mctskernel.problems.kernelbench.reference import NAME, SOURCE_FILE, ModuleProblem
from mctskernel.problems.problem import Benchmark, Problem, blamed, read_record
from mctskernel.problems.torch_task import problem_of

MOST_SOURCE_BYTES = 1 << 20

_REQUIRED = {"Model": "class Model(nn.Module)", "get_inputs": "get_inputs()"}


def recognises(path: Path) -> bool:
    """Whether a path is a Python file with a class `Model` or a function `get_inputs`; runs nothing."""
    if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MOST_SOURCE_BYTES:
        return False
    text = path.read_text("utf-8", "replace")
    try:
        return not {"Model", "get_inputs"}.isdisjoint(global_names(text))
    except SyntaxError:
        return bool(re.search(r"^(class Model\b|def get_inputs\b)", text, re.MULTILINE))


PATIENCE = 10.0
"""Seconds of computing after which a problem is read once more with no variable dimension rather than with one."""


def read(path: Path, language: Language | None, precision: Precision) -> Problem:
    """Read a problem as a task. Runs the file, and its Model at a small shape. Raises TaskError."""
    text = read_text(path)
    try:
        missing = [what for name, what in _REQUIRED.items() if name not in global_names(text)]
    except SyntaxError as error:
        raise TaskError(f"{path} is not valid Python: {error}") from error
    if missing:
        raise TaskError(f"{path} is no KernelBench problem: it has no {missing[0]}.")
    from mctskernel.problems.kernelbench.task import MOST_DIMENSIONS, drafted  # noqa: PLC0415 - imports PyTorch, an extra
    from mctskernel.problems.plain_cuda.tracing import SPECIALISED, UNTRACEABLE  # noqa: PLC0415 - as above

    own_files = {SOURCE_FILE: text.encode()}
    began = time.process_time()
    found: Problem | None = None
    for most in (MOST_DIMENSIONS, 1, 0):
        if most == 1 and time.process_time() - began > PATIENCE:
            continue
        with blamed(f"{path.name} can't be read:"):
            task = drafted(path, own_files, precision=precision, most_dimensions=most)
        problem = problem_of(NAME, task, language)
        found = problem if found is None or problem.has_kernel else found
        if problem.has_kernel or not task.search[0]:
            break
        if not any(words in problem.notes[-1] for words in (SPECIALISED, UNTRACEABLE)):
            break
    assert found is not None  # noqa: S101 - the loop's first turn makes one
    return found


FUNCTION = "run_kernel"

_WANTED = frozenset({"Model", "ModelNew", "get_inputs", "get_init_inputs", FUNCTION})
"""Names that the harness or this file needs."""

_PROHIBITED = re.compile(r"\b(pass|try|except)\b")
"""Words that KernelBench's static check refuses, in docstrings too."""


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """`NAME.py` with the class `ModelNew`. Raises TaskError for a kernel that can't stand in a module."""
    problem = read_record(task.folder, ModuleProblem)
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
    """The problem's text without words that the harness refuses and names that the kernel defines."""
    text = without_docstrings(path.read_text("utf-8"), lambda words: bool(_PROHIBITED.search(words)))
    theirs = set(global_names(kernel.source)) if kernel.language is Language.TRITON else set()
    if wanted := sorted(theirs & _WANTED):
        raise TaskError(f"The kernel defines '{wanted[0]}', which a solution for KernelBench defines too.")
    clashing = (theirs & set(global_names(text))) - _shared(kernel)
    return renamed(text, {name: f"{name}_of_the_problem" for name in clashing}) if clashing else text


def _shared(kernel: Kernel) -> frozenset[str]:
    """Modules that a Triton kernel and a problem may both import."""
    return frozenset({"triton", "tl", "libdevice"}) if kernel.language is Language.TRITON else frozenset()


def _model_new(task: Task, problem: ModuleProblem) -> str:
    parameters = [each.input or f"value{number}" for number, each in enumerate(problem.arguments)]
    arguments = zip(parameters, problem.arguments, strict=True)
    (output,) = task.outputs
    floats = [
        each.name
        for each in task.inputs
        if each.name not in problem.state and is_floating(numpy_dtype(each.dtype))
    ]
    shaped = ".reshape(())" if output.name in problem.scalars else ""
    dtype = f".to({floats[0]}.dtype)" if floats and is_floating(numpy_dtype(output.dtype)) else ""
    return TEMPLATES.get_template("model_new.txt").render(
        parameters=parameters,
        modes_differ=problem.modes_differ,
        constants=[(name, repr(argument.value)) for name, argument in arguments if not argument.input],
        function=FUNCTION,
        given=[
            f"{_attribute(problem.state[each.name]) if each.name in problem.state else each.name}.detach()"
            f".to(torch.{each.dtype}){'.reshape(1)' if each.name in problem.scalars else ''}"
            for each in task.inputs
        ],
        ending=f"{shaped}{dtype}",
    )


def _attribute(place: str) -> str:
    found = "self"
    for part in place.split("."):
        if part.isdecimal():
            found += f"[{part}]"
        elif part.isidentifier():
            found += f".{part}"
        else:
            return f"self.state_dict()[{place!r}]"
    return found


def global_names(text: str) -> tuple[str, ...]:
    """The names that a module's text defines at its top level."""
    found: dict[str, None] = {}
    for statement in ast.parse(text).body:
        for node in _of_this_scope(statement):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[name] = None
                case ast.Name(id=name, ctx=ast.Store()):
                    found[name] = None
                case ast.alias(name=name, asname=asname):
                    found[asname or name.partition(".")[0]] = None
    return tuple(found)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with some names replaced, in values and parameters; comments are lost."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name):
                node.id = names.get(name, name)
            case ast.arg(arg=name):
                node.arg = names.get(name, name)
            case ast.FunctionDef(name=name):
                node.name = names.get(name, name)
    return ast.unparse(tree)


def without_docstrings(text: str, unwanted: Callable[[str], bool]) -> str:
    """The text with `...` in place of unwanted docstrings; everything else is unchanged."""
    lines = text.split("\n")
    for node in sorted(_docstrings(ast.parse(text)), key=lambda each: -each.lineno):
        if unwanted(ast.get_source_segment(text, node) or ""):
            indentation = lines[node.lineno - 1][: node.col_offset]
            assert node.end_lineno is not None  # noqa: S101 - what was parsed has it
            rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
            lines[node.lineno - 1 : node.end_lineno] = [f"{indentation}...{rest}"]
    return "\n".join(lines)


def _of_this_scope(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        yield from _of_this_scope(child)


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first


KERNELBENCH = Benchmark(NAME, recognises, read, solution)
