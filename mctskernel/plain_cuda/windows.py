"""Pooling: a thread walks over the window of one element of the result."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from mctskernel.plain_cuda.body import Body, Index, minus, numbers, plus, times
from mctskernel.plain_cuda.element_types import computed_type, literal, lowest
from mctskernel.plain_cuda.extents import ONE, in_cpp
from mctskernel.plain_cuda.rules import Kind, argument, rule, source_of

_AXES = {1: ("col",), 2: ("row", "col"), 3: ("depth", "row", "col")}


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", kind=Kind.STORED)
def _max_pool(body: Body, node: Node, index: Index) -> str:
    pool, part = source_of(node)
    source = pool.args[0]
    assert isinstance(source, Node)  # noqa: S101 - the tensor that is pooled
    dtype, rank = numbers(source), 3 if "3d" in str(pool.target) else 2
    size = _each(argument(pool, "kernel_size"), rank)
    stride = _each(argument(pool, "stride") or size, rank)
    padding, dilation = (_each(argument(pool, name), rank) for name in ("padding", "dilation"))
    extents = body.extents(source)
    found = body.variable(computed_type(dtype), "largest", literal(lowest(dtype), dtype))
    where = body.variable("long long", "place", "-1") if part == 1 else ""
    with contextlib.ExitStack() as blocks:
        places, tests = [], []
        for number, name in enumerate(_AXES[rank]):
            tap = blocks.enter_context(body.loop(f"tap_{name}", "0", str(size[number])))
            start = minus(times(index[number - rank], str(stride[number])), str(padding[number]))
            place = body.let(body.index_type, f"in_{name}", plus(start, times(tap, str(dilation[number]))))
            places.append(place)
            tests.append(f"{place} >= 0 && {place} < {body.size(extents[number - rank])}")
        blocks.enter_context(body.block(f"if ({' && '.join(tests)}) {{"))
        value = body.let(computed_type(dtype), "value", body.read(source, (*index[:-rank], *places)))
        if part == 0:
            body.line(f"{found} = {value} > {found} || {value} != {value} ? {value} : {found};")
        else:
            flat = body.flat(tuple(places), extents[-rank:])
            with body.block(f"if ({where} < 0 || {value} > {found} || {value} != {value}) {{"):
                body.line(f"{found} = {value};")
                body.line(f"{where} = {flat};")
    return where or found


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", kind=Kind.STORED)
def _avg_pool(body: Body, node: Node, index: Index) -> str:
    source = node.args[0]
    assert isinstance(source, Node)  # noqa: S101 - the tensor that is pooled
    dtype, rank = numbers(node), int(str(node.target).split("avg_pool")[1][0])
    size = _each(argument(node, "kernel_size"), rank)
    stride = _each(argument(node, "stride") or size, rank)
    padding = _each(argument(node, "padding"), rank)
    divisor = argument(node, "divisor_override")
    extents = body.extents(source)
    found = body.variable(computed_type(dtype), "sum", literal(0, dtype))
    counts: list[str] = []
    with contextlib.ExitStack() as blocks:
        places = []
        for number, name in enumerate(_AXES[rank]):
            extent = body.size(extents[number - rank])
            start = body.let(
                body.index_type,
                f"start_{name}",
                minus(times(index[number - rank], str(stride[number])), str(padding[number])),
            )
            end = body.let(
                body.index_type, f"end_{name}", f"min({start} + {size[number]}, {extent} + {padding[number]})"
            )
            first = body.let(body.index_type, f"first_{name}", f"max({start}, 0)")
            last = body.let(body.index_type, f"last_{name}", f"min({end}, {extent})")
            counts.append(
                f"({end} - {start})" if argument(node, "count_include_pad") else f"({last} - {first})"
            )
            places.append((name, first, last))
        inner = [blocks.enter_context(body.loop(f"in_{name}", first, last)) for name, first, last in places]
        body.line(f"{found} += {body.read(source, (*index[:-rank], *inner))};")
    return f"{found} / ({computed_type(dtype)})({divisor or ' * '.join(counts)})"


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", kind=Kind.STORED)
def _adaptive_avg_pool(body: Body, node: Node, index: Index) -> str:
    source, dtype = node.args[0], numbers(node)
    found = body.variable(computed_type(dtype), "sum", literal(0, dtype))
    counts: list[str] = []
    with contextlib.ExitStack() as blocks:
        inner = _adaptive_window(body, node, index, blocks, counts)
        body.line(f"{found} += {body.read(source, inner)};")
    return f"{found} / ({computed_type(dtype)})({' * '.join(counts)})"


@rule("adaptive_max_pool2d", "adaptive_max_pool3d", kind=Kind.STORED)
def _adaptive_max_pool(body: Body, node: Node, index: Index) -> str:
    pool, part = source_of(node)
    source: Any = pool.args[0]
    dtype, extents = numbers(source), body.extents(source)
    rank = len(extents) - 2 if len(extents) > 3 else 2
    found = body.variable(computed_type(dtype), "largest", literal(lowest(dtype), dtype))
    where = body.variable("long long", "place", "-1") if part == 1 else ""
    with contextlib.ExitStack() as blocks:
        inner = _adaptive_window(body, node, index, blocks, [])
        value = body.let(computed_type(dtype), "value", body.read(source, inner))
        if part == 0:
            body.line(f"{found} = {value} > {found} || {value} != {value} ? {value} : {found};")
        else:
            flat = body.flat(tuple(inner[-rank:]), extents[-rank:])
            with body.block(f"if ({where} < 0 || {value} > {found} || {value} != {value}) {{"):
                body.line(f"{found} = {value};")
                body.line(f"{where} = {flat};")
    return where or found


def _adaptive_window(
    body: Body, node: Node, index: Index, blocks: contextlib.ExitStack, counts: list[str]
) -> Index:
    """Loops over the window that an element of an adaptive pool has, from floor(i n / m) to ceil((i + 1) n / m)."""
    pool, _ = source_of(node)
    source: Any = pool.args[0]
    extents, own = body.extents(source), body.extents(node)
    rank = 3 if "3d" in str(pool.target) else 2
    bounds = []
    for number, name in enumerate(_AXES[rank]):
        dim = number - rank
        size, parts = body.size(extents[dim]), in_cpp(own[dim])
        first = body.let(
            body.index_type, f"first_{name}", "0" if own[dim] == ONE else f"{index[dim]} * {size} / ({parts})"
        )
        last = body.let(
            body.index_type,
            f"last_{name}",
            size if own[dim] == ONE else f"(({index[dim]} + 1) * {size} + ({parts}) - 1) / ({parts})",
        )
        counts.append(f"({last} - {first})")
        bounds.append((name, first, last))
    inner = [blocks.enter_context(body.loop(f"in_{name}", first, last)) for name, first, last in bounds]
    return (*index[:-rank], *inner)


def _each(values: Sequence[int], rank: int) -> list[int]:
    given = [int(value) for value in values]
    return given * rank if len(given) == 1 else given
