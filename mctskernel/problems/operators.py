"""PyTorch functions as people write them: the operators of the built-in tasks, and others to make tasks of.

    mctskernel new-task swiglu --from-torch mctskernel.problems.operators:swiglu --shape 8192x4096

Those of a built-in task take the arguments of the task's reference, as tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from mctskernel.core.task import Shape, Task

Operator = Callable[..., Tensor]


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def transpose(x: Tensor) -> Tensor:
    """A copy: a view would move nothing."""
    return x.t().contiguous()


def total(x: Tensor) -> Tensor:
    """The sum, as an array of one element."""
    return x.sum().reshape(1)


def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, dim=-1)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """GELU in its tanh form, of a sum with a bias."""
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


def full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As `attention`, to later keys too."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def conv3x3(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def histogram(values: Tensor) -> Tensor:
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
    out = grid.clone()
    around = grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]
    out[1:-1, 1:-1] = center * grid[1:-1, 1:-1] + side * around
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


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


def operator_of(task: Task, shape: Shape) -> Operator:
    """The operator of a built-in task as a function of the task's inputs in their order."""
    operator = OPERATORS[task.name]
    names = [tensor.name for tensor in task.inputs]
    numbers = {**shape, **task.scalars}
    fixed = {name: value for name, value in numbers.items() if name in inspect.signature(operator).parameters}
    return lambda *tensors: operator(**dict(zip(names, tensors, strict=True)), **fixed)
