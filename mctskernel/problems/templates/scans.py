"""Cumulative sums, products and the like: a template where threads share a row, or own one if rows are neighbours."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Body, Index, Place, minus, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import (
    computed_type,
    converted,
    stored,
    stored_type,
)
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, product
from mctskernel.problems.plain_cuda.reductions import SCANS, start_of
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    argument,
    axis,
    base_name,
    behind,
    rule_of,
    source_of,
    tensors,
)
from mctskernel.problems.plain_cuda.schedule import Schedule, written_flat
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.row_geometry import (
    MULTIPROCESSORS,
    THREADS_OF_A_DEVICE,
    Geometry,
    macros,
    power_of_two,
)
from mctskernel.problems.templates.row_loops import Elements, RowLoops
from mctskernel.problems.templates.row_space import (
    ForbiddenError,
    Space,
    computing,
    element_index,
    extents_of,
    run_of,
    trial_body,
)
from mctskernel.problems.templates.rows import readers_of

_FOLLOW = {Kind.ELEMENT, Kind.VIEW}

LONG = 1 << 15
"""Elements of a row from which on several blocks scan it, if there are few rows."""


@dataclass(frozen=True)
class ScanGroup:
    """A scan, and what alone reads it, if that needs of it only the element at the same place.

    `space` is reduced along the axis. In `reverse` places are counted from the end, and `exclusive` is the one before.
    """

    nodes: tuple[Node, ...]
    space: Space
    reverse: bool = False
    exclusive: bool = False

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The text of the kernel, and its launch."""
        strided, length = self.space.strided, schedule.estimate(run_of(self.space)[1])
        rows = max(schedule.estimate(self.space.rows), 1)
        apart = not strided and rows < 2 * MULTIPROCESSORS and length >= LONG
        words = (
            ("COLUMNS", "LANES", "ITEMS")
            if strided
            else ("THREADS", "VECTOR", "ITEMS", *["ROWS"] * (not apart))
        )
        vector = max(16 // place.dtype.itemsize, 1)
        threads = min(power_of_two(-(-length // (4 * vector))), 256)
        geometry = Geometry(
            threads, max(128 // threads, 1), vector, 1, 1, (16 + 4 * vector) * (4 + len(self.nodes)) // 5
        )
        if apart:
            geometry = Geometry(256, 1, vector, 4, 1, 16 + 8 * vector)
        if strided:
            lanes = THREADS_OF_A_DEVICE // rows
            lanes = min(power_of_two(lanes + 1) // 2, power_of_two(-(-length // 16)), 8)
            geometry = Geometry(lanes, max(256 // lanes, 32), 1, 16, 1, 64)
        names = macros(schedule, words, geometry)
        schedule.include(ROWS)
        kind, operator = node_type(self.nodes[0]), base_name(self.nodes[0])
        struct = schedule.fresh(operator.capitalize())
        head = (
            f"struct {struct} {{\n    static __device__ {kind} start() {{ return {start_of(self.nodes[0])}; }}\n"
            f"    static __device__ {kind} of({kind} left, {kind} right) {{ return "
            f"{SCANS[operator][0].format('left', 'right', kind=kind)}; }}\n}};\n\n"
        )
        name = schedule.fresh(f"{operator}_rows")
        told = _told(self, schedule, names) if apart else ()
        text, launch = _Writer.made(
            self, schedule, place, names, lambda writer: writer.scan(name, struct, told)
        )
        yield head + text, launch


def scan_groups(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterable[ScanGroup]:
    """The scans among nodes that would each have a plain kernel, in the largest groups first."""
    readers = readers_of(kept, traced)
    for node in kept:
        if base_name(node) in SCANS and source_of(node)[1] == 0:
            dim = axis(node, argument(node, "dim"))
            extents = extents_of(node, traced)
            axes = [(each, number == dim) for number, each in enumerate(extents) if each != ONE]
            space = Space(tuple(each for each, _ in axes), tuple(along for _, along in axes))
            if any(space.reduced):
                for reader in readers[node] if node not in outputs and len(readers[node]) == 1 else ():
                    if reader and rule_of(reader).kind in _FOLLOW and extents_of(reader, traced) == extents:
                        ways = itertools.product((False, True), repeat=2)
                        groups = (ScanGroup((node, reader), space, *each) for each in ways)
                        yield from (group for group in groups if _is_proved(group, kept, traced))
                yield ScanGroup((node,), space)


def seen_scans(kept: Sequence[Node], outputs: Sequence[Node]) -> set[Node]:
    """Outputs that are views of scans with elements in other places, such as flipped ones."""
    scans = {node for node in kept if base_name(node) in SCANS}
    views = (node for node in outputs if written_flat(node, kept) is None)
    return {node for node in views if not scans.isdisjoint(behind(tensors(node), kept.__contains__))}


def _is_proved(group: ScanGroup, kept: Sequence[Node], traced: Traced) -> bool:
    scan, last = group.nodes
    body = trial_body(group.nodes, kept, traced, computing([scan]))
    index = tuple(f"at{number}" for number in range(len(group.space.extents)))
    _know(body, group, index, "1")
    with contextlib.suppress(ForbiddenError):
        rule_of(last).compute(body, last, element_index(body, group.space, index, last))
        return True
    return False


def _know(body: Body, group: ScanGroup, index: Index, value: str) -> None:
    """Say what the scan is where the last node needs it at an index of the space."""
    scan = group.nodes[0]
    at, dim = list(element_index(body, group.space, index, scan)), axis(scan, argument(scan, "dim"))
    if group.reverse:
        at[dim] = minus(f"{body.size(body.extents(scan)[dim])} - 1", at[dim])
    if group.exclusive:
        at[dim] = minus(at[dim], "1")
        named = body.let(body.index_type, "inner", at[dim])  # so `constant_pad_nd` has it
        body.know(scan, (*at[:dim], named, *at[dim + 1 :]), value)
    body.know(scan, at, value)


def _told(group: ScanGroup, schedule: Schedule, names: Mapping[str, str]) -> tuple[Place, ...]:
    """Buffers for what tiles tell each other, and for the order of blocks."""
    words = computed_type(numbers(group.nodes[0])) in {"double", "long long"}
    tile = product([sympy.Symbol(names[word], positive=True) for word in ("THREADS", "ITEMS", "VECTOR")])
    tiles = sympy.floor(product(run_of(group.space)[1]) / tile) + 2
    packets = Place(
        schedule.fresh("packets"), torch.int32, (*group.space.rows, tiles, sympy.Integer(4 << words))
    )
    drawn = Place(schedule.fresh("drawn"), torch.int32, (sympy.Integer(1),))
    for each in (packets, drawn):
        schedule.add_scratch(each, zero=True)
    return packets, drawn


class _Writer(RowLoops):
    """The kernel while it is written."""

    _group: ScanGroup
    _consecutive = True

    def scan(self, name: str, struct: str, told: tuple[Place, ...]) -> tuple[str, str]:
        """The text of the function, and its launch. With what is `told`, each tile has a block of its own."""
        body, node, names = self.body, self._group.nodes[0], self._names
        self._passes = int(self._group.reverse)  # tiles from the last one on
        kind, neutral = node_type(node), start_of(node)
        if told:
            self._find_tile(told[1])
        else:
            self._find_row()
        before, values = body.variable(kind, "before", neutral), body.fresh("values")
        vector = "" if self._strided else f"[{names['VECTOR']}]"
        value = f"{values}[{self._j}]" + (f"[{self._v}]" if vector else "")
        ways = ", ".join(str(each).lower() for each in (self._group.reverse, self._group.exclusive))
        scan = f"scan{'_columns' * self._strided}<{struct}, {ways}, {self._rows}, {self._lanes}>"
        with self._tiles(self._value) as elements:
            body.line(f"{kind} {values}{self._items}{vector};")
            self._before_element = f"{value} = {neutral};"
            with elements() as index:
                body.line(f"{value} = {self._read(body, index)};")
            self._before_element = ""
            body.line(f"{scan}({values}, {before});")
            if told:
                tile = "tiles - 1 - tile" if self._group.reverse else "tile"
                packets = f"reinterpret_cast<unsigned long long*>({told[0].name}), {self._row}, {tile}, tiles"
                earlier = f"of_earlier_tiles<{struct}, {self._lanes}>({packets}, {before})"
                value = f"{struct}::of({body.let(kind, 'earlier', earlier)}, {value})"
            if not self._strided:
                self._store_vectors(elements, value, values)
            else:
                with elements() as index, body.block(f"if (mine == {self._row}) {{"):
                    at = element_index(body, self._group.space, index, self._last)
                    body.store(self._place, at, self._result(index, value))
        return self.written(name, self._schedule.described(self._last), self._place, also=told)

    def _store_vectors(self, elements: Elements, value: str, values: str) -> None:
        """Store what the scanned values lead to, or these themselves."""
        body, place, j, vector = self.body, self._place, self._j, self._names["VECTOR"]
        with body.trial():
            target = element_index(body, self._group.space, self._element(), self._last)
            run = body.flat(target, place.extents).removesuffix(self._k).removesuffix(" + ")
        out = self._schedule.parameter(place.name) + (f" + {run}" if run else "")
        end = "length" if self._rows == "1" else f"mine == {self._row} ? length : 0"
        at, kind = f"first + {j} * ({self._lanes} * {vector}), {end}", stored_type(place.dtype)
        body.writes[place.name] = place
        if value.startswith(values) and len(self._group.nodes) == 1 and kind == computed_type(place.dtype):
            body.line("#pragma unroll")
            with body.block(f"for (int {j} = 0; {j} < {self._names['ITEMS']}; ++{j}) {{"):
                body.line(f"store({out}, {values}[{j}], {at});")
            return
        results = body.fresh("results")
        self._around = f"{kind} {results}[{vector}];", f"store({out}, {results}, {at});"
        with elements() as index:
            body.line(f"{results}[{self._v}] = {stored(place.dtype, self._result(index, value))};")

    def _find_tile(self, drawn: Place) -> None:
        """The row and the tile of this block, in the order in which blocks begin."""
        body, kind, rows = self.body, self._index_type, self._group.space.rows
        self._one_tile, self._unit = True, "tile"
        self._count_tiles()
        number = body.variable("const int", "number", f"drawn_number({drawn.name})")
        body.line(f"const {kind} {self._row} = {number} / tiles;")
        with body.block(f"if ({self._row} >= {count_in_cpp(rows)}) {{"):
            body.line("return;")
        body.line(f"const int tile = {'tiles - 1 - ' * self._group.reverse}{number} % tiles;")
        self._split_row()
        _, run = run_of(self._group.space)
        tiles = f"ceil_div({count_in_plan(run)} + {self._names['VECTOR']} - 1, {self._tile[1:-1]})"
        self._launch = f"{count_in_plan(rows)} * {tiles}", self._lanes, ""

    def _value(self, body: Body, index: Index) -> None:
        body.line(f"value = {self._read(body, index)} + {self._result(index, '1')};")

    def _result(self, index: Index, value: str) -> str:
        """The element of the last node at an index, given the scan where it needs that."""
        _know(self.body, self._group, index, value)
        found = self.body.read(self._last, element_index(self.body, self._group.space, index, self._last))
        return converted(found, numbers(self._last), self._place.dtype)

    def _read(self, body: Body, index: Index) -> str:
        """The element of the operand that is added at an index of the result."""
        node = self._group.nodes[0]
        source = tensors(node)[0]
        at = list(element_index(body, self._group.space, index, source))
        if self._group.reverse:
            dim = axis(node, argument(node, "dim"))
            at[dim] = minus(f"{body.size(body.extents(source)[dim])} - 1", at[dim])
        return converted(body.read(source, at), numbers(source), numbers(node))
