"""Functions of PyTorch for which tasks are made: each as people write it.

mctskernel new-task softmax --from-torch mctskernel.experiments.subjects.torch_functions:softmax --shape 8192x4096
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor


def softmax(x: Tensor) -> Tensor:
    """Softmax of each row."""
    return F.softmax(x, dim=-1)


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Each row over its root mean square, times a weight."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Each row less its mean and over its deviation, times a weight, plus a bias."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each row with its target, in float32."""
    return F.cross_entropy(logits.float(), targets, reduction="none")


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """GELU in its tanh form, of a sum with a bias."""
    return F.gelu(x + bias, approximate="tanh")


def cumsum(x: Tensor) -> Tensor:
    """Running sum along each row."""
    return torch.cumsum(x, dim=-1)


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """A residual connection and the norm of its sum: both are wanted."""
    total = x + residual
    return total, F.rms_norm(total, total.shape[-1:], weight, eps)


def rope(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding of (position, head, channel), its halves rotated."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def masked_softmax(x: Tensor, scale: float = 0.125) -> Tensor:
    """Softmax of each row of scores up to its own position, as in causal attention."""
    rows, cols = x.shape[-2:]
    position = torch.arange(rows, device=x.device)[:, None]
    later = torch.arange(cols, device=x.device)[None, :] > position
    return F.softmax((x * scale).masked_fill(later, float("-inf")), dim=-1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU of a gate times what it gates."""
    return F.silu(gate) * up
