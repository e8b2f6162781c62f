"""Operators that are decomposed into simpler ones, by PyTorch's own rules or by these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.recurrent import recurrent

aten = torch.ops.aten

_FURTHER = (
    aten._softmax.default,
    aten._log_softmax.default,
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
    aten.elu.default,
    aten.linalg_vector_norm.default,
    aten.upsample_bilinear2d.vec,
    aten.upsample_bilinear2d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest3d.vec,
    aten.upsample_nearest1d.default,
    aten.upsample_nearest3d.default,
    aten.glu.default,
    aten.unfold.default,
)
"""Operators that core ATen keeps, and PyTorch can decompose."""

_KEPT = (
    "ones zeros full full_like zeros_like ones_like mish silu diag_embed cummax cummin logcumsumexp".split()
)
"""Operators that core ATen decomposes, and that read better whole, or are known by their names."""

_DROPOUTS = {
    f"{kind}dropout{end}" for kind in ("", "alpha_", "feature_", "feature_alpha_") for end in ("", "_")
}
_DROPOUTS |= {"native_dropout"}


@lru_cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {
        each: rule
        for each, rule in core_aten_decompositions().items()  # type: ignore[no-untyped-call]
        if each.overloadpacket.__name__ not in _KEPT
    }
    table |= get_decompositions(_FURTHER)
    return table | _OWN


class PlainFunctions(TorchFunctionMode):
    """Replaces functions that PyTorch's C++ fuses, or specialises on sizes, by their definition."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {**dict(zip(("input", "p", "train"), args, strict=False)), **(kwargs or {})}
        if (
            getattr(function, "__name__", "") in _DROPOUTS
            and given.get("train", given.get("training", True))
            and given.get("p", 0.5)
        ):
            raise PlainCudaError(
                "This function draws random numbers (dropout), which a kernel can't reproduce."
            )
        called, others = _PLAIN_FUNCTIONS.get(function, function), nullcontext()
        if getattr(function, "__module__", "") == functional.__name__:
            # This mode doesn't see what these functions call.
            others = patch.multiple(functional, **_PLAIN_IN_FUNCTIONAL)  # type: ignore[call-overload] # any functions
        with others:
            return called(*args, **(kwargs or {}))


class WithoutValues(TorchFunctionMode):
    """For tensors without values: calls recurrent layers as few operators, and what looks at values without it."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _LAYERS.get(function, function)(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise PlainCudaError("This function draws random numbers (dropout in attention).")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        columns = torch.arange(key.shape[-2], device=query.device)[None, :]
        scores = scores.masked_fill(columns > rows, -math.inf)
    if attn_mask is not None:
        scores = (
            scores.masked_fill(attn_mask.logical_not(), -math.inf)
            if attn_mask.dtype == torch.bool
            else scores + attn_mask
        )
    return scores.softmax(-1) @ value


def scaled_product(
    tensor: Tensor,
    other: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """What torch._scaled_mm computes, in float32 or the numbers' own precision if they have more of it."""
    del use_fast_accum  # it may be less precise, and needn't
    for scale, axis in ((scale_a, -1), (scale_b, 0)):
        if scale.dim() > 1 and scale.shape[axis] != 1:
            raise PlainCudaError(
                "This function has fp8 products with scales of blocks, which aren't supported."
            )
    wide = torch.promote_types(tensor.dtype, torch.float32) if tensor.dtype.itemsize > 1 else torch.float32
    found = tensor.to(wide) @ other.to(wide) * scale_a * scale_b
    found = found if bias is None else found + bias
    found = found if scale_result is None else found * scale_result
    return found.to(tensor.dtype if out_dtype is None else out_dtype)


def product_of_rows(tensor: Tensor, other: Tensor) -> Tensor:
    """A product, of all rows at once where the other operand is one matrix."""
    if tensor.dim() < 3 or other.dim() != 2:
        return torch.matmul(tensor, other)
    return (tensor.reshape(-1, tensor.shape[-1]) @ other).view(*tensor.shape[:-1], other.shape[-1])


def _linear(tensor: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found = product_of_rows(tensor, weight.transpose(-1, -2) if weight.dim() == 2 else weight)
    return found if bias is None else found + bias


def _recurrent(
    kind: str, tensor: Tensor, state: Any, parameters: Any, biased: Any, *given: Any
) -> tuple[Tensor, ...]:
    """What torch.lstm and the like return."""
    states = [state] if isinstance(state, Tensor) else state
    if not isinstance(biased, bool) or len({each.shape[-1] for each in states}) > 1:
        raise PlainCudaError("This function has a recurrent layer of packed sequences or with projections.")
    count, dropout, trained, both_ways, batch_first = given
    if dropout and trained and count > 1:
        raise PlainCudaError("This function draws random numbers (dropout), which a kernel can't reproduce.")
    directions, size, each = 1 + both_ways, states[0].shape[-1], 4 if biased else 2
    last: list[Tensor] = []
    for first in range(0, count * directions, directions):
        members = [parameters[each * n : each * (n + 1)] for n in range(first, first + directions)]
        joined = map(torch.cat, zip(*members, strict=True)) if both_ways else members[0]
        weight, of_hidden, *biases = joined
        bias, other = biases or (None, of_hidden.new_zeros(of_hidden.shape[0]))
        gates = _linear(tensor, weight, bias)
        gates = gates.transpose(0, 1) if batch_first and not first else gates
        found = recurrent(gates, of_hidden, other, states[0], states[-1], kind, first, directions)
        last += (found[:, -1, :, :size], found[:, 0, :, size:])[:directions]
        tensor = found[0]
    return (tensor.transpose(0, 1) if batch_first else tensor, *torch.stack(last, 1).unbind())


def _max_pool1d(*given: Any, return_indices: bool = False, **named: Any) -> Any:
    found = torch.max_pool1d_with_indices(*given, **named)
    return found if return_indices else found[0]


def _bilinear(one: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    products = (one.unsqueeze(-1) * other.unsqueeze(-2)).flatten(-2)
    return _linear(products, weight.flatten(1), bias)


def _kron(one: Tensor, other: Tensor) -> Tensor:
    for axis in range(max(one.dim(), other.dim())):
        # From the last axis on, where a shorter shape has ones before it.
        one, other = (each if axis < each.dim() else each.unsqueeze(0) for each in (one, other))
    sizes = [here * there for here, there in zip(one.shape, other.shape, strict=True)]
    for axis in range(one.dim()):
        one, other = one.unsqueeze(2 * axis + 1), other.unsqueeze(2 * axis)
    return (one * other).reshape(sizes)


def _take_along_dim(tensor: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return tensor.flatten().gather(0, indices.flatten())
    dim %= tensor.dim()
    shape = [
        max(each) if dim != axis else None
        for axis, each in enumerate(zip(tensor.shape, indices.shape, strict=True))
    ]
    here, there = (
        [each.shape[axis] if size is None else size for axis, size in enumerate(shape)]
        for each in (tensor, indices)
    )
    return tensor.expand(here).gather(dim, indices.expand(there))


def _embedding_bag(indices: Tensor, weight: Tensor, *given: Any, **named: Any) -> Tensor:
    order = ("offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights")
    chosen = {**dict(zip((*order, "include_last_offset", "padding_idx"), given, strict=False)), **named}
    others = ("offsets", "max_norm", "per_sample_weights", "padding_idx")
    if indices.dim() != 2 or any(chosen.get(each) is not None for each in others):
        raise PlainCudaError("This function takes embeddings of bags other than the rows of a matrix.")
    rows, mode = torch.nn.functional.embedding(indices, weight), chosen.get("mode", "mean")
    return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)


def _cell(kind: str, tensor: Tensor, state: Any, *parameters: Tensor | None) -> list[Tensor]:
    """A step of a layer: its result and its states."""
    states = [each.unsqueeze(0) for each in ([state] if isinstance(state, Tensor) else state)]
    given = [each for each in parameters if each is not None]
    found = _recurrent(kind, tensor.unsqueeze(0), states, given, len(given) > 2, 1, 0.0, False, False, False)
    return [each.squeeze(0) for each in found]


def _gaussian_nll(
    given: Tensor, target: Tensor, var: Any, full: Any = False, eps: Any = 1e-6, **named: str
) -> Any:
    """The loss, without looking whether variances are negative."""
    var = torch.as_tensor(var, dtype=given.dtype, device=given.device)
    var = (var.unsqueeze(-1) if var.dim() == given.dim() - 1 else var).clamp(min=eps)
    loss = 0.5 * (var.log() + (given - target) ** 2 / var + full * math.log(2 * math.pi))
    reduction = named.get("reduction", "mean")
    return loss if reduction == "none" else getattr(loss, reduction)()


_LAYERS: Mapping[Any, Callable[..., Any]] = {
    functional.gaussian_nll_loss: _gaussian_nll,
    torch.lstm: partial(_recurrent, "Lstm"),
    torch.gru: partial(_recurrent, "Gru"),
    torch.rnn_tanh: partial(_recurrent, "Tanh"),
    torch.rnn_relu: partial(_recurrent, "Relu"),
}


_PLAIN_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch.nn.functional.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__), product_of_rows),
    torch._scaled_mm: scaled_product,
    torch.nn.functional.bilinear: _bilinear,
    **dict.fromkeys((torch.kron, torch.Tensor.kron), _kron),
    torch.nn.functional.embedding_bag: _embedding_bag,
    **dict.fromkeys((torch.take_along_dim, torch.Tensor.take_along_dim), _take_along_dim),
    **_LAYERS,
    torch.gru_cell: lambda *given: _cell("Gru", *given)[0],
    torch.lstm_cell: lambda *given: _cell("Lstm", *given)[1:],
    torch.max_pool1d: _max_pool1d,
    torch.nn.functional.max_pool1d: _max_pool1d,
}


_PLAIN_IN_FUNCTIONAL = {
    name: _PLAIN_FUNCTIONS[function]
    for name, function in vars(functional).items()
    if callable(function) and function in _PLAIN_FUNCTIONS
}


def is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in {torch.float16, torch.bfloat16} else tensor


def _var_mean(
    tensor: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    dims = list(range(tensor.dim())) if dim is None else list(dim)
    wide = _wide(tensor)
    mean = wide.mean(dims, keepdim=True)
    squares = (wide - mean).square().sum(dims, keepdim=keepdim)
    count = math.prod(tensor.shape[each] for each in dims)
    variance = squares / (count - (1 if correction is None else correction))
    return variance.to(tensor.dtype), (mean if keepdim else mean.squeeze(dims)).to(tensor.dtype)


def _batch_norm(
    tensor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,  # of the running statistics, which are not updated
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation without updating running statistics, as a kernel must not change its inputs."""
    wide = _wide(tensor)
    dims = [dim for dim in range(tensor.dim()) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(tensor.dim())]
    if training or running_mean is None or running_var is None:
        variance, mean = _var_mean(wide, dims, correction=0, keepdim=True)
    else:
        mean, variance = _wide(running_mean).view(shape), _wide(running_var).view(shape)
    scale = torch.rsqrt(variance + eps)
    found = (wide - mean) * scale
    if weight is not None:
        found = found * weight.view(shape)
    if bias is not None:
        found = found + bias.view(shape)
    return found.to(tensor.dtype), mean.flatten(), scale.flatten()


def _extreme(
    extreme: Callable[..., Tensor], place: Any, tensor: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return extreme(tensor, [dim], keepdim), place(tensor, dim, keepdim)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = left @ right
    if alpha != 1:
        product = product * alpha
    return product + (bias if beta == 1 else bias * beta)


def _repeat_interleave(tensor: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    if dim is None:
        tensor, dim = tensor.flatten(), 0
    dim %= tensor.dim()
    wide = tensor.unsqueeze(dim + 1).expand(*tensor.shape[: dim + 1], repeats, *tensor.shape[dim + 1 :])
    return wide.flatten(dim, dim + 1)


_FEW_OF_ROW = 16


def _topk(
    tensor: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The first elements in order: a few one after another, more by their rank, the number of elements before each."""
    rows = tensor.movedim(dim, -1)
    place = torch.arange(rows.shape[-1], device=tensor.device)
    if k <= _FEW_OF_ROW and tensor.is_floating_point():
        left, found = rows, []
        for _ in range(k):
            found.append((left.argmax if largest else left.argmin)(-1, keepdim=True))
            left = torch.where(place == found[-1], -math.inf if largest else math.inf, left)
        places = torch.cat(found, -1)
        return rows.gather(-1, places).movedim(-1, dim), places.movedim(-1, dim)
    here, there = rows.unsqueeze(-1), rows.unsqueeze(-2)
    before = (there > here if largest else there < here) | (
        (there == here) & (place.unsqueeze(-2) < place.unsqueeze(-1))
    )
    rank = before.sum(-1)
    wanted = torch.arange(k, device=tensor.device).unsqueeze(-1)
    places = (rank.unsqueeze(-2) == wanted).to(torch.int32).argmax(-1)
    return rows.gather(-1, places).movedim(-1, dim), places.movedim(-1, dim)


def _sort(tensor: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> tuple[Tensor, Tensor]:
    return _topk(tensor, tensor.shape[dim] if tensor.dim() else 1, dim, largest=descending)


def _kthvalue(tensor: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = _topk(tensor, k, dim, largest=False)
    found = values.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def _grid_sampler(tensor: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """Reflects before coordinates are scaled, as images of one pixel have no room to be reflected in."""
    reflected, bicubic = 2, 2
    if padding == reflected and mode != bicubic:
        far = (grid + 1).abs()
        near = torch.fmod(far, 2)
        grid = torch.where(torch.fmod(torch.floor(far / 2), 2) == 0, near - 1, 1 - near)
        padding = 1  # the border's
    found: Tensor = _GRID_SAMPLER(tensor, grid, mode, padding, align_corners)
    return found


_GRID_SAMPLER = get_decompositions([aten.grid_sampler_2d.default])[aten.grid_sampler_2d.default]


def _of_one(tensor: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Any:
    """The reduction of single elements: nothing but a view."""
    dims = dim or range(tensor.dim())
    if not tensor.is_floating_point() or not all(is_one(tensor.shape[each]) for each in dims):
        return NotImplemented
    return tensor.clone() if keepdim else tensor.squeeze(tuple(dims))


_WITHOUT_ATOMICS: Mapping[torch.dtype, torch.dtype] = {
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32),
}
"""Types of numbers that can't be added to in memory at once, and wider ones that can."""

_STARTS = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}


def _scatter_reduce(
    tensor: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Reductions into elements by index, as one of those that are kept: with atomics, and of what was there too."""
    scatter = aten.scatter_reduce.two
    if (wide := _WITHOUT_ATOMICS.get(tensor.dtype)) is not None:
        found = scatter(tensor.to(wide), dim, index, source.to(wide), reduce, include_self=include_self)
        return found.to(tensor.dtype)
    if include_self and reduce != "mean":
        return NotImplemented
    hits = torch.full_like(tensor, int(include_self), dtype=torch.int32)
    hits = hits.scatter_add(dim, index, torch.ones_like(index, dtype=torch.int32))
    if not include_self:
        limit = torch.iinfo(tensor.dtype) if not tensor.is_floating_point() else None
        start = {"amax": limit.min, "amin": limit.max}.get(reduce) if limit else None
        before = torch.full_like(tensor, _STARTS[reduce] if start is None else start)
    found = scatter(
        tensor if include_self else before, dim, index, source, "sum" if reduce == "mean" else reduce
    )
    if reduce == "mean":
        count = hits.clamp(min=1)
        found = found / count if tensor.is_floating_point() else found // count
    return torch.where(hits > 0, found, tensor)


def _scatter_add(tensor: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    if tensor.dtype not in _WITHOUT_ATOMICS:
        return NotImplemented
    return aten.scatter_reduce.two(tensor, dim, index, source, "sum")


def _scatter(
    tensor: Tensor, dim: int, index: Tensor, source: Tensor | float, *, reduce: str | None = None
) -> Any:
    """Elements that are written by index: of several that are written to one place, the last one along the axis."""
    if reduce is not None:
        if not isinstance(source, Tensor):
            source = torch.full_like(tensor, source).expand(tensor.shape)
        kind = {"add": "sum", "multiply": "prod"}[reduce]
        return aten.scatter_reduce.two(tensor, dim, index, source, kind)
    dim %= max(tensor.dim(), 1)
    order = torch.arange(index.shape[dim], dtype=torch.int32, device=tensor.device)
    order = order.view([-1 if axis == dim else 1 for axis in range(index.dim())]).expand(index.shape)
    last = torch.full_like(tensor, -1, dtype=torch.int32)
    last = last.scatter_reduce(dim, index, order, "amax")
    if isinstance(source, Tensor):
        short = [tensor.shape[axis] - index.shape[axis] if axis != dim else 0 for axis in range(index.dim())]
        places = last.clamp(min=0)
        for axis, missing in enumerate(short):
            if missing != 0:
                places, source = (
                    places.narrow(axis, 0, index.shape[axis]),
                    source.narrow(axis, 0, index.shape[axis]),
                )
        source = source.gather(dim, places)
        if any(missing != 0 for missing in short):
            pads = [pad for missing in short[::-1] for pad in (0, missing)]
            source = torch.constant_pad_nd(source, pads)
    return torch.where(last >= 0, source, tensor).to(tensor.dtype)


def _index_put(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    chosen = [dim for dim, each in enumerate(indices) if each is not None]
    masks = [each for each in indices if each is not None and each.dtype in {torch.bool, torch.uint8}]
    if masks:
        if len(chosen) != 1 or values.dim() or accumulate:
            raise PlainCudaError("This function writes several values by a boolean mask.")
        shape = [1] * chosen[0] + list(masks[0].shape) + [1] * (tensor.dim() - chosen[0] - masks[0].dim())
        return torch.where(masks[0].view(shape), values.to(tensor.dtype), tensor)
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        order = chosen + [dim for dim in range(tensor.dim()) if dim not in chosen]
        moved = _index_put(tensor.permute(order), [indices[dim] for dim in chosen], values, accumulate)
        return moved.permute([order.index(dim) for dim in range(tensor.dim())])
    first, behind = chosen[0], chosen[-1] + 1
    places = torch.broadcast_tensors(*(indices[dim] for dim in chosen))  # type: ignore[no-untyped-call]
    flat = torch.zeros_like(places[0])
    for dim, place in zip(chosen, places, strict=True):
        flat = flat * tensor.shape[dim] + torch.where(place < 0, place + tensor.shape[dim], place)
    values = values.expand(*tensor.shape[:first], *flat.shape, *tensor.shape[behind:])
    count, rank = flat.numel(), tensor.dim() - len(chosen) + 1
    values = values.reshape(*tensor.shape[:first], count, *tensor.shape[behind:])
    rows = tensor.reshape(*tensor.shape[:first], -1, *tensor.shape[behind:])
    shape = [count if dim == first else 1 for dim in range(rank)]
    if accumulate:
        found = rows.scatter_add(first, flat.reshape(shape).expand(values.shape), values.to(rows.dtype))
    else:
        # Which row is written last is found out once for all of its elements.
        last = torch.full([rows.shape[first]], -1, dtype=torch.int32, device=tensor.device)
        numbers = torch.arange(count, dtype=torch.int32, device=tensor.device)
        last = last.scatter_reduce(0, flat.reshape(-1), numbers, "amax")
        taken = values.index_select(first, last.clamp(min=0))
        found = torch.where(last.view([-1, *[1] * (rank - 1 - first)]) >= 0, taken.to(rows.dtype), rows)
    return found.reshape(tensor.shape)


def _index_reduce(
    tensor: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    index = index.view([-1 if axis == dim % tensor.dim() else 1 for axis in range(tensor.dim())])
    return aten.scatter_reduce.two(
        tensor, dim, index.expand(source.shape), source, reduce, include_self=include_self
    )


_OWN: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default), _of_one),
    aten.var_mean.correction: _var_mean,
    aten.var.correction: lambda *given, **named: _var_mean(*given, **named)[0],
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: lambda *x: _batch_norm(*x[:5], False, *x[5:]),  # type: ignore[call-arg]
    aten._native_batch_norm_legit.no_stats: lambda *x: _batch_norm(*x[:3], None, None, *x[3:]),  # type: ignore[call-arg]
    aten.max.dim: partial(_extreme, aten.amax.default, aten.argmax.default),
    aten.min.dim: partial(_extreme, aten.amin.default, aten.argmin.default),
    aten.detach.default: lambda tensor: tensor,
    aten.clone.default: lambda tensor, memory_format=torch.preserve_format: (
        tensor if memory_format is torch.preserve_format else NotImplemented
    ),
    aten.round.decimals: lambda tensor, *, decimals: torch.round(tensor * 10.0**decimals) / 10.0**decimals,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten.bmm.default: lambda left, right: (
        (left.squeeze(0) @ right.squeeze(0)).unsqueeze(0) if is_one(left.shape[0]) else NotImplemented
    ),
    aten.addmv.default: _addmm,
    **dict.fromkeys((aten.sort.default, aten.sort.stable), _sort),
    aten.topk.default: _topk,
    aten.median.dim: lambda rows, dim=-1, keep=False: _kthvalue(rows, (rows.shape[dim] + 1) // 2, dim, keep),
    aten.kthvalue.default: _kthvalue,
    aten._cdist_forward.default: lambda one, other, p, _: torch.linalg.vector_norm(
        one.unsqueeze(-2) - other.unsqueeze(-3), p, -1
    ),
    aten.rrelu_with_noise.default: lambda x, _, lower=1 / 8, upper=1 / 3, training=False, *_given: (
        NotImplemented if training else functional.leaky_relu(x, (lower + upper) / 2)
    ),
    aten.grid_sampler_2d.default: _grid_sampler,
    aten.repeat_interleave.self_int: _repeat_interleave,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.scatter_add.default: _scatter_add,
    **dict.fromkeys((aten.scatter.src, aten.scatter.value), _scatter),
    **dict.fromkeys((aten.scatter.reduce, aten.scatter.value_reduce), _scatter),
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.index_reduce.default: _index_reduce,
}
