"""Pooling: a template in which a thread has several results of a row, and windows along a row are unrolled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Body, Function, Index, Place, minus, numbers, times
from mctskernel.problems.plain_cuda.element_types import (
    computed_type,
    converted,
    literal,
    lowest,
    stored,
    stored_type,
)
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product
from mctskernel.problems.plain_cuda.products import AXES, for_each_axis, pooled_rank
from mctskernel.problems.plain_cuda.rules import argument, operator_name, readers, source_of, takes, tensors
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.epilogues import by_header
from mctskernel.problems.templates.row_space import extents_of
from mctskernel.problems.templates.tiles import with_follower

POOLS = {"max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"}

MOST_UNROLLED = 32  # taps of a window of which all are written out; of larger ones those along a row are


@dataclass(frozen=True)
class Pool:
    """A pool of floats over windows of one size, and what follows it element by element; rows are so long."""

    nodes: tuple[Node, ...]
    length: int
    of_rows: tuple[Node, ...]
    """What is computed before, and is the same for all windows of a row."""
    in_pairs: bool = False
    """Whether what is in memory are pools of two columns each."""

    @property
    def source(self) -> Node:
        """What is pooled."""
        return tensors(source_of(self.nodes[0])[0])[0]

    @property
    def is_largest(self) -> bool:
        """Whether it takes the largest number of a window, not their mean."""
        return "max" in operator_name(self.nodes[0])

    @property
    def run(self) -> int:
        """How many results a thread has one below the other: where windows overlap, they share what is read."""
        size, step, _, apart = (
            each[-2] if len(each) > 1 else 1 for each in _windows(source_of(self.nodes[0])[0])
        )
        overlap = step <= (size - 1) * apart
        return max(4 // step, 1) if overlap and apart <= 8 else 1

    def joins(self, node: Node) -> bool:
        """Whether all that is needed of a node are pools of pairs of columns."""
        pool = source_of(self.nodes[0])[0]
        size, step, before, apart = (each[-1] for each in _windows(pool))
        words = {"ceil_mode", "divisor_override"}
        is_plain = not any(argument(pool, each) for each in words if takes(pool, each))
        is_float = numbers(node) is torch.float32 and node.meta["val"].dim() == pooled_rank(pool) + 2
        are_pairs = (size % 2, step, before, apart) == (0, size, 0, 1)
        return readers(node) == [self.nodes[0]] and is_plain and is_float and are_pairs

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The text of the kernel, and its launch."""
        # Short rows leave few threads of a warp idle if each has as many as it has results.
        shapes = [(self.length, 1)] if self.length < min(_SHAPES)[0] else _SHAPES
        step = _windows(source_of(self.nodes[0])[0])[1][-1]
        most = 4 if step <= 4 and (self.length % 4 == 0 or (self.length > 1024 and self.length % 2)) else 2
        usual = (128 if self.length > 1024 else 32, most)
        threads, items = min(
            shapes, key=lambda each: (_slots(self.length, *each), each[1] != most, each != usual)
        )
        run = self.run if items < 4 or self.run > 2 else 1
        values = {"THREADS": threads, "ROWS": max(128 // threads, 1), "ITEMS": items, "RUN": run}
        names = {word: schedule.macro(word, value) for word, value in values.items()}
        schedule.require(f"{names['THREADS']} * {names['ROWS']} <= 1024")
        schedule.require(f"16 % {names['ITEMS']} == 0")
        schedule.require(f"{names['RUN']} >= 1 && {names['RUN']} <= {MOST_UNROLLED if self.run > 1 else 1}")
        schedule.include(ROWS)
        name = schedule.fresh("pool_kernel")
        for index_type in ("int", "long long"):
            pooled: dict[Node, str] = {}
            given = {self.nodes[0]: lambda _body, _index, pooled=pooled: pooled[self.nodes[0]]}
            body = schedule.body(place, index_type, given, depth=1)
            _write(body, self, names, pooled)
            if not any(map(schedule.is_large, body.used)):
                break
        sizes = map(count_in_plan, (place.extents[:-2], place.extents[-2:-1], place.extents[-1:]))
        runs = "ceil_div({} * ceil_div({}, {RUN}), {ROWS})"
        grid = f"{runs} * ceil_div({{}}, {{THREADS}} * {{ITEMS}})".format(*sizes, **names)
        bounds = f"__launch_bounds__({names['THREADS']} * {names['ROWS']}) "
        text = by_header(body.text(), schedule, self.nodes[0].graph.nodes)
        about = schedule.described(self.nodes[-1])
        made = Function(name, about, text, tuple(body.reads.values()), place, bounds)
        yield schedule.function(made), schedule.launch(made, grid, f'{names["THREADS"]}", "{names["ROWS"]}')


_SHAPES = [(threads, items) for items in (2, 4, 1) for threads in (32, 64, 128)]
"""Threads of a row, and the results of each, the better ones first."""


def _slots(length: int, threads: int, items: int) -> float:
    """How many results of a row there is room for, where a few in vain don't count."""
    return max(-(-length // (threads * items)) * threads * items * (1.5 if items == 1 else 1), 1.1 * length)


def pools(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Pool]:
    """The pools of floats over windows of one size, each with what follows element by element."""
    for node in kept:
        if node.op == "call_function":
            pool, part = source_of(node)
            name = operator_name(pool).removeprefix("aten.")
            if name in POOLS and part == 0 and computed_type(numbers(node)) == "float":
                rows = _of_rows(tensors(pool)[0], pooled_rank(pool), kept, traced)
                for nodes in with_follower(node, kept, outputs, traced):
                    yield Pool(nodes, int(traced.estimate(extents_of(node, traced)[-1])), tuple(rows))


def _of_rows(node: Node, rank: int, kept: Sequence[Node], traced: Traced) -> Iterator[Node]:
    if node.op == "call_function" and node not in kept:
        if all(each == ONE for each in extents_of(node, traced)[-rank:]):
            yield node
        else:
            for each in tensors(node):
                yield from _of_rows(each, rank, kept, traced)


@dataclass(frozen=True)
class _Axis:
    """How windows lie along an axis, and the extent of what is pooled."""

    name: str
    size: int
    step: int
    before: int
    apart: int
    extent: str

    def in_pairs(self, extent: str) -> _Axis:
        """The same of pairs, of which there are so many."""
        return replace(self, size=self.size // 2, step=self.step // 2, extent=extent)

    def in_cuda(self) -> tuple[str, str]:
        """Its windows as a type, and its extent."""
        return f"Windows<{self.size}, {self.step}, {self.before}, {self.apart}>", self.extent

    def start(self, here: str) -> str:
        """Where the window of a result begins."""
        return minus(times(here, str(self.step)), str(self.before))


def _windows(pool: Node) -> list[list[int]]:
    """Sizes of windows, their steps, the padding before, and how far taps are apart, along each axis."""
    rank = pooled_rank(pool)
    names = ("kernel_size", "stride", "padding", "dilation")
    given = (argument(pool, each) or argument(pool, "kernel_size") for each in names if takes(pool, each))
    found = [for_each_axis(each, rank) for each in given]
    return found if takes(pool, "dilation") else [*found, [1] * rank]


def _axes(body: Body, group: Pool) -> list[_Axis]:
    pool = source_of(group.nodes[0])[0]
    extents = map(body.size, body.extents(group.source)[-pooled_rank(pool) :])
    *axes, last = map(_Axis, AXES[pooled_rank(pool)], *_windows(pool), extents)
    place = body.place_of(group.source) if group.in_pairs else None
    return [*axes, last.in_pairs(body.size(place.extents[-1])) if place else last]


def _write(body: Body, group: Pool, names: Mapping[str, str], pooled: dict[Node, str]) -> None:
    """The statements of the kernel. Each result is in `pooled` when what follows is computed."""
    node, last, place = group.nodes[0], group.nodes[-1], body.target
    pool, dtype, largest = source_of(node)[0], numbers(node), group.is_largest
    threads, items = names["THREADS"], names["ITEMS"]
    run, columns, lines = names["RUN"], in_cpp(place.extents[-1]), in_cpp(place.extents[-2])
    row, first, found = map(body.fresh, ("row", "first", "largest" if largest else "sum"))
    tile, runs, number = map(body.fresh, ("tiles", "runs", "run"))
    body.line(f"const int {tile} = ({columns} + {threads} * {items} - 1) / ({threads} * {items});")
    body.line(f"const int {runs} = ({lines} + {run} - 1) / {run};")
    body.line(f"const int {number} = blockIdx.x / {tile} * {names['ROWS']} + threadIdx.y;")
    axes, x, out = _axes(body, group), "(const float*)nullptr", body.parameter(place.name)
    windows, extents = zip(*[("Windows<1, 1, 0, 1>", "1")] * 2, *map(_Axis.in_cuda, axes), strict=True)
    source = None if group.in_pairs else body.place_of(group.source)
    body.writes[place.name] = place
    if source and source.dtype is torch.float32:
        body.reads[source.name], x = source, body.parameter(source.name)
    fits = f"Covering<{windows[-1]}, {items}>::fits({x}, {extents[-1]}, {out}, {columns})"
    body.line(f"const bool vectors = {fits};")
    mine = f"threadIdx.x * (vectors ? {items} : 1)"
    body.line(f"const int {first} = blockIdx.x % {tile} * ({threads} * {items}) + {mine};")
    with body.block(f"if ({number} / {runs} < {count_in_cpp(place.extents[:-2])}) {{"):
        # Rows, columns and windows are counted in ints, elements maybe not.
        wide, body.index_type = body.index_type, "int"
        body.line(f"const int {row} = {number} % {runs} * {run};")
        above = body.let("int", "above", f"{number} / {runs}")
        outer = (*(body.unflat(above, place.extents[:-2]) if len(place.extents) > 2 else ()), row)
        before, body.index_type = outer[: len(outer) + 1 - len(axes)], wide
        _read_of_rows(body, group, before)
        inside = (*map(body.as_index, before), *(f"in_{axis.name}" for axis in axes))
        with body.block("const auto read = [&](int in_depth, int in_row, int in_col) {", "};"):
            body.line(f"return {body.read(pool.args[0], inside)};")
        with body.block("const auto row_of = [&](int in_depth, int in_row) {", "};"):
            at = body.flat((*inside[:-1], "0"), source.extents) if source else "0"
            body.line(f"return {x} + {at};")
        body.line(f"float {found}[{run}][{items}];")
        here = ["0", "0", *outer[len(before) :]][-2:]
        start = literal(lowest(dtype) if largest else 0, dtype)
        body.line(
            f"pool<{'true' if largest else 'false'}, {threads}, {', '.join(windows[-3:])}>"
            f"({', '.join((found, start, *here, first, *extents[-3:]))}, vectors, read, row_of);"
        )
        with body.block("const auto row_to = [&](int line) {", "};"):
            index = (*map(body.as_index, (*outer[:-1], "line")), "0")
            body.line(f"return {out} + {body.flat(index, place.extents)};")
        kind = stored_type(place.dtype)
        with body.block(f"const auto finish = [&](int line, int column, float pooled) -> {kind} {{", "};"):
            body.index_type = "int"
            divided = "" if largest else _divided(body, pool, axes, (*outer[:-1], "line", "column"))
            pooled[node], body.index_type = body.let("float", "result", f"pooled{divided}"), wide
            index = (*map(body.as_index, (*outer[:-1], "line")), "column")
            value = converted(body.read(last, index), numbers(last), place.dtype)
            body.line(f"return {stored(place.dtype, value)};")
        body.line(
            f"store_pools<{threads}>({found}, {row}, {first}, {lines}, {columns}, vectors, row_to, finish);"
        )


def _read_of_rows(body: Body, group: Pool, outer: Index) -> None:
    for node in group.of_rows:
        extents = body.extents(node)
        zeros = ["0"] * pooled_rank(source_of(group.nodes[0])[0])
        given = outer[len(outer) + len(zeros) - len(extents) :]
        index = ("0" if e == ONE else body.as_index(at) for e, at in zip(extents, given, strict=False))
        body.read(node, (*index, *zeros))


def _divided(body: Body, pool: Node, axes: Sequence[_Axis], index: Index) -> str:
    """By what a mean divides: the part of the window inside of the tensor, or of the tensor with its padding."""
    given: Any = argument(pool, "divisor_override")
    padded = any(axis.before for axis in axes) and not argument(pool, "count_include_pad")
    if given is None and not padded and not argument(pool, "ceil_mode"):
        given = product([sympy.Integer(axis.size) for axis in axes])
    if given is not None:
        return f" * {literal(1 / float(given), numbers(pool))}"
    counts = []
    for axis, here in zip(axes, index[len(index) - len(axes) :], strict=True):
        start = body.let("int", f"start_{axis.name}", axis.start(here))
        end = f"min({start} + {axis.size}, {axis.extent} + {axis.before})"
        counts.append(
            f"({end} - {start})"
            if argument(pool, "count_include_pad")
            else f"(min({end}, {axis.extent}) - max({start}, 0))"
        )
    return f" / (float)({' * '.join(counts)})"
