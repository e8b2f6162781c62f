"""Sums, means and average pools moved before the product or convolution whose results they reduce.

Both are linear: sum_j(x w_j + b_j) = x sum_j(w_j) + sum_j(b_j), and the mean of a convolution's results is the
convolution of means. That saves most of the work. Nothing is known beforehand: weights are summed at every call, too.
Products with the diagonal matrix of a vector become multiples of rows or columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from mctskernel.problems.plain_cuda.decompositions import is_one
from mctskernel.problems.plain_cuda.products import for_each_axis, pooled_rank
from mctskernel.problems.plain_cuda.rules import argument, axis, base_name, is_tensor
from mctskernel.problems.plain_cuda.tracing import Traced

MOST_EDGES = 8
"""Pixels at an edge that not all taps see, up to which a convolution is computed of sums along an axis."""

_FLAT = {"view", "_unsafe_view", "unsqueeze", "squeeze", "clone", "alias"}
_LINEAR = {"add", "sub", "mul", "div", "mm", "bmm", "convolution", *_FLAT}
_POOLS = {"avg_pool1d": F.avg_pool1d, "avg_pool2d": F.avg_pool2d, "avg_pool3d": F.avg_pool3d}


class _Mean(NamedTuple):
    """The mean along each of the axes, which stay: of everything, or of windows with a size and a step."""

    axes: tuple[int, ...]
    windows: tuple[tuple[int, int], ...] = ()

    @property
    def overlap(self) -> bool:
        """Whether windows overlap, or have gaps between them."""
        return any(size != step for size, step in self.windows)

    def of(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        """The means of a tensor along some of the axes, in windows beside each other."""
        if not self.windows:
            return tensor.mean(list(axes), keepdim=True) if axes else tensor
        for each in axes:
            size, _ = self.windows[self.axes.index(each)]
            count = tensor.shape[each] // size
            tensor = tensor.narrow(each, 0, count * size)
            tensor = tensor.unflatten(each, (count, size)).mean(each + 1)  # type: ignore[no-untyped-call]
        return tensor


def reordered(traced: Traced) -> Traced | None:
    """The same function with reductions moved; None where no work is saved."""
    graph = traced.outputs[0].graph
    if not any(
        base_name(node) == "diag_embed" or (_mean(node) and base_name(node.args[0]) in _LINEAR)
        for node in graph.nodes
    ):
        return None
    function = _Reordered(graph.owning_module, garbage_collect_values=False)
    found = traced.again(function.run, function.titles)
    return found if found.moved else None


class _Reordered(Interpreter):
    """The function of a graph with reductions moved; after a call `titles` say which."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.titles: dict[str, None] = {}

    def run_node(self, n: Node) -> Any:
        """The value of a node; that of a reduction by another way, if there is one."""
        operands: Any = n.args
        for turned, (each, other) in enumerate((operands, operands[::-1]) if base_name(n) == "mm" else ()):
            if base_name(each) == "diag_embed":
                self.titles["the product with a diagonal matrix as a multiple"] = None
                return self._given(other) * self._given(each.args[0]).unsqueeze(-2 if turned else -1)
        value = super().run_node(n)
        mean = _mean(n)
        moved = None if mean is None else self._moved(n.args[0], mean)
        if moved is None or mean is None:
            return value
        if base_name(n) == "sum":
            shape = self._given(n.args[0]).shape
            moved = moved * math.prod(shape[each] for each in mean.axes)
        return moved if moved.dim() == value.dim() else moved.squeeze(mean.axes)

    def _given(self, given: Any) -> Any:
        return self.env[given] if isinstance(given, Node) else given

    def _moved(self, node: Any, mean: _Mean, factor: Tensor | None = None) -> Tensor | None:
        """The mean of a node, or of its product with factors of its last axis; None where it saves nothing."""
        if not _is_float(node) or node.op != "call_function" or len(node.users) != 1 or node.kwargs:
            return None
        name = base_name(node)
        if name in {"add", "sub"}:
            return self._of_sum(node, mean, factor)
        if name in {"mul", "div"}:
            return self._of_multiple(node, mean, factor)
        if name in {"mm", "bmm"}:
            return self._of_product(node, mean, factor)
        if name == "convolution" and factor is None:
            return self._of_convolution(node, mean)
        return self._of_view(node, mean, factor) if name in _FLAT else None

    def _of_sum(self, node: Node, mean: _Mean, factor: Tensor | None) -> Tensor | None:
        whole, terms = self.env[node], [self._given(each) for each in node.args]
        found: list[Any] = [
            self._moved(each, mean, factor) if _is_same(term, whole) else None
            for each, term in zip(node.args, terms, strict=True)
        ]
        if all(each is None for each in found):
            return None
        for number, term in enumerate(terms):
            if found[number] is None:
                scaled = term if factor is None else term * factor
                axes = _varying(scaled, whole, mean)
                if axes and mean.overlap:
                    return None
                if axes:
                    scaled = mean.of(scaled.reshape(*[1] * (whole.dim() - scaled.dim()), *scaled.shape), axes)
                found[number] = scaled
        return node.target(*found)  # type: ignore[operator,no-any-return] # an operator

    def _of_multiple(self, node: Node, mean: _Mean, factor: Tensor | None) -> Tensor | None:
        whole, is_product = self.env[node], base_name(node) == "mul"
        for source, other in (node.args, node.args[::-1])[: 1 + is_product]:
            by = self._given(other)
            varies = _varying(by, whole, mean)
            if not _is_same(self._given(source), whole):
                continue
            if not varies:
                found = self._moved(source, mean, factor)
                if found is not None:
                    return found * by if is_product else found / by  # type: ignore[no-any-return]
            elif mean == _Mean((whole.dim() - 1,)) and all(map(is_one, by.shape[:-1])):
                by = (by if is_product else 1 / by).flatten()
                found = self._moved(source, mean, by if factor is None else by * factor)
                if found is not None:
                    return found
        return None

    def _of_view(self, node: Node, mean: _Mean, factor: Tensor | None) -> Tensor | None:
        """Through a view that leaves the axes as they are, counted from the first one or the last one."""
        before, after = self._given(node.args[0]).shape, self.env[node].shape
        for fewer in dict.fromkeys((0, len(after) - len(before))):
            if all(_is_kept(before, after, each, fewer) for each in mean.axes):
                axes = tuple(each - fewer for each in mean.axes)
                is_last = factor is None or axes == (len(before) - 1,)
                found = self._moved(node.args[0], mean._replace(axes=axes), factor) if is_last else None
                if found is None:
                    return None
                shape = list(after)
                for one, other in zip(mean.axes, axes, strict=True):
                    shape[one] = found.shape[other]
                return found.reshape(shape)
        return None

    def _of_product(self, node: Node, mean: _Mean, factor: Tensor | None) -> Tensor | None:
        left: Tensor
        right: Tensor
        left, right = map(self._given, node.args)
        row, column = left.dim() - 2, left.dim() - 1
        if not {row, column}.issuperset(mean.axes) or mean.overlap:
            return None
        of = "weights" if column in mean.axes else "rows"
        self.titles[f"means of {of} before the product"] = None
        right = right if factor is None else right * factor
        left = mean.of(left, [row] if row in mean.axes else [])
        if column not in mean.axes:
            return left @ right if mean.windows else (left.mT * right).sum(-2, keepdim=True)
        # Weights are reduced as they are in memory.
        is_turned = base_name(node.args[1]) == "permute"  # type: ignore[arg-type] # a node
        lines = mean._replace(axes=(row,)).of(right.mT, [row]) if is_turned else mean.of(right, [column]).mT
        return left @ lines.mT if mean.windows else (left * lines).sum(-1, keepdim=True)

    def _of_convolution(self, node: Node, mean: _Mean) -> Tensor | None:
        image: Tensor
        image, weight, bias, *_, transposed, _, groups = map(self._given, node.args)
        axes, whole = _axes_of(node), self.env[node]
        spatial, rank = [each - 2 for each in mean.axes if each > 1], len(axes)
        if mean.windows:
            if len(spatial) < len(mean.axes) or (transposed and groups != 1):
                return None
            windows = [dict(zip(spatial, mean.windows, strict=True)).get(at, (1, 1)) for at in range(rank)]
            found = (_pooled_weights if transposed else _pooled_images)(image, weight, axes, windows)
            if found is None:
                return None
            is_wide = any(each.size != 1 for each in axes)
            self.titles[f"average pooling before the {'' if is_wide else '1x1 '}convolution"] = None
            image, weight, stride = found
            apart = [1 if transposed else each.dilation for each in axes]
            none, turned = [0] * rank, False
            return torch.convolution(image, weight, bias, stride, none, apart, turned, none, groups)
        edges = [each.edges(transposed=transposed) for each in axes]
        if (1 in mean.axes and groups != 1) or not all(edges[each] for each in spatial):
            return None
        self.titles[f"means of {'weights' if 1 in mean.axes else 'images'} before the convolution"] = None
        if 0 in mean.axes:
            image = image.mean(0, keepdim=True)
        if 1 in mean.axes:
            weight = weight.mean(int(transposed), keepdim=True)
            bias = bias if bias is None else bias.mean(0, keepdim=True)
        for at in spatial:
            # Taps along an axis that is gone are further channels.
            image = _sums_of_taps(image, at + 2, edges[at]).flatten(1, 2) / whole.shape[at + 2]
            start = 0 if transposed else 1
            weight = weight.movedim(at + 2, start + 1).flatten(start, start + 1).unsqueeze(at + 2)
            axes[at] = _Axis(1, 1, 0, 1, 0)
        if len(spatial) == rank and groups == 1:
            matrix = weight.flatten(1)
            flat: Tensor = image.flatten(1) @ (matrix if transposed else matrix.t())
            flat = flat if bias is None else flat + bias
            return flat.reshape(*flat.shape, *[1] * rank)
        _, stride, padding, dilation, more = (list(each) for each in zip(*axes, strict=True))
        return torch.convolution(image, weight, bias, stride, padding, dilation, transposed, more, groups)


class _Axis(NamedTuple):
    """What a convolution does along an axis; `more` results are at its end if it is transposed."""

    size: int
    stride: int
    padding: int
    dilation: int
    more: int

    def edges(self, *, transposed: bool) -> list[tuple[int, int]]:
        """How many pixels before and behind those that each tap sees; empty where it isn't known."""
        last, stride, before = self.dilation * (self.size - 1), self.stride, self.padding
        if last > MOST_EDGES or (stride != 1 and not transposed):
            return []
        places = range(0, last + 1, self.dilation)
        if not transposed:
            return [(max(0, each - before), max(0, last - each - before)) for each in places]
        behind = before - self.more
        # Roundings upwards.
        return [
            (max(0, -((each - before) // stride)), max(0, -((last - each - behind) // stride)))
            for each in places
        ]


def _axes_of(node: Node) -> list[_Axis]:
    size = argument(node, "weight").meta["val"].shape[2:]
    names = ("stride", "padding", "dilation", "output_padding")
    return list(map(_Axis, size, *(for_each_axis(argument(node, name), len(size)) for name in names)))


def _sums_of_taps(image: Tensor, axis: int, edges: Sequence[tuple[int, int]]) -> Tensor:
    """The sums of what each tap sees along an axis, in a new axis behind the channels: of everything but the edges."""
    most, total = max(map(max, edges)), image.sum(axis, keepdim=True)
    # Of short images an edge has pixels outside.
    wide = F.pad(image, [0, 0] * (image.dim() - 1 - axis) + [most, most]) if most else image
    first, last = (
        [wide.select(axis, each).unsqueeze(axis) for each in places]
        for places in (range(most, 2 * most), range(-1 - most, -1 - 2 * most, -1))
    )
    return torch.stack([reduce(torch.sub, [*first[:low], *last[:high]], total) for low, high in edges], 2)


_Pooled = tuple[Tensor, Tensor, list[int]]
"""Images, weights and strides of a convolution of results that are pooled already."""


def _pooled_images(
    image: Tensor, weight: Tensor, axes: Sequence[_Axis], windows: Sequence[tuple[int, int]]
) -> _Pooled | None:
    """The means of all windows of images, or those that are needed where the convolution has one tap."""
    if any(each.stride != 1 for each in axes):
        return None
    pads = [each.padding for each in reversed(axes) for _ in range(2)]
    steps = [step if each.size == 1 else 1 for each, (_, step) in zip(axes, windows, strict=True)]
    image = F.pad(image, pads) if any(pads) else image
    image = _POOLS[f"avg_pool{len(axes)}d"](image, [size for size, _ in windows], steps)
    return image, weight, [step // own for own, (_, step) in zip(steps, windows, strict=True)]


def _pooled_weights(
    image: Tensor, weight: Tensor, axes: Sequence[_Axis], windows: Sequence[tuple[int, int]]
) -> _Pooled | None:
    """The means of a transposed convolution's weights for each pixel that a window depends on: of a plain one."""
    pads: list[int] = []
    for at, (along, (size, step)) in enumerate(zip(axes, windows, strict=True)):
        taps: dict[int, list[Tensor]] = {}
        for place, tap in itertools.product(range(size), range(along.size)):
            pixel, rest = divmod(place + along.padding - tap * along.dilation, along.stride)
            if rest == 0:
                taps.setdefault(pixel, []).append(weight.select(at + 2, tap))
        first, last = min(taps, default=0), max(taps, default=0)
        if step % along.stride or not last - first < len(taps) <= MOST_EDGES:
            return None
        summed = [reduce(torch.add, taps[each]) for each in range(first, last + 1)]
        weight = torch.stack(summed, at + 2) / size
        end = along.dilation * (along.size - 1) + along.more + 1 - size - 2 * along.padding
        pads = [-first, last + end // along.stride, *pads]
    image = F.pad(image, pads) if any(pads) else image
    steps = [step // along.stride for along, (_, step) in zip(axes, windows, strict=True)]
    return image, weight.transpose(0, 1), steps


def _mean(node: Node) -> _Mean | None:
    """The reduction that a node is; None for anything else."""
    source: Any = node.args[0] if node.op == "call_function" and node.args else None
    if not (_is_float(node) and _is_float(source)):
        return None
    name, rank = base_name(node), source.meta["val"].dim()
    if name in {"sum", "mean"}:
        dims = argument(node, "dim") if "dim" in str(node.target) else None
        axes = tuple(sorted(axis(source, each) for each in dims or range(rank)))
        return _Mean(axes) if axes else None
    if name not in _POOLS or argument(node, "ceil_mode") or any(argument(node, "padding")):
        return None
    if name != "avg_pool1d" and argument(node, "divisor_override"):
        return None
    count = pooled_rank(node)
    sizes = for_each_axis(argument(node, "kernel_size"), count)
    steps = for_each_axis(argument(node, "stride") or sizes, count)
    found = enumerate(zip(sizes, steps, strict=True), rank - count)
    windows = {at: each for at, each in found if each != (1, 1)}
    return _Mean(tuple(windows), tuple(windows.values())) if windows else None


def _is_float(node: Any) -> bool:
    return is_tensor(node) and node.meta["val"].dtype is torch.float32


def _varying(term: Any, whole: Tensor, mean: _Mean) -> list[int]:
    """The axes along which a term isn't the same everywhere."""
    if not isinstance(term, Tensor):
        return []
    shape = [1] * (whole.dim() - term.dim()) + list(term.shape)
    return [each for each in mean.axes if not is_one(shape[each])]


def _is_same(term: Any, whole: Tensor) -> bool:
    """Whether a term has the shape of the whole."""
    return isinstance(term, Tensor) and _are_equal(term.shape, whole.shape)


def _are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(
        statically_known_true(a == b) for a, b in zip(one, other, strict=True)
    )


def _is_kept(before: Sequence[Any], after: Sequence[Any], dim: int, fewer: int) -> bool:
    """Whether a view keeps an axis, and all before it or, as it has `fewer` axes more in front, all behind it."""
    if not 0 <= dim - fewer < len(before):
        return False
    if fewer:
        return _are_equal(before[dim - fewer :], after[dim:])
    return _are_equal(before[: dim + 1], after[: dim + 1])
