"""The suite's tasks as PyTorch operators, eager and compiled with max-autotune: values and times.

    python -m mctskernel.experiments.torch_baselines --rows rows.jsonl [TASK ...]

Needs a GPU and the extra `gpu`. Runs in a process of its own, so that PyTorch never shares one with a search, and
appends a row as soon as it is known. An operator takes the arguments of the task's reference, as tensors.
"""

from __future__ import annotations

import functools
import inspect
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from mctskernel.core.expression import Number
from mctskernel.core.task import Array, Shape, Task, TaskError
from mctskernel.core.task_file import load_task
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.suites.rows import TorchRow
from mctskernel.tasks import builtin_tasks

COMPILE_MODE = "max-autotune-no-cudagraphs"
"""With CUDA graphs PyTorch copies the inputs before every call, which takes as long as a memory-bound kernel itself."""

Operator = Callable[..., Tensor]
Bound = functools.partial[Tensor]


def softmax(x: Tensor) -> Tensor:
    """`F.softmax` over the rows."""
    return F.softmax(x, dim=1)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """`F.layer_norm`."""
    return F.layer_norm(x, x.shape[1:], weight, bias, eps)


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`F.rms_norm`."""
    return F.rms_norm(x, x.shape[1:], weight, eps)


def transpose(x: Tensor) -> Tensor:
    """A copy: a view would move nothing."""
    return x.t().contiguous()


def total(x: Tensor) -> Tensor:
    """The sum, as an array of one element."""
    return x.sum().reshape(1)


def cumsum(x: Tensor) -> Tensor:
    """`torch.cumsum` along the rows."""
    return torch.cumsum(x, dim=1)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """`F.gelu` in its tanh form."""
    return F.gelu(x + bias, approximate="tanh")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul`; float32 without TF32, which is PyTorch's default."""
    return a @ b


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """`F.cross_entropy` in float32, the precision that the task wants of it."""
    return F.cross_entropy(logits.float(), targets, reduction="none")


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`F.scaled_dot_product_attention`, whose fast kernels want a batch."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def conv3x3(x: Tensor, weight: Tensor) -> Tensor:
    """`F.conv2d`."""
    return F.conv2d(x, weight, padding=1)


def histogram(values: Tensor) -> Tensor:
    """`torch.bincount`."""
    return torch.bincount(values, minlength=256).int()


def spmv(offsets: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """A sparse CSR tensor, which is a view of the three, times the vector."""
    matrix = torch.sparse_csr_tensor(
        offsets, columns, values, (len(offsets) - 1, len(x)), check_invariants=False
    )
    return matrix @ x


def int4_matmul(x: Tensor, packed: Tensor, scales: Tensor, group: int) -> Tensor:
    """The weights unpacked, then `torch.matmul`: public PyTorch has no operator for them."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(len(packed), -1)
    weights = (codes.to(x.dtype) - 8) * scales.repeat_interleave(group, dim=1)
    return x @ weights.t()


def stencil(grid: Tensor, center: float, side: float) -> Tensor:
    """Slices of the grid."""
    out = grid.clone()
    around = grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]
    out[1:-1, 1:-1] = center * grid[1:-1, 1:-1] + side * around
    return out


OPERATORS: Mapping[str, Operator] = {
    "softmax": softmax,
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "transpose": transpose,
    "sum": total,
    "cumsum": cumsum,
    "bias_gelu": bias_gelu,
    "matmul": matmul,
    "matmul_bf16": matmul,
    "cross_entropy": cross_entropy,
    "attention": attention,
    "conv3x3": conv3x3,
    "histogram": histogram,
    "spmv": spmv,
    "int4_matmul": int4_matmul,
    "stencil": stencil,
}


@click.command()
@click.argument("tasks", nargs=-1)
@click.option("--rows", type=click.Path(path_type=Path), required=True, help="Append the rows there.")
def main(tasks: tuple[str, ...], rows: Path) -> None:
    """Time PyTorch's operators of TASKS, or of all tasks."""
    if not torch.cuda.is_available():
        click.echo("PyTorch finds no GPU.", err=True)
        sys.exit(1)
    for name in tasks or OPERATORS:
        click.echo(f"PyTorch: {name}")
        append_line(rows, time_operator(name))


def bound(operator: Operator, task: Task, inputs: Mapping[str, Array], shape: Shape, device: str) -> Bound:
    """An operator with the arguments that the task's reference would get, on a device.

    Raises TaskError when the task has no such argument.
    """
    tensors = {name: as_tensor(array, device) for name, array in inputs.items()}
    available: dict[str, Tensor | Number] = {**tensors, **shape, **task.scalars}
    wanted = inspect.signature(operator).parameters
    missing = [name for name in wanted if name not in available]
    if missing:
        raise TaskError(f"The operator of {task.name} takes '{missing[0]}', which the task doesn't have.")
    return functools.partial(operator, **{name: available[name] for name in wanted})


def as_tensor(array: Array, device: str) -> Tensor:
    """The same numbers on a device; bfloat16 is not a type of numpy's own, so its bits are carried over."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def time_operator(name: str) -> TorchRow:
    """Eager and compiled, the geometric mean over the search shapes. What goes wrong is the row's problem."""
    versions = {"torch": str(torch.__version__), "gpu": torch.cuda.get_device_name()}
    operator, folder = OPERATORS.get(name), builtin_tasks().get(name)
    if operator is None or folder is None:
        return TorchRow(task=name, versions=versions, problem=f"There is no PyTorch operator for {name}.")
    eager: list[float] = []
    compiled: list[float] = []
    problem = ""
    try:
        task = load_task(folder)
        for shape in task.search_shapes:
            run = bound(operator, task, task.draw_inputs(shape, seed=0), shape, "cuda")
            eager.append(_do_bench(run))
            fast = torch.compile(run.func, mode=COMPILE_MODE, dynamic=False)
            compiled.append(_do_bench(functools.partial(fast, **run.keywords)))
    except Exception as error:  # noqa: BLE001 - whatever PyTorch makes of an operator costs one row
        said = str(error).strip().splitlines()
        problem = f"{type(error).__name__}: {said[0] if said else 'no message'}"
    finally:
        torch.cuda.empty_cache()
    return TorchRow(
        task=name,
        eager_seconds=statistics.geometric_mean(eager) if eager else None,
        compiled_seconds=statistics.geometric_mean(compiled) if compiled else None,
        versions=versions,
        problem=problem,
    )


def _do_bench(run: Callable[[], object]) -> float:
    # Imported here: it looks for a GPU, and the operators' values are tested without one.
    from triton.testing import do_bench  # noqa: PLC0415 - as said above

    return float(do_bench(run, return_mode="median")) / 1e3


if __name__ == "__main__":
    main()
