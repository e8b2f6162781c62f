"""KernelBench problems as text: recognised without running them, and rewritten for solutions."""

from __future__ import annotations

from pathlib import Path

from mctskernel.problems.registry import find_benchmark, is_problem
from tests.problems.kernelbench.problem_files import HINGE, written


def test_only_problems_are_recognised(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("def f(x):\n    return x\n", "utf-8")
    assert find_benchmark(other) is None
    assert not is_problem("softmax")
    assert not is_problem(tmp_path / "nothing.py")
    found = find_benchmark(written(tmp_path, HINGE))
    assert found is not None
    assert found.name == "KernelBench"
