"""The template for convolutions in TF32, which is PyTorch's own precision for those of fp32 unless it is told otherwise.

Strides, dilation, groups and transposition become tables of taps, which convolutions.cuh describes. What follows
element by element is computed where sums are stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Index, Place, numbers, plus, times
from mctskernel.problems.plain_cuda.element_types import converted, stored
from mctskernel.problems.plain_cuda.extents import ONE, count_in_plan, in_cpp
from mctskernel.problems.plain_cuda.products import AXES
from mctskernel.problems.plain_cuda.rules import argument, operator_name
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.convolutions import CONVOLUTION
from mctskernel.problems.templates.tiles import Product, follower, product_of, with_bias

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

HEADER = "convolutions.cuh"

ROWS, COLUMNS, STEP, THREADS = 64, 256, 8, 192
STORED = ROWS * (COLUMNS + 8) * 4
"""Of a block and a stage, as the header has them, and the bytes by way of which a block stores."""

MOST_TAPS = 21
"""Taps whose weights a stage holds."""

MOST_SHARED = 232448
SHARED = 112 << 10
"""Bytes with which two blocks fit on a multiprocessor."""


class Section(NamedTuple):
    """Taps with one origin of the input: along depth, rows and columns."""

    phase: int
    origins: tuple[int, int, int]
    taps: tuple[tuple[int, int, int], ...]
    """Rows and columns of the input from the origin on, and the number of the tap's weight."""


@dataclass(frozen=True)
class Geometry:
    """What a convolution does along depth, rows and columns, as `convolutions.cuh` describes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    @property
    def steps(self) -> tuple[int, ...]:
        """Inputs for a place of the result along each axis."""
        return (1, 1, 1) if self.transposed else self.stride

    @property
    def out(self) -> tuple[int, ...]:
        """Results for a place of a phase along each axis."""
        return self.stride if self.transposed else (1, 1, 1)

    def sections(self) -> Iterator[Section]:
        """The sections of all phases in order."""
        for number, phase in enumerate(itertools.product(*map(range, self.out))):
            axes = [self._classes(axis, each) for axis, each in enumerate(phase)]
            for depth, rows, columns in itertools.product(*axes):
                for tap, at in depth.taps:
                    yield from self._split(number, depth.base + self.steps[0] * at, tap, (rows, columns))

    def _classes(self, axis: int, phase: int) -> list[_Class]:
        """The taps of an axis by what they have in common: input step * (place + at) + base."""
        stride, padding, dilation = self.stride[axis], self.padding[axis], self.dilation[axis]
        found: dict[int, list[tuple[int, int]]] = {}
        for tap in range(self.kernel[axis]):
            if self.transposed:
                at, rest = divmod(phase + padding - tap * dilation, stride)
                if rest == 0:
                    found.setdefault(0, []).append((tap, at))
            else:
                at, rest = divmod(tap * dilation, stride)
                found.setdefault(rest, []).append((tap, at))
        return [_Class(rest - (0 if self.transposed else padding), taps) for rest, taps in found.items()]

    def _split(
        self, phase: int, depth: int, depth_tap: int, axes: tuple[_Class, _Class]
    ) -> Iterator[Section]:
        """Sections of at most MOST_TAPS taps, unless one row has more."""
        rows, columns = axes
        parts = math.ceil(len(rows.taps) * len(columns.taps) / MOST_TAPS)
        size = math.ceil(len(rows.taps) / parts)
        left = min(at for _, at in columns.taps)
        for start in range(0, len(rows.taps), size):
            part = rows.taps[start : start + size]
            top = min(at for _, at in part)
            taps = tuple(
                (row - top, column - left, (depth_tap * self.kernel[1] + y) * self.kernel[2] + x)
                for (y, row), (x, column) in itertools.product(part, columns.taps)
            )
            origins = depth, rows.base + self.steps[1] * top, columns.base + self.steps[2] * left
            yield Section(phase, origins, taps)


class _Class(NamedTuple):
    base: int
    taps: list[tuple[int, int]]


@dataclass(frozen=True)
class Tables:
    """The sections of a geometry, and what its blocks need to know at compile time."""

    geometry: Geometry
    sections: tuple[Section, ...]

    @property
    def most_taps(self) -> int:
        """Of a section."""
        return max(len(each.taps) for each in self.sections)

    @property
    def halo(self) -> tuple[int, int]:
        """Rows and columns of inputs beyond those of places."""
        taps = [tap for each in self.sections for tap in each.taps]
        return max(row for row, _, _ in taps), max(column for _, column, _ in taps)

    def lines(self, strip: int) -> int:
        """Lines of a stage with so many columns in a strip."""
        rows, columns = self.halo
        return math.ceil((COLUMNS + rows * (strip + columns) + columns) / 32) * 32

    def stage(self, strip: int, deep: int) -> int:
        """Bytes of a stage."""
        return deep * (self.lines(strip) * STEP * 4 + self.most_taps * ROWS * STEP * 4)

    def text(self, name: str) -> str:
        """The definitions in C++."""
        geometry, (rows, columns) = self.geometry, self.halo
        phases = [0] * (math.prod(geometry.out) + 1)
        for each in self.sections:
            phases[each.phase + 1] += 1
        phases = list(itertools.accumulate(phases))
        first = list(itertools.accumulate((len(each.taps) for each in self.sections), initial=0))
        sections = ", ".join(
            f"{{{', '.join(map(str, (*each.origins, first[number], len(each.taps))))}}}"
            for number, each in enumerate(self.sections)
        )
        taps = ", ".join(
            f"{{{row}, {column}, {weight}, {number}}}"
            for number, each in enumerate(self.sections)
            for row, column, weight in each.taps
        )
        listed = {"STEPS": geometry.steps, "OUT": geometry.out}
        return (
            f"// Origins along depth, rows and columns, first tap, taps.\n"
            f"__constant__ const convolutions::Section {name}_sections[] = {{{sections}}};\n"
            f"// Row and column from the origin, weight, section.\n"
            f"__constant__ const convolutions::Tap {name}_taps[] = {{{taps}}};\n"
            f"__constant__ const int {name}_phases[] = {{{', '.join(map(str, phases))}}};\n\n"
            f"struct {name}_geometry {{\n"
            f"    static constexpr int TAPS = {first[-1]}, PHASES = {len(phases) - 1}, MOST_TAPS = {self.most_taps};\n"
            f"    static constexpr int HALO_ROWS = {rows}, HALO_COLUMNS = {columns};\n"
            + "".join(
                f"    static constexpr int {word}[] = {{{', '.join(map(str, each))}}};\n"
                for word, each in listed.items()
            )
            + "};"
        )


@dataclass(frozen=True)
class Convolution:
    """A convolution and the element-wise operators that follow it; the last of `nodes` is stored.

    Where its input isn't in memory as it is, it is computed as `fallback`.
    """

    nodes: tuple[Node, ...]
    tables: Tables
    fallback: Product

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """A kernel that packs the weights, and the convolution's."""
        node = self.nodes[0]
        tensor: Any = argument(node, "input")
        found = schedule.places.get(tensor)
        if found is None or found.dtype is not torch.float32:
            yield from self.fallback.kernels(schedule, place)
            return
        schedule.include(HEADER)
        groups = int(argument(node, "groups"))
        body = schedule.body(place)
        given, out = body.extents(tensor), body.extents(node)
        channels, rows = given[1] // groups, out[1] // groups
        places = [
            extent if step == 1 else sympy.floor((extent + step - 1) / step)
            for extent, step in zip(_three(out[2:], ONE), self.tables.geometry.out, strict=True)
        ]
        strip, deep, stages = self._choice(schedule, channels, places)
        macros = tuple(
            schedule.macro(word, value)
            for word, value in zip(("STRIP", "DEEP", "STAGES"), (strip, deep, stages), strict=True)
        )
        name = schedule.fresh(node.name)
        schedule.define(self.tables.text(name))
        sizes = f"{in_cpp(out[0])}, {groups}, {in_cpp(channels)}, {in_cpp(rows)}, " + ", ".join(
            f"{{{', '.join(map(in_cpp, each))}}}"
            for each in (_three(given[2:], ONE), _three(out[2:], ONE), places)
        )
        steps = sympy.Symbol(macros[1], integer=True, positive=True)
        count = (
            sympy.Integer(groups),
            _parts(rows, ROWS),
            sympy.Integer(sum(len(e.taps) for e in self.tables.sections)),
        )
        packed = Place(
            schedule.fresh(f"{node.name}_weights"),
            torch.float32,
            (*count, sympy.floor((channels + steps * STEP - 1) / (steps * STEP)), steps * STEP * ROWS),
        )
        schedule.add_scratch(packed)
        yield self._packing(schedule, packed, (name, sizes, macros[1]))
        yield self._product(schedule, place, (name, sizes, *macros), (found, packed), places)

    def _choice(
        self, schedule: Schedule, channels: sympy.Expr, places: Sequence[sympy.Expr]
    ) -> tuple[int, int, int]:
        """Columns of a strip, steps of a stage, and stages."""
        columns = schedule.estimate((places[2],))
        rows, halo = self.tables.halo

        def cost(strip: int) -> float:
            return (
                math.ceil(columns / strip) * (strip + halo) * (1 + self.tables.lines(strip) / (4 * COLUMNS))
            )

        widths = (
            {math.ceil(columns / parts) for parts in range(1, columns + 1)} if rows or halo else {columns}
        )
        strip = min(sorted(each for each in widths if each >= min(8, columns)), key=cost)
        steps = math.ceil(schedule.estimate((channels,)) / STEP)
        deep = 1
        while deep < 4 and deep < steps and self.tables.most_taps * deep < 6:
            deep *= 2
        stages = min(max(SHARED // self.tables.stage(strip, deep), 2), 4)
        return strip, deep, stages

    def _packing(self, schedule: Schedule, packed: Place, words: tuple[str, str, str]) -> tuple[str, str]:
        """The kernel that packs the weights."""
        node = self.nodes[0]
        weight: Any = argument(node, "weight")
        name, sizes, deep = words
        body = schedule.body(packed)
        group, row, channel, tap = (body.fresh(each) for each in ("group", "row", "channel", "tap"))
        extents = body.extents(weight)
        groups = int(argument(node, "groups"))
        places = body.unflat(tap, extents[2:], [f"tap_{each}" for each in AXES[len(extents) - 2]])
        transposed = bool(argument(node, "transposed"))
        own = extents[0] // groups
        first = channel if transposed else row
        index = (
            first if groups == 1 else plus(times(group, in_cpp(own)), first),
            row if transposed else channel,
        )
        body.line(f"return {body.read(weight, (*index, *places))};")
        text = (
            f"    const convolutions::Sizes sizes = {{{sizes}}};\n"
            f"    convolutions::pack_weights<{name}_geometry, {deep}>({schedule.parameter(packed.name)},\n"
            f"        (long long)blockIdx.x * blockDim.x + threadIdx.x, sizes, {name}_taps, {name}_sections,\n"
            f"        [&](int {group}, int {row}, int {channel}, int {tap}) {{\n{body.text()}\n        }});"
        )
        made = Function(
            schedule.fresh("pack_weights_kernel"),
            f"weights, {operator_name(node)}",
            text,
            tuple(body.reads.values()),
            packed,
            "__launch_bounds__(256) ",
        )
        return schedule.function(made), schedule.launch(
            made, f"ceil_div({count_in_plan(packed.extents)}, 256)", "256"
        )

    def _product(
        self,
        schedule: Schedule,
        place: Place,
        words: tuple[str, str, str, str, str],
        read: tuple[Place, Place],
        places: Sequence[sympy.Expr],
    ) -> tuple[str, str]:
        """The kernel of the convolution."""
        node = self.nodes[0]
        name, sizes, strip, deep, stages = words
        tensor, packed = read
        body = schedule.body(place)
        out = body.extents(node)
        groups = int(argument(node, "groups"))
        value, index, names = self._epilogue(schedule, place)
        shared = body.fresh("shared")
        arguments = ", ".join(f"int {each}" for each in names[:-1])
        text = (
            f"    extern __shared__ unsigned char {shared}[];\n"
            f"    const convolutions::Sizes sizes = {{{sizes}}};\n"
            f"    convolutions::convolve<{name}_geometry, {strip}, {deep}, {stages}>(\n"
            f"        {schedule.parameter(place.name)}, {shared}, {schedule.parameter(tensor.name)}, "
            f"{schedule.parameter(packed.name)}, sizes,\n"
            f"        {name}_sections, {name}_taps, {name}_phases,\n"
            f"        [&]({arguments}, float {names[-1]}) {{\n{value.text()}\n        }},\n"
            f"        [&]({arguments}) {{\n{index.text()}\n        }});"
        )
        reads = {each.name: each for each in (tensor, packed, *value.reads.values())}
        reads.pop(place.name, None)
        made = Function(
            schedule.fresh("convolution_kernel"),
            schedule.described(self.nodes[-1]),
            text,
            tuple(reads.values()),
            place,
            f"__launch_bounds__({THREADS}, 2) ",
        )
        rows, columns = self.tables.halo
        lines = f"ceil_div({COLUMNS} + {rows} * ({strip} + {columns}) + {columns}, 32) * 32"
        in_text = f"({COLUMNS} + {rows} * ({strip} + {columns}) + {columns} + 31) / 32 * 32"
        stage = f"{stages} * {deep} * ({{}} * {STEP * 4} + {self.tables.most_taps * ROWS * STEP * 4})"
        schedule.require(f"{strip} >= 1 && {strip} <= 65536 && {stages} >= 1 && {deep} >= 1 && {deep} <= 8")
        schedule.require(f"{stage.format(in_text)} + 1024 <= {MOST_SHARED}")
        width = f"min({strip}, {count_in_plan((places[2],))})"
        high = f"({count_in_plan((places[1],))} + {rows})"
        planes = count_in_plan((out[0], places[0]))
        phases = math.prod(self.tables.geometry.out)
        grid = (
            f"ceil_div({planes} * {high} * ({width} + {columns}), {COLUMNS}) * ceil_div({count_in_plan((places[2],))}, {width})"
            f" * ceil_div({count_in_plan((out[1] // groups,))}, {ROWS})"
        )
        for factor in (groups, phases):
            grid += f" * {factor}" if factor != 1 else ""
        return schedule.function(made), schedule.launch(
            made, grid, str(THREADS), f"max({stage.format(lines)}, {STORED}) + 1024"
        )

    def _epilogue(self, schedule: Schedule, place: Place) -> tuple[Body, Body, tuple[str, ...]]:
        """What becomes of an element's sum, where it is stored, and what the arguments of both are called."""
        node, last = self.nodes[0], self.nodes[-1]
        kind = "long long" if schedule.is_large(place) else "int"
        rank = len(schedule.body(place).extents(node)) - 2
        words = ("image", "channel", "depth", "row", "column", "product")
        names: tuple[str, ...] = ()

        def given(body: Body, index: Index) -> str:
            return with_bias(body, node, index, names[-1])

        value, at = (schedule.body(place, kind, {node: given}) for _ in range(2))
        for body in (value, at):
            names = tuple(map(body.fresh, words))
        image = "0" if value.extents(node)[0] == ONE else names[0]
        index = (image, names[1], *names[5 - rank : 5])
        text = converted(value.read(last, index), numbers(last), place.dtype)
        value.line(f"return {stored(place.dtype, text)};")
        at.line(f"return {at.flat(index, place.extents)};")
        return value, at, names


def convolutions(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Convolution]:
    """The convolutions of fp32 that PyTorch computes in TF32, each with what follows element by element."""
    if not torch.backends.cudnn.allow_tf32:
        return
    for node in kept:
        if operator_name(node) != CONVOLUTION:
            continue
        fallback = product_of(node, traced)
        tables = _tables(node, traced)
        if fallback is None or tables is None:
            continue
        behind = None if node in outputs else follower(node, kept, traced)
        yield Convolution((node,) if behind is None else (node, behind), tables, fallback)


def _tables(node: Node, traced: Traced) -> Tables | None:
    """The tables of a convolution; None where the template doesn't cover it."""
    weight: Any = argument(node, "weight")
    kernel = [traced.expression(size) for size in weight.meta["val"].shape[2:]]
    if not all(each.is_Integer for each in kernel):
        return None
    rank = len(kernel)

    def each(word: str, empty: int) -> tuple[int, ...]:
        values = [int(value) for value in argument(node, word)]
        return _three(values * rank if len(values) == 1 else values, empty)

    geometry = Geometry(
        _three([int(size) for size in kernel], 1),
        each("stride", 1),
        each("padding", 0),
        each("dilation", 1),
        bool(argument(node, "transposed")),
    )
    found = Tables(geometry, tuple(geometry.sections()))
    return found if 2 * found.stage(8, 1) <= MOST_SHARED - 1024 else None


def _three(values: Sequence[Any], empty: Any) -> tuple[Any, ...]:
    """Numbers along depth, rows and columns, from those of an image's axes."""
    return (*[empty] * (3 - len(values)), *values)


def _parts(size: sympy.Expr, part: int) -> sympy.Expr:
    return sympy.floor((size + part - 1) / part)
