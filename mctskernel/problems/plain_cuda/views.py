"""Operators that move elements or make constants: views, padding, concatenation, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.body import Body, Index, grouped, minus, node_type, numbers, plus, times
from mctskernel.problems.plain_cuda.element_types import converted, literal
from mctskernel.problems.plain_cuda.extents import ONE, in_cpp, product, same
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    argument,
    axis,
    base_name,
    operand,
    rule,
    scalar,
    source_of,
    takes,
    tensors,
)


@rule(*"alias clone contiguous detach lift_fresh_copy lift_fresh _conj positive".split(), kind=Kind.VIEW)
def _same(body: Body, node: Node, index: Index) -> str:
    return body.read(argument(node, "self"), index)


@rule("view", "reshape", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze", "flatten", kind=Kind.VIEW)
def _reshape(body: Body, node: Node, index: Index) -> str:
    source: Any = node.args[0]
    return body.read(source, reshaped(body, index, body.extents(node), body.extents(source)))


@rule("expand", "broadcast_to", kind=Kind.VIEW)
def _expand(body: Body, node: Node, index: Index) -> str:
    return operand(body, node.args[0], index, numbers(node))


@rule("permute", "t", "transpose", kind=Kind.VIEW)
def _permute(body: Body, node: Node, index: Index) -> str:
    order = list(range(len(index)))
    match base_name(node):
        case "permute":
            order = [axis(node, dim) for dim in argument(node, "dims")]
        case "transpose":
            left, right = (axis(node, argument(node, name)) for name in ("dim0", "dim1"))
            order[left], order[right] = right, left
        case _:
            order.reverse()
    found = ["0"] * len(index)
    for each, dim in zip(index, order, strict=True):
        found[dim] = each
    return body.read(node.args[0], found)


def keeps_order(node: Node) -> bool:
    """Whether a node has the elements of the tensor that it reads, in the same order."""
    name = base_name(node) if node.op == "call_function" else ""
    if name in {"permute", "transpose", "t"}:
        return all(each.meta["val"].is_contiguous() for each in (node, *tensors(node)))
    return name in {"view", "_unsafe_view", "clone", "alias", "unsqueeze", "squeeze"}


@rule("select", kind=Kind.VIEW)
def _select(body: Body, node: Node, index: Index) -> str:
    source: Any = node.args[0]
    dim = axis(source, argument(node, "dim"))
    place = _from_start(body, source, dim, argument(node, "index"))
    return body.read(source, (*index[:dim], place, *index[dim:]))


@rule("slice", kind=Kind.VIEW)
def _slice(body: Body, node: Node, index: Index) -> str:
    source = node.args[0]
    dim = axis(node, argument(node, "dim"))
    start = _from_start(body, source, dim, argument(node, "start") or 0)
    step = str(argument(node, "step"))
    return body.read(source, _moved(index, dim, plus(start, times(index[dim], step))))


@rule("flip", kind=Kind.VIEW)
def _flip(body: Body, node: Node, index: Index) -> str:
    extents, found = body.extents(node), list(index)
    for dim in (axis(node, each) for each in argument(node, "dims")):
        last = f"{body.size(extents[dim])} - 1"
        twice = index[dim].removeprefix(f"{last} - ")
        found[dim] = "0" if extents[dim] == ONE else twice if twice != index[dim] else minus(last, index[dim])
    return body.read(node.args[0], found)


@rule("split_with_sizes", kind=Kind.VIEW)
def _split(body: Body, node: Node, index: Index) -> str:
    source, part = source_of(node)
    dim = axis(node, argument(source, "dim"))
    start = sum((body.expression(size) for size in argument(source, "split_sizes")[:part]), sympy.Integer(0))
    return body.read(source.args[0], _moved(index, dim, plus(body.size(start), index[dim])))


@rule("diagonal", kind=Kind.VIEW)
def _diagonal(body: Body, node: Node, index: Index) -> str:
    source: Any = node.args[0]
    first, second = (axis(source, argument(node, name)) for name in ("dim1", "dim2"))
    offset = int(argument(node, "offset"))
    along = {
        first: plus(index[-1], str(max(-offset, 0))),
        second: plus(index[-1], str(max(offset, 0))),
    }
    others = iter(index[:-1])
    return body.read(source, [along.get(dim) or next(others) for dim in range(len(index) + 1)])


@rule("diag_embed", kind=Kind.ELEMENT)
def _diag_embed(body: Body, node: Node, index: Index) -> str:
    if node.args[1:] or node.kwargs:
        raise PlainCudaError("This function makes matrices of other diagonals than the first.")
    value = body.read(node.args[0], index[:-1])
    row, column = map(grouped, index[-2:])
    return body.let(node_type(node), "diag_embed", f"{row} == {column} ? {value} : 0")


@rule("as_strided", kind=Kind.VIEW)
def _as_strided(body: Body, node: Node, index: Index) -> str:
    source: Any = node.args[0]
    extents = body.extents(node)
    strides = [body.expression(stride) for stride in argument(node, "stride")]
    offset = body.expression(argument(node, "storage_offset") or 0)
    dense = all(
        extent == ONE or same(stride, product(extents[axis + 1 :]))
        for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True))
    )
    if offset == 0 and dense and same(product(extents), product(body.extents(source))):
        return body.read(source, reshaped(body, index, extents, body.extents(source)))
    flat = in_cpp(offset)
    for each, stride in zip(index, strides, strict=True):
        flat = plus(flat, times(each, in_cpp(stride)))
    return body.read(source, body.unflat(_held(body, flat), body.extents(source)))


@rule("repeat", kind=Kind.VIEW)
def _repeat(body: Body, node: Node, index: Index) -> str:
    source: Any = node.args[0]
    extents = body.extents(source)
    inner = index[len(index) - len(extents) :]
    found = [
        "0" if extent == ONE else f"{each} % {body.size(extent)}"
        for each, extent in zip(inner, extents, strict=True)
    ]
    return body.read(source, [body.let(body.index_type, "inner", each) for each in found])


@rule("cat", kind=Kind.ELEMENT)
def _cat(body: Body, node: Node, index: Index) -> str:
    tensors = [each for each in argument(node, "tensors") if each.meta["val"].dim() or len(index) == 0]
    dim, dtype = axis(node, argument(node, "dim")), numbers(node)
    kind = node_type(node)
    found = body.variable(kind, node.name, literal(0, dtype))
    start: sympy.Expr = sympy.Integer(0)
    for number, tensor in enumerate(tensors):
        end = start + body.extents(tensor)[dim]
        test = f"{'else ' if number else ''}if ({index[dim]} < {in_cpp(end)}) {{"
        before = body.size(start)
        with body.block("else {" if 0 < number == len(tensors) - 1 else test):
            value = body.read(tensor, _moved(index, dim, minus(index[dim], before)))
            body.line(f"{found} = {converted(value, numbers(tensor), dtype)};")
        start = end
    return found


@rule("slice_scatter", "select_scatter", kind=Kind.ELEMENT)
def _scattered(body: Body, node: Node, index: Index) -> str:
    """A tensor with a slice, or one index along an axis, replaced by another tensor."""
    source, other = argument(node, "self"), argument(node, "src")
    dim = axis(node, argument(node, "dim"))
    value = body.variable(node_type(node), node.name, body.read(source, index))
    if "select" in str(node.target):
        test = f"{index[dim]} == {_from_start(body, node, dim, argument(node, 'index'))}"
        inner = (*index[:dim], *index[dim + 1 :])
    else:
        step = int(argument(node, "step"))
        start = _from_start(body, node, dim, argument(node, "start") or 0)
        offset = body.let(body.index_type, "offset", minus(index[dim], start))
        every = f" && {offset} % {step} == 0" if step != 1 else ""
        end = body.let(body.index_type, "count", in_cpp(body.extents(other)[dim]))
        test = f"{offset} >= 0 && {offset} < {times(end, str(step))}{every}"
        inner = _moved(index, dim, offset if step == 1 else f"{offset} / {step}")
    with body.block(f"if ({test}) {{"):
        body.line(f"{value} = {operand(body, other, inner, numbers(node))};")
    return value


@rule("constant_pad_nd", kind=Kind.ELEMENT)
def _pad(body: Body, node: Node, index: Index) -> str:
    source, pad = node.args[0], argument(node, "pad")
    extents = body.extents(source)  # type: ignore[arg-type]
    found, tests = list(index), []
    for place in range(0, len(pad), 2):
        dim = len(index) - 1 - place // 2
        before = body.expression(pad[place])
        if before == 0 and body.expression(pad[place + 1]) == 0:
            continue
        found[dim] = body.let(body.index_type, "inner", minus(index[dim], in_cpp(before)))
        tests.append(f"{found[dim]} >= 0 && {found[dim]} < {body.size(extents[dim])}")
    value = body.variable(node_type(node), node.name, scalar(body, argument(node, "value"), numbers(node)))
    with body.block(f"if ({' && '.join(tests) or 'true'}) {{"):
        body.line(f"{value} = {body.read(source, found)};")
    return value


@rule("full", "full_like", "new_full", "scalar_tensor", kind=Kind.VIEW)
def _full(body: Body, node: Node, index: Index) -> str:
    name = "s" if takes(node, "s") else "fill_value"
    return scalar(body, argument(node, name), numbers(node))


_EMPTY = "empty empty_like new_empty empty_strided empty_permuted new_empty_strided"


@rule(*"zeros zeros_like new_zeros ones ones_like new_ones".split(), *_EMPTY.split(), kind=Kind.VIEW)
def _constant(body: Body, node: Node, index: Index) -> str:
    return literal("ones" in base_name(node), numbers(node))


@rule("arange", kind=Kind.VIEW)
def _arange(body: Body, node: Node, index: Index) -> str:
    dtype = numbers(node)
    start, step = argument(node, "start"), argument(node, "step")
    if dtype.is_floating_point:
        return f"({scalar(body, start, dtype)} + {scalar(body, step, dtype)} * {index[0]})"
    first, each = in_cpp(body.expression(start)), in_cpp(body.expression(step))
    return converted(f"({plus(first, times(index[0], each))})", torch.int32, dtype)


def reshaped(body: Body, index: Index, extents: Sequence[sympy.Expr], wanted: Sequence[sympy.Expr]) -> Index:
    """The index of the same element after a reshape in row-major order."""
    found = ["0"] * len(wanted)
    for here, there in _groups(extents, wanted):
        if len(here) == 1 and len(there) == 1:
            found[there[0]] = index[here[0]]
        elif (
            len(here) > 1
            and len(there) > 1
            and (
                parts := _split_and_joined(
                    body, [(extents[axis], index[axis]) for axis in here], [wanted[a] for a in there]
                )
            )
        ):
            for axis, each in zip(there, parts, strict=True):
                found[axis] = each
        elif there:
            flat = body.flat(tuple(index[axis] for axis in here), tuple(extents[axis] for axis in here))
            part = tuple(wanted[axis] for axis in there)
            for axis, each in zip(
                there, body.unflat(flat if len(there) == 1 else _held(body, flat), part), strict=True
            ):
                found[axis] = each
            at = tuple(index[axis] for axis in here), tuple(extents[axis] for axis in here)
            body.same_place(*at, tuple(found[axis] for axis in there), part)
    body.same_place(tuple(index), tuple(extents), tuple(found), tuple(wanted))
    return tuple(found)


def _split_and_joined(
    body: Body, given: list[tuple[sympy.Expr, str]], wanted: Sequence[sympy.Expr]
) -> list[str] | None:
    """Axes as parts of the given ones, from the last one on; None where one is no whole number of parts of another."""
    found: list[str] = []
    for whole in reversed(wanted):
        left, text, count = whole, "0", sympy.Integer(1)
        while left != ONE:
            if not given:
                return None
            extent, each = given.pop()
            less, more = sympy.cancel(left / extent), sympy.cancel(extent / left)
            if less.as_numer_denom()[1] == 1:
                part, left = each, less
            elif more.as_numer_denom()[1] == 1:
                part = body.let(body.index_type, "part", f"{grouped(each)} % {body.size(left)}")
                given.append(
                    (more, body.let(body.index_type, "whole", f"{grouped(each)} / {body.size(left)}"))
                )
                extent, left = left, ONE
            else:
                return None
            text = plus(times(part, in_cpp(count)), text) if text != "0" else times(part, in_cpp(count))
            count *= extent
        found.append(text)
    return found[::-1]


def _held(body: Body, flat: str) -> str:
    return flat if flat.isalnum() else body.let(body.index_type, "flat", flat)


def _groups(left: Sequence[sympy.Expr], right: Sequence[sympy.Expr]) -> list[tuple[list[int], list[int]]]:
    """The shortest groups of axes with equally many elements on both sides, without axes of one element."""
    here = [axis for axis, extent in enumerate(left) if extent != ONE]
    there = [axis for axis, extent in enumerate(right) if extent != ONE]
    found: list[tuple[list[int], list[int]]] = []
    while here or there:
        taken = next(
            (
                (i, j)
                for i in range(1, len(here) + 1)
                for j in range(1, len(there) + 1)
                if same(product([left[a] for a in here[:i]]), product([right[a] for a in there[:j]]))
            ),
            (len(here), len(there)),
        )
        found.append((here[: taken[0]], there[: taken[1]]))
        here, there = here[taken[0] :], there[taken[1] :]
    return found


def _moved(index: Index, dim: int, to: str) -> Index:
    return (*index[:dim], to, *index[dim + 1 :])


def _from_start(body: Body, source: Any, dim: int, place: Any) -> str:
    """An index along an axis, which may be negative."""
    number = body.expression(place)
    if number.is_number and number < 0:
        number = body.extents(source)[dim] + number
    return in_cpp(number)
