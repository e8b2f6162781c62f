"""Operators that read or write elements at places which other tensors hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.body import Body, Index, numbers
from mctskernel.problems.plain_cuda.element_types import computed_type, converted
from mctskernel.problems.plain_cuda.reductions import REDUCTIONS
from mctskernel.problems.plain_cuda.rules import Kind, argument, axis, base_name, broadcast, rule, takes


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


@rule("scatter_add", "scatter_reduce", kind=Kind.SCATTERED)
def _scatter(body: Body, node: Node, index: Index) -> str:
    """Adds an element of the source to where its index says."""
    indices, source = argument(node, "index"), argument(node, "src")
    dim, dtype = axis(node, argument(node, "dim")), numbers(node)
    place = _place(body, indices, index, None)
    at = (*index[:dim], place, *index[dim + 1 :])
    value = converted(body.read(source, index), numbers(source), dtype)
    body.update(body.target, at, atomic_of(node)[0], value)
    return ""


def atomic_of(node: Node) -> tuple[str, str]:
    """The statement that adds {1} to {0} in memory at once, and the function that it calls if CUDA has none.

    Raises PlainCudaError.
    """
    reduce, dtype = argument(node, "reduce") if takes(node, "reduce") else "sum", numbers(node)
    kind = computed_type(dtype)
    if reduce == "sum":
        # There is none for signed numbers of 64 bits, whose sums have the same bits as unsigned ones.
        wide = "unsigned long long"
        return (
            f"atomicAdd(({wide}*)&{{0}}, ({wide})({{1}}));"
            if kind == "long long"
            else "atomicAdd(&{0}, {1});"
        ), ""
    if reduce in _LIMITS and kind != "float":
        return f"{_LIMITS[reduce]}(&{{0}}, {{1}});", ""
    if reduce not in REDUCTIONS or kind not in {"float", "int"}:
        raise PlainCudaError(
            f"There is no plain CUDA C++ for '{reduce}' of {dtype} at places that indices say."
        )
    to, back = ("__float_as_int", "__int_as_float") if kind == "float" else ("", "")
    return (
        f"atomic_{reduce}(&{{0}}, {{1}});",
        f"""__device__ void atomic_{reduce}({kind}* at, {kind} value) {{
    int* bits = reinterpret_cast<int*>(at);
    int before, now = atomicCAS(bits, 0, 0);
    do {{
        before = now;
        {kind} found = {back}(before);
        {REDUCTIONS[reduce][0].format("found", "value")}
        now = atomicCAS(bits, before, {to}(found));
    }} while (now != before);
}}""",
    )


_LIMITS = {"amax": "atomicMax", "amin": "atomicMin"}


def _place(body: Body, indices: Any, index: Index, extent: Any) -> str:
    """An index that is read from memory; one that is computed may be negative where there is an extent."""
    value = body.read(indices, index)
    if indices.op == "placeholder" or extent is None:
        return body.let(
            body.index_type, "place", f"({body.index_type}){value}" if body.index_type == "int" else value
        )
    place = body.let(body.index_type, "place", f"({body.index_type})({value})")
    return body.let(body.index_type, "place", f"{place} < 0 ? {place} + {body.size(extent)} : {place}")
