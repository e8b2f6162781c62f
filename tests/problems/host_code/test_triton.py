"""Modules of Triton kernels: what they compute, through Triton's interpreter, and what they refuse."""

import json
import os
import subprocess
import sys

import pytest

from mctskernel.core.kernel import Language
from mctskernel.core.task_file import load_task
from mctskernel.problems.host_code import host_module
from mctskernel.tasks.builtin import builtin_tasks
from tests.problems.host_code.run_interpreted import widened

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The largest error of each built-in task's starting kernel, relative to 1 or to what is right."""
    folder = tmp_path_factory.mktemp("modules")
    for name, path in builtin_tasks().items():
        task = widened(load_task(path, Language.TRITON))
        (folder / f"{name}.py").write_text(host_module(task, task.starting_kernel))
    done = subprocess.run(
        [sys.executable, "tests/problems/host_code/run_interpreted.py", str(folder)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", builtin_tasks())
def test_a_module_computes_what_its_task_asks(name: str, errors: dict[str, float]) -> None:
    assert errors[name] < 1e-4
