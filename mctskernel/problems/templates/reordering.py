"""Sums, means and average pools moved before the product or convolution whose results they reduce.

Both are linear: sum_j(x w_j + b_j) = x sum_j(w_j) + sum_j(b_j), and the mean of a convolution's results is the convolution of
means. That saves most of the work. Nothing is known beforehand: weights are summed at every call, too.
"""

from __future__ import annotations

import math
from functools import reduce
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from mctskernel.problems.plain_cuda.rules import argument, axis, base_name, is_tensor

MOST_EDGES = 8
"""Pixels at an edge that not all taps see, up to which a convolution is computed of sums along an axis."""

_FLAT = {"view", "_unsafe_view", "unsqueeze", "squeeze", "clone", "alias"}
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
            return tensor.mean(list(axes), True) if axes else tensor
        for each in axes:
            size, _ = self.windows[self.axes.index(each)]
            count = tensor.shape[each] // size
            tensor = tensor.narrow(each, 0, count * size).unflatten(each, (count, size)).mean(each + 1)
        return tensor


class Reordered(Interpreter):
    """A traced function with reductions moved where that saves work; after a call `titles` say which."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.titles: dict[str, None] = {}

    def run_node(self, n: Node) -> Any:
        """The value of a node; that of a reduction by another way, if there is one."""
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
                found[number] = mean.of(_wide(scaled, whole), axes) if axes else scaled
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
                    return found * by if is_product else found / by
            elif mean == _Mean((whole.dim() - 1,)) and all(map(_is_one, by.shape[:-1])):
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
        left, right = map(self._given, node.args)
        row, column = left.dim() - 2, left.dim() - 1
        if not {row, column}.issuperset(mean.axes) or mean.overlap:
            return None
        of = "weights" if column in mean.axes else "rows"
        self.titles[f"means of {of} before the product"] = None
        right = right if factor is None else right * factor
        left = mean.of(left, [row] if row in mean.axes else [])
        if column not in mean.axes:
            return left @ right if mean.windows else (left.transpose(-1, -2) * right).sum(-2, True)
        # Weights are reduced as they are in memory.
        is_turned = base_name(node.args[1]) == "permute"  # type: ignore[arg-type] # a node
        lines = mean._replace(axes=(row,)).of(right.mT, [row]) if is_turned else mean.of(right, [column]).mT
        return left @ lines.mT if mean.windows else (left * lines).sum(-1, True)

    def _of_convolution(self, node: Node, mean: _Mean) -> Tensor | None:
        image, weight, bias, *_, groups = (self._given(each) for each in node.args)
        geometry, whole = _Geometry.of(node), self.env[node]
        rank, transposed = len(geometry.kernel), geometry.transposed
        spatial = [each - 2 for each in mean.axes if each > 1]
        if mean.windows:
            if len(spatial) < len(mean.axes) or set(geometry.stride) != {1} or transposed:
                return None
            windows = [dict(zip(spatial, mean.windows, strict=True)).get(at, (1, 1)) for at in range(rank)]
            self.titles[f"average pooling before the {'' if geometry.is_wide else '1x1 '}convolution"] = None
            return geometry.pooled(image, weight, bias, windows, groups)
        if (1 in mean.axes and groups != 1) or not all(map(geometry.edges, spatial)):
            return None
        self.titles[f"means of {'weights' if 1 in mean.axes else 'images'} before the convolution"] = None
        image = mean.of(image, [each for each in mean.axes if each == 0])
        if 1 in mean.axes:
            weight, bias = weight.mean(int(transposed), True), bias if bias is None else bias.mean(0, True)
        for each in spatial:
            # Taps along an axis that is gone are further channels.
            image = geometry.tap_sums(image, each).flatten(1, 2) / whole.shape[each + 2]
            start = 0 if transposed else 1
            weight = weight.movedim(each + 2, start + 1).flatten(start, start + 1).unsqueeze(each + 2)
        if len(spatial) == rank and groups == 1:
            matrix = weight.flatten(1)
            found = image.flatten(1) @ (matrix if transposed else matrix.t())
            found = found if bias is None else found + bias
            return found.reshape(*found.shape, *[1] * rank)
        return torch.convolution(image, weight, bias, *geometry.without(spatial), groups)


class _Geometry(NamedTuple):
    """What a convolution does along the axes of an image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    more: tuple[int, ...]

    @staticmethod
    def of(node: Node) -> _Geometry:
        kernel = argument(node, "weight").meta["val"].shape[2:]
        names = ("stride", "padding", "dilation", "output_padding")
        stride, padding, dilation, more = (_each(argument(node, name), len(kernel)) for name in names)
        return _Geometry(tuple(kernel), stride, padding, dilation, argument(node, "transposed"), more)

    @property
    def is_wide(self) -> bool:
        return any(each != 1 for each in self.kernel)

    def edges(self, at: int) -> list[tuple[int, int]]:
        """How many pixels before and behind those that each tap along an axis sees; empty where it isn't known."""
        size, stride, padding, dilation = (
            each[at] for each in (self.kernel, self.stride, self.padding, self.dilation)
        )
        last = dilation * (size - 1)
        if last > MOST_EDGES or (stride != 1 and not self.transposed):
            return []
        places = [dilation * tap for tap in range(size)]
        if not self.transposed:
            return [(max(0, place - padding), max(0, last - place - padding)) for place in places]
        more = self.more[at] - padding
        return [(max(0, -((place - padding) // stride)), max(0, -((last - place + more) // stride))) for place in places]

    def tap_sums(self, image: Tensor, at: int) -> Tensor:
        """The sums of what each tap sees along an axis, in a new axis behind the channels: all but the edges."""
        edges, dim = self.edges(at), at + 2
        most = max(map(max, edges))
        total = image.sum(dim, True)
        # Of short images an edge has pixels outside.
        wide = F.pad(image, [*[0, 0] * (image.dim() - 1 - dim), most, most]) if most else image
        first = [wide.select(dim, most + each).unsqueeze(dim) for each in range(most)]
        last = [wide.select(dim, -1 - most - each).unsqueeze(dim) for each in range(most)]
        return torch.stack([reduce(torch.sub, [*first[:low], *last[:high]], total) for low, high in edges], 2)

    def without(self, gone: Sequence[int]) -> tuple[Any, ...]:
        """The arguments of a convolution without some of the axes, of which one pixel is left."""
        lists = ((self.stride, 1), (self.padding, 0), (self.dilation, 1), (self.more, 0))
        stride, padding, dilation, more = (
            [empty if at in gone else each for at, each in enumerate(values)] for values, empty in lists
        )
        return stride, padding, dilation, self.transposed, more

    def pooled(self, image: Tensor, weight: Tensor, bias: Tensor | None, windows: Sequence[tuple[int, int]], groups: int) -> Tensor:
        """The convolution of means of windows: of all, to step over, or, where it has one tap along an axis, of its own."""
        rank = len(self.kernel)
        image = F.pad(image, [each for pads in self.padding[::-1] for each in (pads, pads)]) if any(self.padding) else image
        steps = [step if size == 1 else 1 for size, (_, step) in zip(self.kernel, windows, strict=True)]
        image = _POOLS[f"avg_pool{rank}d"](image, [size for size, _ in windows], steps)
        stride = [step // own for own, (_, step) in zip(steps, windows, strict=True)]
        return torch.convolution(image, weight, bias, stride, [0] * rank, list(self.dilation), False, [0] * rank, groups)


def _mean(node: Node) -> _Mean | None:
    """The reduction that a node is; None for anything else."""
    if node.op != "call_function" or not (_is_float(node) and _is_float(node.args[0])):
        return None
    name, rank = base_name(node), node.args[0].meta["val"].dim()  # type: ignore[union-attr] # a node
    if name in {"sum", "mean"}:
        dims = argument(node, "dim") if "dim" in str(node.target) else None
        axes = tuple(sorted(axis(node.args[0], each) for each in dims or range(rank)))
        return _Mean(axes) if axes else None
    if name not in _POOLS or argument(node, "ceil_mode") or any(argument(node, "padding")):
        return None
    if name != "avg_pool1d" and argument(node, "divisor_override"):
        return None
    count = int(name.removeprefix("avg_pool")[0])
    sizes = _each(argument(node, "kernel_size"), count)
    steps = _each(argument(node, "stride") or sizes, count)
    windows = {
        rank - count + at: each
        for at, each in enumerate(zip(sizes, steps, strict=True))
        if each != (1, 1)
    }
    return _Mean(tuple(windows), tuple(windows.values())) if windows else None


def _each(values: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(values) * (count if len(values) == 1 else 1)


def _is_float(node: Any) -> bool:
    return is_tensor(node) and node.meta["val"].dtype is torch.float32


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _wide(term: Any, whole: Tensor) -> Tensor:
    """A term with as many axes as the whole has."""
    return term.reshape([1] * (whole.dim() - term.dim()) + list(term.shape))


def _varying(term: Any, whole: Tensor, mean: _Mean) -> list[int]:
    """The axes along which a term isn't the same everywhere."""
    if not isinstance(term, Tensor):
        return []
    shape = [1] * (whole.dim() - term.dim()) + list(term.shape)
    return [each for each in mean.axes if not _is_one(shape[each])]


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
