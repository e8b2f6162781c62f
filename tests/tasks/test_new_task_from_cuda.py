"""Drafting a task from a CUDA C++ file: what is guessed, what check says of it, and what can't be drafted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import TaskError
from mctskernel.tasks.check import check_task
from mctskernel.tasks.from_cuda import create_task_from_cuda

SCALE = """
__global__ void __launch_bounds__(128) scale(const float* x, float* out, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * x[i];
}
"""


def drafted(tmp_path: Path, text: str, kernel: str = "") -> Path:
    file = tmp_path / "my.cu"
    file.write_text(text)
    create_task_from_cuda(tmp_path / "task", file, kernel)
    return tmp_path / "task"


@pytest.mark.slow
def test_a_draft_with_its_reference_can_be_searched(tmp_path: Path) -> None:
    folder = drafted(tmp_path, SCALE)
    (problem,) = check_task(folder).problems
    assert "write it: return out" in problem
    (folder / "reference.py").write_text("def reference(x, factor):\n    return factor * x\n")
    assert check_task(folder).problems == ()


def test_several_kernels_are_launched_in_their_order_or_one_alone(tmp_path: Path) -> None:
    text = SCALE + SCALE.replace("scale", "again")
    both = plan_of(Kernel((drafted(tmp_path, text) / "kernel.cu").read_text()))
    assert [launch.kernel for launch in both.launches] == ["scale", "again"]
    (tmp_path / "one").mkdir()
    one = plan_of(Kernel((drafted(tmp_path / "one", text, "again") / "kernel.cu").read_text()))
    assert [launch.kernel for launch in one.launches] == ["again"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int main() {}", "has no __global__ function"),
        (f"template <typename T>{SCALE}", "line 2?.*'scale' is a template"),
        (SCALE.replace("float* out", "const float* out"), "every pointer is const"),
    ],
)
def test_what_cannot_be_drafted_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        drafted(tmp_path, text)
    assert not (tmp_path / "task").exists()
