"""Tasks around Triton kernels of one's own, from the function that launches them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.from_torch import create_task_from_torch
from mctskernel.profiling.model_device import ModelDevice

pytest.importorskip("torch")
pytest.importorskip("triton")

MODULE = '''
import torch
import triton
import triton.language as tl
from triton.language.math import exp

DEVICE = triton.runtime.driver.active.get_active_torch_device()
TWICE = tl.constexpr(2.0)


@triton.jit
def row_of(axis):
    """The row."""
    return tl.program_id(axis).to(tl.int64)


@triton.autotune([triton.Config({"ROWS": 2}, num_warps=2), triton.Config({"ROWS": 4}, num_stages=2)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["m"] % args["ROWS"] == 0})
@triton.jit
def scaled(
    x, out, input, m, n: int, stride,  # as a person writes it
    KIND: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):
    tl.static_assert(ROWS > 1, f"{ROWS} rows")
    first, cols = row_of(0) * ROWS, tl.arange(0, BLOCK)
    for each in range(ROWS):
        row = first + each
        inside = cols < n
        if not EVEN:
            inside = inside & (row < m)
        value = tl.load(x + row * stride + cols, mask=inside, other=0.0).to(x.dtype.element_ty)
        if KIND == "exp":
            value = exp(value)
        if input is not None:
            value = value + tl.load(input)
        tl.store(out + row * stride + cols, value * TWICE, mask=inside)


def launch(x):
    m, n = x.shape
    out = torch.empty_like(x)
    grid = lambda META: (triton.cdiv(m, META["ROWS"]),)
    scaled[grid](x, out, None, m, n, x.stride(0), KIND="exp", BLOCK=triton.next_power_of_2(n))
    return out


def zeroed(x):
    out, (m, n) = torch.zeros_like(x), x.shape
    compiled = scaled.fn.fn.warmup(x, out, None, m, n, n, "exp", 4, False, 4096, num_warps=8, grid=(1,))
    compiled[(triton.cdiv(m, 4), 1)](x, out, None, m, n, x.stride(0), "exp", 4, False, 4096)
    return out


def in_pytorch(x):
    return launch(x + 1)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_launchers.py").write_text(MODULE)
    (tmp_path / "own_reference.py").write_text("def reference(x):\n    return 2 * x.exp()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "task"


def make(folder: Path, launcher: str) -> tuple[str, ...]:
    made = create_task_from_torch(
        folder, "own_reference:reference", ["m=1024xn=96"], ["float32"], launcher=f"own_launchers:{launcher}"
    )
    return tuple(name for name in made.files if name.startswith(("kernel", "start")))


def test_a_launch_becomes_a_plan_of_dimensions_and_block_sizes(folder: Path) -> None:
    assert make(folder, "launch") == ("kernel.py", "start_config_2.py")
    task = load_task(folder, Language.TRITON)
    (launch,) = plan_of(task.starting_kernel).launches
    assert launch.triton is not None
    assert launch.grid == ("ceil_div(m, ROWS)",)
    assert launch.args == ("x", "out", "m", "n", "n")
    assert dict(launch.triton.constexprs) == {
        "ROWS": "ROWS",
        "EVEN": "m % ROWS == 0",
        "BLOCK": "next_pow2(n)",
    }
    assert launch.triton.num_warps == 2
    source = task.starting_kernel.source
    assert "KIND" not in source
    assert "input" not in source
    assert "first = tl.program_id(0).to(tl.int64) * ROWS" in source
    assert "value * 2.0" in source


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["launch", "zeroed"])
def test_its_kernels_compute_what_the_reference_does(folder: Path, launcher: str) -> None:
    make(folder, launcher)
    task = load_task(folder, Language.TRITON)
    launches = plan_of(task.starting_kernel).launches
    assert (launches[0].kernel == "fill_with_zeros") == (launcher == "zeroed")
    evaluation = ModelDevice(task).evaluate(task.starting_kernel)
    assert evaluation.outcome is Outcome.OK, evaluation.message


def test_what_pytorch_computes_between_launches_is_refused(folder: Path) -> None:
    with pytest.raises(TaskError, match=r"computes a tensor by PyTorch's add"):
        make(folder, "in_pytorch")
    assert not folder.exists()
