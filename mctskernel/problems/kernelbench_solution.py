"""A kernel as a `ModelNew` file, which KernelBench's harness takes."""

from __future__ import annotations

from collections.abc import Mapping

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, TaskError


def solution(task: Task, kernel: Kernel) -> Mapping[str, str]:
    """The text of the file."""
    raise TaskError(f"{task.name}: not yet.")
