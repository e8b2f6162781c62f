"""Cumulative sums, products and the like: a template where threads share a row, or own one if rows are neighbours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Body, Index, Place, minus, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import (
    computed_type,
    converted,
    stored,
    stored_type,
)
from mctskernel.problems.plain_cuda.extents import ONE
from mctskernel.problems.plain_cuda.reductions import SCANS, start_of
from mctskernel.problems.plain_cuda.rules import argument, axis, base_name, source_of, tensors
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.row_geometry import Geometry, macros, power_of_two
from mctskernel.problems.templates.row_loops import RowLoops
from mctskernel.problems.templates.row_space import Space, element_index, extents_of, run_of


@dataclass(frozen=True)
class ScanGroup:
    """A scan, and what flips its result along the axis, if anything does. `space` is reduced along the axis."""

    nodes: tuple[Node, ...]
    space: Space

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The text of the kernel, and its launch."""
        strided, length = self.space.strided, schedule.estimate(run_of(self.space)[1])
        words = ("COLUMNS", "LANES", "ITEMS") if strided else ("THREADS", "ROWS", "VECTOR", "ITEMS")
        vector = max(16 // place.dtype.itemsize, 1)
        threads = min(power_of_two(-(-length // (4 * vector))), 256)
        rows = max(128 // threads, 1)
        geometry = (
            Geometry(1, 64, 1, 16, 1, 64)
            if strided
            else Geometry(threads, rows, vector, 1, 1, 16 + 4 * vector)
        )
        names = macros(schedule, words, geometry)
        if strided:
            schedule.require(f"{names['LANES']} == 1")
        else:
            schedule.include(ROWS)
        kind, operator = node_type(self.nodes[0]), base_name(self.nodes[0])
        struct = schedule.fresh(operator.capitalize())
        head = ""
        if not strided:
            head = (
                f"struct {struct} {{\n    static __device__ {kind} start() {{ return {start_of(self.nodes[0])}; }}\n"
                f"    static __device__ {kind} of({kind} left, {kind} right) {{ return "
                f"{SCANS[operator][0].format('left', 'right', kind=kind)}; }}\n}};\n\n"
            )
        name = schedule.fresh(f"{operator}_rows")
        text, launch = _Writer.made(self, schedule, place, names, lambda writer: writer.scan(name, struct))
        yield head + text, launch


def scan_groups(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterable[ScanGroup]:
    """The scans among nodes that would each have a plain kernel."""
    for node in kept:
        if base_name(node) in SCANS and source_of(node)[1] == 0:
            dim = axis(node, argument(node, "dim"))
            extents = extents_of(node, traced)
            axes = [(each, number == dim) for number, each in enumerate(extents) if each != ONE]
            space = Space(tuple(each for each, _ in axes), tuple(along for _, along in axes))
            if any(space.reduced):
                flips = [] if node in outputs else [each for each in kept if _flips(each, node)]
                readers = [each for each in node.users if each not in flips]
                yield ScanGroup((node, *flips) if not readers else (node,), space)


def flipped_scans(kept: Sequence[Node], outputs: Sequence[Node]) -> set[Node]:
    """Outputs that are flipped scans."""
    scans = [node for node in kept if base_name(node) in SCANS]
    return {node for node in outputs if any(_flips(node, scan) for scan in scans)}


def _flips(node: Node, scan: Node) -> bool:
    if node.op != "call_function" or base_name(node) != "flip" or tensors(node) != [scan]:
        return False
    dims = [axis(scan, each) for each in argument(node, "dims")]
    return dims == [axis(scan, argument(scan, "dim"))] and len(scan.users) == 1


class _Writer(RowLoops):
    """The kernel while it is written."""

    def scan(self, name: str, struct: str) -> tuple[str, str]:
        """The text of the function, and its launch."""
        body, node, place, names = self.body, self._group.nodes[0], self._place, self._names
        self._reverse = len(self._group.nodes) > 1
        self._passes = int(self._reverse)  # tiles from the last one on
        kind, neutral = node_type(node), start_of(node)
        self._find_row()
        before = body.variable(kind, "before", neutral)
        with body.trial():
            target = element_index(body, self._group.space, self._element(), self._group.nodes[-1])
            run = body.flat(target, place.extents).removesuffix(self._k).removesuffix(" + ")
        inside = "length" if self._rows == "1" else f"mine == {self._row} ? length : 0"
        with self._tiles(self._value) as elements:
            if self._strided:
                with elements() as index:
                    value = body.let(kind, "value", self._read(body, index))
                    body.line(f"{before} = {SCANS[base_name(node)][0].format(before, value, kind=kind)};")
                    with body.block(f"if (mine == {self._row}) {{"):
                        at = element_index(body, self._group.space, index, self._group.nodes[-1])
                        body.store(place, at, before)
            else:
                items, vector, j, v = names["ITEMS"], names["VECTOR"], self._j, self._v
                values = body.fresh("values")
                body.line(f"{kind} {values}[{items}][{vector}];")
                self._before_element = f"{values}[{j}][{v}] = {neutral};"
                with elements() as index:
                    body.line(f"{values}[{j}][{v}] = {self._read(body, index)};")
                reverse = "true" if self._reverse else "false"
                body.line(f"scan<{struct}, {reverse}, {self._rows}, {self._lanes}>({values}, {before});")
                body.line("#pragma unroll")
                body.writes[place.name] = place
                out = self._schedule.parameter(place.name)
                out = f"{out} + {run}" if run else out
                with body.block(f"for (int {j} = 0; {j} < {items}; ++{j}) {{"):
                    results = f"{values}[{j}]"
                    if stored_type(place.dtype) != computed_type(place.dtype):
                        results = body.fresh("results")
                        body.line(f"{stored_type(place.dtype)} {results}[{vector}];")
                        body.line("#pragma unroll")
                        with body.block(f"for (int {v} = 0; {v} < {vector}; ++{v}) {{"):
                            body.line(f"{results}[{v}] = {stored(place.dtype, f'{values}[{j}][{v}]')};")
                    body.line(f"store({out}, {results}, first + {j} * ({self._lanes} * {vector}), {inside});")
        return self.written(name, self._schedule.described(self._group.nodes[-1]), place)

    def _value(self, body: Body, index: Index) -> None:
        body.line(f"value = {self._read(body, index)};")

    def _read(self, body: Body, index: Index) -> str:
        """The element of the operand that is added at an index of the result."""
        node = self._group.nodes[0]
        source = tensors(node)[0]
        at = list(element_index(body, self._group.space, index, source))
        if self._reverse:
            dim = axis(node, argument(node, "dim"))
            at[dim] = minus(f"{body.size(body.extents(source)[dim])} - 1", at[dim])
        return converted(body.read(source, at), numbers(source), numbers(node))
