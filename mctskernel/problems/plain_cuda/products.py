"""Matrix products, convolutions and pooling: a thread loops over all terms of one element of the result."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, minus, node_type, numbers, plus, times
from mctskernel.problems.plain_cuda.element_types import computed_type, converted, literal, lowest
from mctskernel.problems.plain_cuda.extents import ONE, in_cpp
from mctskernel.problems.plain_cuda.rules import Kind, argument, rule, source_of

AXES = {1: ("col",), 2: ("row", "col"), 3: ("depth", "row", "col")}


@rule("mm", "bmm", "mv", "dot", "vdot", kind=Kind.STORED, repeats=True)
def _product(body: Body, node: Node, index: Index) -> str:
    operands: Any = node.args
    left, right = operands
    dtype = numbers(node)
    batch = index[:1] if len(body.extents(left)) == 3 else ()
    row = index[len(batch) : len(batch) + len(body.extents(left)) - len(batch) - 1]
    col = index[len(batch) + len(row) :]
    found = body.variable(node_type(node), "sum", literal(0, dtype))
    with body.loop("k", "0", body.size(body.extents(left)[-1])) as k:
        a = converted(body.read(left, (*batch, *row, k)), numbers(left), dtype)
        b = converted(body.read(right, (*batch, k, *col)), numbers(right), dtype)
        body.line(f"{found} += {a} * {b};")
    return found


@rule("convolution", kind=Kind.STORED, repeats=True)
def _convolution(body: Body, node: Node, index: Index) -> str:
    tensor, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
    dtype, groups = numbers(node), int(argument(node, "groups"))
    rank = len(index) - 2
    transposed = bool(argument(node, "transposed"))
    extents, filters = body.extents(tensor), body.extents(weight)
    image, out = index[:2]
    per_group = filters[1] if transposed else body.extents(node)[1] // groups
    in_group = extents[1] // groups if transposed else filters[1]
    group = "0" if groups == 1 else body.let(body.index_type, "group", f"{out} / {in_cpp(per_group)}")
    found = body.variable(
        node_type(node),
        "sum",
        literal(0, dtype) if bias is None else converted(body.read(bias, (out,)), numbers(bias), dtype),
    )
    with contextlib.ExitStack() as loops:
        channel = "0"
        if in_group != ONE:
            channel = loops.enter_context(body.loop("c", "0", body.size(in_group)))
        taps, places, tests = [], [], []
        for axis, (name, extent) in enumerate(zip(AXES[rank], filters[2:], strict=True)):
            tap = "0"
            if extent != ONE:
                tap = loops.enter_context(body.loop(f"tap_{name}", "0", body.size(extent)))
            taps.append(tap)
            place, inside = place_of_tap(body, node, axis, index[2 + axis], tap)
            places.append(place)
            tests += inside
        if tests:
            loops.enter_context(body.block(f"if ({' && '.join(tests)}) {{"))
        from_channel = plus(times(group, body.size(in_group)), channel)
        to_channel = minus(out, times(group, in_cpp(per_group)))
        where = (from_channel, to_channel, *taps) if transposed else (out, channel, *taps)
        a = converted(body.read(tensor, (image, from_channel, *places)), numbers(tensor), dtype)
        b = converted(body.read(weight, where), numbers(weight), dtype)
        body.line(f"{found} += {a} * {b};")
    return found


def place_of_tap(body: Body, node: Node, axis: int, here: str, tap: str) -> tuple[str, list[str]]:
    """Where a tap of a convolution falls in its input along an axis; inside of it if the conditions, if any, hold."""
    tensor: Any = argument(node, "input")
    extents = body.extents(tensor)[2:]
    name = AXES[len(extents)][axis]
    step, pad, gap = (
        for_each_axis(argument(node, each), len(extents))[axis] for each in ("stride", "padding", "dilation")
    )
    size, apart = body.size(extents[axis]), times(tap, str(gap))
    if argument(node, "transposed"):
        place = reach = body.let(body.index_type, f"reach_{name}", minus(plus(here, str(pad)), apart))
        tests = [f"{reach} >= 0"]
        if step != 1:
            place = body.let(body.index_type, f"in_{name}", f"{reach} / {step}")
            tests.append(f"{reach} % {step} == 0")
        return place, [*tests, f"{place} < {size}"]
    start = minus(times(here, str(step)), str(pad))
    place = body.let(body.index_type, f"in_{name}", plus(start, apart))
    return place, [f"{place} >= 0", f"{place} < {size}"] if pad else []


@rule(
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    kind=Kind.STORED,
)
def _max_pool(body: Body, node: Node, index: Index) -> str:
    pool, part = source_of(node)
    source: Any = pool.args[0]
    dtype, rank, extents = numbers(source), pooled_rank(pool), body.extents(source)
    found = body.variable(computed_type(dtype), "largest", literal(lowest(dtype), dtype))
    where = body.variable("long long", "place", "-1") if part == 1 else ""
    with contextlib.ExitStack() as blocks:
        if "adaptive" in str(pool.target):
            inner = _adaptive_window(body, node, index, blocks)[0]
        else:
            inner = _window(body, pool, index, blocks)
        value = body.let(computed_type(dtype), "value", body.read(source, inner))
        if part == 0:
            body.line(f"{found} = {value} > {found} || {value} != {value} ? {value} : {found};")
        else:
            flat = body.flat(tuple(inner[-rank:]), extents[-rank:])
            with body.block(f"if ({where} < 0 || {value} > {found} || {value} != {value}) {{"):
                body.line(f"{found} = {value};")
                body.line(f"{where} = {flat};")
    return where or found


@rule(
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", kind=Kind.STORED
)
def _avg_pool(body: Body, node: Node, index: Index) -> str:
    source, dtype = node.args[0], numbers(node)
    found = body.variable(computed_type(dtype), "sum", literal(0, dtype))
    with contextlib.ExitStack() as blocks:
        if "adaptive" in str(node.target):
            inner, count = _adaptive_window(body, node, index, blocks)
        else:
            inner, count = _clipped_window(body, node, index, blocks)
        body.line(f"{found} += {body.read(source, inner)};")
    return f"{found} / ({computed_type(dtype)})({count})"


def _window(body: Body, pool: Node, index: Index, blocks: contextlib.ExitStack) -> Index:
    """Loop over a window with dilation, without what lies outside of the tensor."""
    rank, extents = pooled_rank(pool), body.extents(pool.args[0])  # type: ignore[arg-type] # a node
    starts, size = _starts(pool, index), for_each_axis(argument(pool, "kernel_size"), rank)
    dilation = for_each_axis(argument(pool, "dilation"), rank)
    places, tests = [], []
    for number, name in enumerate(AXES[rank]):
        tap = blocks.enter_context(body.loop(f"tap_{name}", "0", str(size[number])))
        reach = plus(starts[number], times(tap, str(dilation[number])))
        place = body.let(body.index_type, f"in_{name}", reach)
        places.append(place)
        tests.append(f"{place} >= 0 && {place} < {body.size(extents[number - rank])}")
    blocks.enter_context(body.block(f"if ({' && '.join(tests)}) {{"))
    return (*index[:-rank], *places)


def _starts(pool: Node, index: Index) -> list[str]:
    """Where a window begins along each axis, which may be outside of the tensor."""
    rank = pooled_rank(pool)
    stride = for_each_axis(argument(pool, "stride") or argument(pool, "kernel_size"), rank)
    padding = for_each_axis(argument(pool, "padding"), rank)
    places = zip(index[-rank:], stride, padding, strict=True)
    return [minus(times(each, str(step)), str(before)) for each, step, before in places]


def _clipped_window(body: Body, pool: Node, index: Index, blocks: contextlib.ExitStack) -> tuple[Index, str]:
    """Loop over the part of a window that lies inside of the tensor; returns the divisor of a mean too."""
    rank, extents = pooled_rank(pool), body.extents(pool.args[0])  # type: ignore[arg-type] # a node
    size, padding = (for_each_axis(argument(pool, name), rank) for name in ("kernel_size", "padding"))
    starts, counts, bounds = _starts(pool, index), [], []
    for number, name in enumerate(AXES[rank]):
        extent = body.size(extents[number - rank])
        start = body.let(body.index_type, f"start_{name}", starts[number])
        padded = body.as_index(f"({extent} + {padding[number]})")
        clipped = f"min({start} + {size[number]}, {padded})"
        end = body.let(body.index_type, f"end_{name}", clipped)
        first = body.let(body.index_type, f"first_{name}", f"max({start}, {body.as_index('0')})")
        last = body.let(body.index_type, f"last_{name}", f"min({end}, {body.as_index(extent)})")
        counts.append(f"({end} - {start})" if argument(pool, "count_include_pad") else f"({last} - {first})")
        bounds.append((name, first, last))
    inner = [blocks.enter_context(body.loop(f"in_{name}", first, last)) for name, first, last in bounds]
    return (*index[:-rank], *inner), str(argument(pool, "divisor_override") or " * ".join(counts))


def _adaptive_window(body: Body, node: Node, index: Index, blocks: contextlib.ExitStack) -> tuple[Index, str]:
    """Loop over the window of an adaptive pool, from floor(i n / m) to ceil((i + 1) n / m); returns its size too."""
    pool, _ = source_of(node)
    rank, own = pooled_rank(pool), body.extents(node)
    extents = body.extents(pool.args[0])  # type: ignore[arg-type] # a node
    counts, bounds = [], []
    for number, name in enumerate(AXES[rank]):
        dim = number - rank
        size, parts = body.size(extents[dim]), in_cpp(own[dim])
        start, end = "0", size
        if own[dim] != ONE:
            start = f"{index[dim]} * {size} / ({parts})"
            end = f"(({index[dim]} + 1) * {size} + ({parts}) - 1) / ({parts})"
        first = body.let(body.index_type, f"first_{name}", start)
        last = body.let(body.index_type, f"last_{name}", end)
        counts.append(f"({last} - {first})")
        bounds.append((name, first, last))
    inner = [blocks.enter_context(body.loop(f"in_{name}", first, last)) for name, first, last in bounds]
    return (*index[:-rank], *inner), " * ".join(counts)


def pooled_rank(pool: Node) -> int:
    return next(rank for rank in (1, 2, 3) if f"pool{rank}d" in str(pool.target))


def for_each_axis(values: Sequence[int], rank: int) -> list[int]:
    """One number for each axis; a single one is for all."""
    given = [int(value) for value in values]
    return given * rank if len(given) == 1 else given
