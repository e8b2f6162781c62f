"""KernelBench: a problem is a Python file with `class Model(nn.Module)`, `get_inputs()` and `get_init_inputs()`.

The format and the harness that a solution must please are in src/kernelbench/eval.py of
https://github.com/ScalingIntelligence/KernelBench.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.problems.kernelbench.reference import SOURCE_FILE
from mctskernel.problems.kernelbench.solution import solution
from mctskernel.problems.problem import Benchmark, Problem
from mctskernel.problems.torch_task import problem_of

NAME = "KernelBench"

TOLERANCE = 1e-4
"""Relative and absolute, of its harness in float32 (`get_tolerance_for_precision`)."""

MOST_SOURCE_BYTES = 1 << 20

_REQUIRED = {"Model": "class Model(nn.Module)", "get_inputs": "get_inputs()"}


def recognises(path: Path) -> bool:
    """Whether a path is a Python file with a class `Model` or a function `get_inputs`; nothing of it is run."""
    if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MOST_SOURCE_BYTES:
        return False
    text = path.read_text("utf-8", "replace")
    try:
        return bool(_defined(text) & {"Model", "get_inputs"})
    except SyntaxError:
        return bool(re.search(r"^(class Model\b|def get_inputs\b)", text, re.MULTILINE))


def read(path: Path, language: Language) -> Problem:
    """A problem as a task. Runs the file, and its Model at a small shape. Raises TaskError."""
    text = _text(path)
    try:
        missing = [what for name, what in _REQUIRED.items() if name not in _defined(text)]
    except SyntaxError as error:
        raise TaskError(f"{path} is no Python: {error}") from error
    if missing:
        raise TaskError(f"{path} is no KernelBench problem: it has no {missing[0]}.")
    try:
        from mctskernel.problems.kernelbench.task import drafted  # noqa: PLC0415 - imports PyTorch, an extra
    except ImportError as error:
        raise TaskError(
            "A KernelBench problem needs PyTorch, which isn't installed: mctskernel[gpu]."
        ) from error
    beside = {SOURCE_FILE: text.encode()}
    draft = drafted(path, beside, benchmark=NAME, tolerance=TOLERANCE)
    problem = problem_of(NAME, draft, language)
    if problem.has_kernel or len(draft.task.search[0]) <= 1:
        return problem
    # Some modules make a number of a size: then that one can't vary.
    draft = drafted(path, beside, benchmark=NAME, tolerance=TOLERANCE, most_dimensions=1)
    simpler = problem_of(NAME, draft, language)
    return simpler if simpler.has_kernel else problem


KERNELBENCH = Benchmark(NAME, recognises, read, solution)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} can't be read: {error}") from error


def _defined(text: str) -> set[str]:
    """Names of a file's classes, functions and variables."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
    return found
