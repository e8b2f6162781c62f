"""A new task runs as it is; every mistake in one is a sentence that names the file and the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.tasks.check import check_task
from mctskernel.tasks.template import create_task
from tests.conftest import KERNEL, REFERENCE, TASK_TOML, WriteTask

TRITON_KERNEL = '''\
"""
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, BLOCK)"]
args = ["x", "out", "n"]
constexprs = { BLOCK = "BLOCK" }
"""

import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
'''


@pytest.mark.slow
def test_the_template_is_a_sound_task(tmp_path: Path) -> None:
    create_task(tmp_path / "a" / "b")
    report = check_task(tmp_path / "a" / "b")
    assert report.ok, report.problems
    assert load_task(tmp_path / "a" / "b").name == "row_sum"


@pytest.mark.parametrize("name", ["task.toml", "reference.py", "kernel.cu"])
def test_a_new_task_overwrites_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(TaskError, match=rf"{name} exists; a new task overwrites nothing"):
        create_task(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def only_problem(folder: Path) -> str:
    problems = check_task(folder).problems
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("def reference(x):\n    return x[1:]\n", "with the shape (4999,); at n=5000"),
        (
            "import numpy as np\ndef reference(x):\n    return x.astype(np.float32)\n",
            "gave 'out' as float32 for float64 inputs",
        ),
        ("def reference(x):\n    return 0 * x\n", "'out' is zero everywhere"),
        ("def reference(x):\n    x *= 2\n    return x.copy()\n", "changed its input 'x' in place"),
        (
            "import numpy as np\nr = np.random.default_rng()\n"
            "def make_inputs(n):\n    return {'x': r.random(n, np.float32)}\n" + REFERENCE,
            "make_inputs made 'x' differently for the same seed",
        ),
    ],
)
def test_a_problem_of_the_reference(write_task: WriteTask, code: str, sentence: str) -> None:
    problem = only_problem(write_task(reference=code))
    assert sentence in problem
    assert "reference.py: " in problem


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("/*", "//", "no launch plan"),
        ("ceil_div(n", "ceil_div(m", "unknown name 'm'"),
        (', "n"]', "]", "line 10: 'twice' has 3 parameter(s), the plan gives 2"),
        (
            '"x", "out", "n"',
            '"out", "x", "n"',
            "parameter 'x': the plan gives 'out', which is the name of ano",
        ),
        ('"x", "out", "n"', '"x", "x", "n"', "no launch is given the output 'out'"),
    ],
)
def test_a_problem_of_the_kernel(write_task: WriteTask, old: str, new: str, sentence: str) -> None:
    assert old in KERNEL
    folder = write_task(kernel=KERNEL.replace(old, new, 1))
    problems = check_task(folder).problems
    assert sentence in problems[0]
    assert all(problem.startswith(str(folder / "kernel.cu")) for problem in problems)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("2.0f * x[i]", "x[i]", "wrong result: At n=1"),
        ("if (i < n)", "if (i <= n)", "crash: At n="),
        ("2.0f * x[i]", "2.0f * y[i]", 'build error: Line 13: identifier "y" is undefined'),
        ("2.0f * x[i]", "n == 77 ? 0.0f : 2.0f * x[i]", "kernel.cu: wrong result: At n=77"),
    ],
)
def test_a_starting_kernel_that_is_wrong(write_task: WriteTask, old: str, new: str, sentence: str) -> None:
    assert old in KERNEL
    assert sentence in only_problem(write_task(kernel=KERNEL.replace(old, new, 1)))


@pytest.mark.slow
def test_the_kernel_of_each_language_is_checked(write_task: WriteTask) -> None:
    folder = write_task()
    (folder / "kernel.py").write_text(TRITON_KERNEL)
    report = check_task(folder)
    assert report.ok, report.problems
    assert any("kernel.py is right" in line for line in report.checked)
    assert any("kernel.cu is right" in line for line in report.checked)


@pytest.mark.slow
def test_the_numerical_contract_is_told_and_must_be_the_reference_s_own(write_task: WriteTask) -> None:
    assert "A NaN in the inputs must change only the outputs that depend" in "".join(
        check_task(write_task()).checked
    )
    folder = write_task(
        TASK_TOML + '[numerics]\nnan = "propagate"\n',
        "import numpy as np\ndef reference(x):\n    return 2 * np.nan_to_num(x)\n",
    )
    assert "the reference itself swallows a NaN in 'x': at n=130" in only_problem(folder)
