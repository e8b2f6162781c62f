"""Operators that read or write elements at places which other tensors hold."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.body import Body, Index, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import converted
from mctskernel.problems.plain_cuda.extents import ONE
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    argument,
    axis,
    base_name,
    broadcast,
    operand,
    rule,
    takes,
)


@rule("embedding", kind=Kind.ELEMENT)
def _embedding(body: Body, node: Node, index: Index) -> str:
    weight, indices = argument(node, "weight"), argument(node, "indices")
    row = _place(body, indices, index[:-1], body.extents(weight)[0])
    return body.read(weight, (row, index[-1]))


@rule("index_select", "gather", kind=Kind.ELEMENT)
def _gather(body: Body, node: Node, index: Index) -> str:
    source, indices = argument(node, "self"), argument(node, "index")
    dim = axis(node, argument(node, "dim"))
    at = index if base_name(node) == "gather" else index[dim : dim + len(body.extents(indices))]
    place = _place(body, indices, at, body.extents(source)[dim])
    return body.read(source, (*index[:dim], place, *index[dim + 1 :]))


@rule("index", "_unsafe_index", kind=Kind.ELEMENT)
def _index(body: Body, node: Node, index: Index) -> str:
    source, indices = argument(node, "self"), argument(node, "indices")
    extents = body.extents(source)
    chosen = [dim for dim, each in enumerate(indices) if each is not None]
    if any(numbers(indices[dim]) in {torch.bool, torch.uint8} for dim in chosen):
        raise PlainCudaError(
            "This function selects elements by a boolean mask, so its size depends on values."
        )
    rank = max(indices[dim].meta["val"].dim() for dim in chosen)
    together = chosen == list(range(chosen[0], chosen[-1] + 1))
    first = chosen[0] if together else 0
    inner, rest = index[first : first + rank], iter((*index[:first], *index[first + rank :]))
    found = [
        _place(body, indices[dim], broadcast(body, indices[dim], inner), extents[dim])
        if dim in chosen
        else next(rest)
        for dim in range(len(extents))
    ]
    return body.read(source, found)


@rule("scatter", "scatter_add", "scatter_reduce", kind=Kind.STORED)
def _scatter(body: Body, node: Node, index: Index) -> str:
    """Of several elements that are written to one place without a reduction, the last one counts."""
    source, indices = argument(node, "self"), argument(node, "index")
    dim, dtype = axis(node, argument(node, "dim")), numbers(node)
    combine = "{0} += {1};" if base_name(node) == "scatter_add" else "{0} = {1};"
    if takes(node, "reduce"):
        if (reduce := argument(node, "reduce")) not in _COMBINED:
            raise PlainCudaError(f"There is no plain CUDA C++ for {node.target} with reduce='{reduce}'.")
        combine = _COMBINED[reduce]
    found = body.variable(node_type(node), "value", body.read(source, index))
    extents, own = body.extents(indices), body.extents(node)
    inside = [
        f"{index[d]} < {body.size(extents[d])}"
        for d in range(len(index))
        if d != dim and extents[d] != own[d]
    ]
    with contextlib.ExitStack() as blocks:
        if inside:
            blocks.enter_context(body.block(f"if ({' && '.join(inside)}) {{"))
        j = "0" if extents[dim] == ONE else blocks.enter_context(body.loop("j", "0", body.size(extents[dim])))
        at = (*index[:dim], j, *index[dim + 1 :])
        place = _place(body, indices, at, own[dim])
        blocks.enter_context(body.block(f"if ({place} == {index[dim]}) {{"))
        written = argument(node, "src" if takes(node, "src") else "value")
        value = operand(body, written, at, dtype)
        body.line(combine.format(found, value))
    return found


@rule("index_put", "_unsafe_index_put", kind=Kind.STORED)
def _index_put(body: Body, node: Node, index: Index) -> str:
    source, indices, values = (argument(node, name) for name in ("self", "indices", "values"))
    chosen = [dim for dim, each in enumerate(indices) if each is not None]
    dtype = numbers(node)
    first = indices[chosen[0]]
    if numbers(first) == torch.bool:
        if len(indices) != 1 or values.meta["val"].numel() != 1:
            raise PlainCudaError("This function writes several values by a boolean mask.")
        mask = body.read(first, index[: first.meta["val"].dim()])
        value = operand(body, values, ("0",) * values.meta["val"].dim(), dtype)
        return f"({mask} ? {value} : {converted(body.read(source, index), numbers(source), dtype)})"
    if chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise PlainCudaError("This function writes by indices of axes that aren't adjacent.")
    found = body.variable(node_type(node), "value", body.read(source, index))
    shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        *(indices[dim].meta["val"].shape for dim in chosen)
    )
    own = body.extents(node)
    with contextlib.ExitStack() as blocks:
        at = tuple(
            "0" if size == 1 else blocks.enter_context(body.loop("j", "0", body.size(body.expression(size))))
            for size in shape
        )
        tests = [
            f"{_place(body, indices[dim], broadcast(body, indices[dim], at), own[dim])} == {index[dim]}"
            for dim in chosen
        ]
        blocks.enter_context(body.block(f"if ({' && '.join(tests)}) {{"))
        value = operand(body, values, (*index[: chosen[0]], *at, *index[chosen[-1] + 1 :]), dtype)
        body.line(f"{found} {'+=' if argument(node, 'accumulate') else '='} {value};")
    return found


_COMBINED = {
    "sum": "{0} += {1};",
    "add": "{0} += {1};",
    "prod": "{0} *= {1};",
    "multiply": "{0} *= {1};",
    "amax": "{0} = {1} > {0} ? {1} : {0};",
    "amin": "{0} = {1} < {0} ? {1} : {0};",
}


def _place(body: Body, indices: Any, index: Index, extent: Any) -> str:
    """An index that is read from memory, which may be negative."""
    value = body.read(indices, index)
    if indices.op == "placeholder":
        return body.let(
            body.index_type, "place", f"({body.index_type}){value}" if body.index_type == "int" else value
        )
    place = body.let(body.index_type, "place", f"({body.index_type})({value})")
    return body.let(body.index_type, "place", f"{place} < 0 ? {place} + {body.size(extent)} : {place}")
