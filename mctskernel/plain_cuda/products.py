"""Products of matrices and convolutions: a thread adds up the products that make one element of the result."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch.fx import Node

from mctskernel.plain_cuda.body import Body, Index, minus, node_type, numbers, plus, times
from mctskernel.plain_cuda.element_types import converted, literal
from mctskernel.plain_cuda.extents import ONE, in_cpp
from mctskernel.plain_cuda.rules import Kind, argument, rule

_AXES = {1: ("col",), 2: ("row", "col"), 3: ("depth", "row", "col")}


@rule("mm", "bmm", "mv", "dot", "vdot", kind=Kind.STORED, repeats=True)
def _product(body: Body, node: Node, index: Index) -> str:
    left, right = node.args
    assert isinstance(left, Node)  # noqa: S101 - two tensors
    assert isinstance(right, Node)  # noqa: S101 - as above
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
    stride, padding, dilation = (
        _each(argument(node, name), rank) for name in ("stride", "padding", "dilation")
    )
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
        taps, tests, places = [], [], []
        for number, (axis_name, extent) in enumerate(zip(_AXES[rank], filters[2:], strict=True)):
            tap = (
                "0"
                if extent == ONE
                else loops.enter_context(body.loop(f"tap_{axis_name}", "0", body.size(extent)))
            )
            taps.append(tap)
            here, size = index[2 + number], body.size(extents[2 + number])
            if not transposed:
                start = minus(times(here, str(stride[number])), str(padding[number]))
                place = body.let(
                    body.index_type, f"in_{axis_name}", plus(start, times(tap, str(dilation[number])))
                )
                inside = f"{place} >= 0 && {place} < {size}"
                free = padding[number] == 0
            else:
                reach = body.let(
                    body.index_type,
                    f"reach_{axis_name}",
                    minus(plus(here, str(padding[number])), times(tap, str(dilation[number]))),
                )
                place, inside, free = reach, f"{reach} >= 0 && {reach} < {size}", False
                if stride[number] != 1:
                    place = body.let(body.index_type, f"in_{axis_name}", f"{reach} / {stride[number]}")
                    inside = f"{reach} >= 0 && {reach} % {stride[number]} == 0 && {place} < {size}"
            places.append(place)
            if not free:
                tests.append(inside)
        if tests:
            loops.enter_context(body.block(f"if ({' && '.join(tests)}) {{"))
        from_channel = plus(times(group, body.size(in_group)), channel)
        to_channel = minus(out, times(group, in_cpp(per_group)))
        where = (from_channel, to_channel, *taps) if transposed else (out, channel, *taps)
        a = converted(body.read(tensor, (image, from_channel, *places)), numbers(tensor), dtype)
        b = converted(body.read(weight, where), numbers(weight), dtype)
        body.line(f"{found} += {a} * {b};")
    return found


def _each(values: Sequence[int], rank: int) -> list[int]:
    """One number for each axis; a single one is for all."""
    given = [int(value) for value in values]
    return given * rank if len(given) == 1 else given
