"""Reductions and scans: a thread loops over all elements of one element of the result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import computed_type, converted, highest, literal, lowest
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    argument,
    axis,
    base_name,
    rule,
    source_of,
    takes,
    tensors,
)

_SUM = ("{0} += {1};", "0")
_LARGEST = ("{0} = {1} > {0} || {1} != {1} ? {1} : {0};", "lowest")
_SMALLEST = ("{0} = {1} < {0} || {1} != {1} ? {1} : {0};", "highest")
REDUCTIONS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("sum", "mean"), _SUM),
    "prod": ("{0} *= {1};", "1"),
    **dict.fromkeys(("amax", "max"), _LARGEST),
    **dict.fromkeys(("amin", "min"), _SMALLEST),
    "any": ("{0} = {0} || {1};", "0"),
    "all": ("{0} = {0} && {1};", "1"),
}
"""The statement that adds the element {1} to the accumulator {0}, and what that begins as."""

SCANS: Mapping[str, tuple[str, str]] = {
    "cumsum": ("{0} + {1}", "0"),
    "cumprod": ("{0} * {1}", "1"),
    "cummax": ("{0} != {0} || {0} > {1} ? {0} : {1}", "lowest"),
    "cummin": ("{0} != {0} || {0} < {1} ? {0} : {1}", "highest"),
    "logcumsumexp": (
        "{0} == {1} ? {0} + log(({kind})2) : fmax({0}, {1}) + log1p(exp(-fabs({0} - {1})))",
        "lowest",
    ),
}
"""What an element {1} makes of the result {0} for those before it, and what that begins as."""


@rule(*REDUCTIONS, kind=Kind.STORED)
def _reduce(body: Body, node: Node, index: Index) -> str:
    source: Any = node.args[0]
    dtype = accumulated(node)
    found = body.variable(computed_type(dtype), base_name(node), start_of(node))
    with _loops(body, node, index) as inner:
        combine(body, node, found, converted(body.read(source, inner), numbers(source), dtype))
    return finished(body, node, found)


@contextlib.contextmanager
def _loops(body: Body, node: Node, index: Index) -> Iterator[list[str]]:
    """Loops over the reduced axes; gives the operand's index."""
    dims, extents = reduced_axes(node), body.extents(node.args[0])  # type: ignore[arg-type] # a node
    inner = list(kept_index(node, index))
    with contextlib.ExitStack() as loops:
        for number, dim in enumerate(dims):
            if extents[dim] != ONE:
                word = f"k{number}" if len(dims) > 1 else "k"
                inner[dim] = loops.enter_context(body.loop(word, "0", body.size(extents[dim])))
        yield inner


def splits(node: Node) -> bool:
    return base_name(node) in REDUCTIONS


def part_of_reduction(body: Body, node: Node, index: Index, parts: int) -> str:
    """The reduction of every `parts`-th element; the last axis of the index is the first element."""
    source: Any = node.args[0]
    dims, extents, dtype = reduced_axes(node), body.extents(source), accumulated(node)
    found = body.variable(computed_type(dtype), base_name(node), start_of(node))
    inner = list(kept_index(node, index[:-1]))
    reduced = tuple(extents[dim] for dim in dims)
    with body.loop("k", index[-1], count_in_cpp(reduced), str(parts)) as k:
        for dim, place in zip(dims, body.unflat(k, reduced), strict=True):
            inner[dim] = place
        combine(body, node, found, converted(body.read(source, inner), numbers(source), dtype))
    return found


def part_of_parts(
    body: Body, node: Node, index: Index, place: Place, *, first: str = "0", parts: int = 1
) -> str:
    """The reduction of every `parts`-th stored part, from the first one on."""
    found = body.variable(computed_type(accumulated(node)), base_name(node), start_of(node))
    with body.loop("part", first, body.size(place.extents[-1]), str(parts)) as part:
        combine(body, node, found, body.load(place, (*index, part)))
    return found


def accumulated(node: Node) -> torch.dtype:
    """The type of a reduction's accumulator."""
    if base_name(node) in {"any", "all"}:
        return torch.bool
    dtype = numbers(node)
    return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype


def combine(body: Body, node: Node, found: str, value: str) -> None:
    """Add an element to an accumulator."""
    statement, _ = REDUCTIONS[base_name(node)]
    if statement.count("{1}") > 1:
        value = body.let(computed_type(accumulated(node)), "value", value)
    body.line(statement.format(found, value))


def finished(body: Body, node: Node, found: str) -> str:
    """The result of a reduction from its accumulator."""
    dtype = accumulated(node)
    if base_name(node) == "mean":
        source: Any = node.args[0]
        extents = body.extents(source)
        count = count_in_cpp([extents[dim] for dim in reduced_axes(node)])
        return f"{found} / ({computed_type(dtype)})({count})"
    return converted(found, dtype, numbers(node))


@rule("argmax", "argmin", kind=Kind.STORED)
def _place(body: Body, node: Node, index: Index) -> str:
    source = node.args[0]
    assert isinstance(source, Node)  # noqa: S101 - the tensor that is reduced
    sign, dtype = (">" if "argmax" in str(node.target) else "<"), numbers(source)
    dims, extents, kind = reduced_axes(node), body.extents(source), computed_type(dtype)
    best = body.variable(kind, "best", literal(lowest(dtype) if sign == ">" else highest(dtype), dtype))
    found = body.variable("long long", "place", "-1")
    with _loops(body, node, index) as inner:
        value = body.let(kind, "value", body.read(source, inner))
        flat = body.flat(tuple(inner[dim] for dim in dims), tuple(extents[dim] for dim in dims))
        with body.block(
            f"if ({found} < 0 || {value} {sign} {best} || ({value} != {value} && {best} == {best})) {{"
        ):
            body.line(f"{best} = {value};")
            body.line(f"{found} = {flat};")
    return found


@rule(*SCANS, kind=Kind.WHOLE_ROW)
def _scan(body: Body, node: Node, index: Index) -> str:
    """Stores the elements along the axis itself, or the places of the last ones that are as large."""
    dim, (source, *_) = axis(node, argument(node, "dim")), tensors(node)
    is_place = source_of(node)[1] == 1
    dtype = numbers(source if is_place else node)
    kind = computed_type(dtype)
    found = body.variable(kind, "total", start_of(node, dtype))
    place = body.variable("long long", "place", "0") if is_place else found
    with body.loop("k", "0", body.size(body.extents(node)[dim])) as k:
        at = (*index[:dim], k, *index[dim + 1 :])
        value = body.let(kind, "value", converted(body.read(source, at), numbers(source), dtype))
        body.line(f"{found} = {SCANS[base_name(node)][0].format(found, value, kind=kind)};")
        if is_place:
            body.line(f"if ({value} == {found} || {value} != {value}) {place} = {k};")
        body.store(body.target, at, place)
    return ""


def reduced_axes(node: Node) -> list[int]:
    """The axes that a reduction removes, in order."""
    source: Any = node.args[0]
    dims = argument(node, "dim") if takes(node, "dim") else None
    if dims is None or dims == []:
        return list(range(source.meta["val"].dim()))
    return sorted(axis(source, dim) for dim in (dims if isinstance(dims, list | tuple) else [dims]))


def kept_index(node: Node, index: Index) -> Index:
    """An index of the result as one of the operand, with 0 along the reduced axes."""
    source: Any = node.args[0]
    rank, dims = source.meta["val"].dim(), reduced_axes(node)
    if len(index) == rank and node.meta["val"].dim() == rank:
        return tuple("0" if dim in dims else index[dim] for dim in range(rank))
    rest = iter(index)
    return tuple("0" if dim in dims else next(rest) for dim in range(rank))


def start_of(node: Node, dtype: torch.dtype | None = None) -> str:
    """What an accumulator begins as, of its own type or another."""
    start, dtype = {**REDUCTIONS, **SCANS}[base_name(node)][1], dtype or accumulated(node)
    if start in {"lowest", "highest"}:
        return literal(lowest(dtype) if start == "lowest" else highest(dtype), dtype)
    return literal(int(start), dtype)
