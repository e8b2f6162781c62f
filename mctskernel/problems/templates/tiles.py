"""The template for matrix products: tiles on the tensor cores, with what follows in the epilogue.

A product has rows, columns and terms, and a batch of such matrices. blocks.cuh has the arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Given, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, stored
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product
from mctskernel.problems.plain_cuda.rules import Kind, is_tensor, operator_name, rule_of
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.operands import (
    LINES,
    STRIP,
    Names,
    Operand,
    Operands,
    matrix_operand,
    steps_of,
)

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

HEADER = "blocks.cuh"

MULTIPROCESSORS = 132
"""Of the GPUs that the first choice of tiles is made for."""

TILES = {(128, 192): 1.0, (128, 128): 0.9, (128, 64): 0.65, (64, 192): 0.7, (64, 128): 0.65, (64, 64): 0.5}
"""Rows and columns of a tile, and at what share of the best rate it computes."""

READS = {(True, True): 1.0, (True, False): 0.9, (False, True): 0.9, (False, False): 0.75}
"""Which operands are packed beforehand, and at what share of the best rate a product computes then."""

RATE, BANDWIDTH, LATENCY, PACKED = 1e14, 3e12, 3e-6, 12.0
"""Terms of sums and bytes of memory a second, seconds that a launch takes, and bytes of an element that is packed."""

FEWEST = 16
"""Rows, columns and terms below which most of a tile would be empty."""

FEWEST_OPERATIONS = 1 << 20
FEWEST_TERMS = 512
"""Of a part of a product whose terms are split over blocks."""


@dataclass(frozen=True)
class Product:
    """A product on tiles and the element-wise operators that follow it; the last of `nodes` is stored."""

    nodes: tuple[Node, ...]
    batch: sympy.Expr
    rows: sympy.Expr
    columns: sympy.Expr
    terms: sympy.Expr
    sizes: tuple[float, float, float, float]
    """Estimates of these."""

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """Kernels that pack the operands, and the product's; if it is split, one that adds up the parts' sums."""
        schedule.include(HEADER)
        node = self.nodes[0]
        operands = _operands(node, self)
        plan = _plan(self.sizes, [_is_stored(schedule, place, each) for each in operands[:2]])
        given = []
        for operand, packs in zip(operands[:2], plan.packs, strict=True):
            given.append(_Given(operand))
            if packs:
                extents = operand.gathered.ranges if operand.gathered else (operand.batch, operand.lines)
                ranges = Place(schedule.fresh(f"{node.name}_{operand.name}_ranges"), torch.int32, extents)
                buffer = Place(schedule.fresh(f"{node.name}_{operand.name}"), torch.float16, operand.packed)
                schedule.add_scratch(ranges, zero=True)
                schedule.add_scratch(buffer)
                given[-1] = _Given(operand, buffer, ranges)
                yield from _packing(schedule, node, operand, buffer, ranges)
        yield from self._product(schedule, place, plan, given, operands.steps)

    def _product(
        self,
        schedule: Schedule,
        place: Place,
        plan: _Plan,
        operands: Sequence[_Given],
        steps: sympy.Expr,
    ) -> Iterator[tuple[str, str]]:
        (rows, columns), splits = plan.tile, plan.splits
        tile_m, tile_n = schedule.macro("TILE_M", rows), schedule.macro("TILE_N", columns)
        stages = schedule.macro("STAGES", 4)
        schedule.require(
            f"({tile_m} == 64 || {tile_m} == 128) && ({tile_n} == 64 || {tile_n} == 128 || {tile_n} == 192)"
        )
        shared = f"{stages} * ({tile_m} + {tile_n}) * 128 + 3072"
        schedule.require(f"{stages} >= 3 && {shared} <= 232448")
        split = schedule.macro("SPLITS", splits) if splits > 1 else ""
        target = place
        if split:
            count = sympy.Symbol(split, integer=True, positive=True)
            extents = (count, *schedule.place("", self.nodes[0]).extents)
            target = Place(schedule.fresh(f"{self.nodes[0].name}_parts"), torch.float32, extents)
            schedule.add_scratch(target)
        made = self._function(schedule, target, (tile_m, tile_n, stages, split), operands, steps)
        down, across = (count_in_plan((each,)) for each in (self.rows, self.columns))
        grid = f"ceil_div({down}, {tile_m}) * ceil_div({across}, {tile_n})"
        for factor in (count_in_plan((self.batch,)), split):
            grid += f" * {factor}" if factor not in {"1", ""} else ""
        yield schedule.function(made), schedule.launch(made, grid, f"2 * {tile_m} + 128", shared)
        if split:
            given = {self.nodes[0]: _sum_of_parts(target)}
            yield schedule.kernel(schedule.whole(self.nodes[-1], place, given))

    def _function(
        self,
        schedule: Schedule,
        target: Place,
        macros: tuple[str, str, str, str],
        operands: Sequence[_Given],
        steps: sympy.Expr,
    ) -> Function:
        node = self.nodes[0]
        names = Names.of(schedule.body(target))
        tile_m, tile_n, stages, split = macros
        rows, columns, batch, count = (in_cpp(each) for each in (self.rows, self.columns, self.batch, steps))
        block, first, last = "blockIdx.x", "0", count
        lines = [f"extern __shared__ unsigned char {names.shared}[];"]
        if split:
            down, across = f"(({rows}) + {tile_m} - 1) / {tile_m}", f"(({columns}) + {tile_n} - 1) / {tile_n}"
            lines += [
                f"const int {names.tiles} = {down} * ({across}) * ({batch});",
                f"const int {names.split} = blockIdx.x / {names.tiles};",
                f"const int {names.split_steps} = ({count} + {split} - 1) / {split};",
            ]
            block, first = f"blockIdx.x % {names.tiles}", f"{names.split} * {names.split_steps}"
            last = f"min({count}, ({names.split} + 1) * {names.split_steps})"
        tile = f"{tile_m}, {tile_n}"
        lines.append(
            f"const blocks::Tile {names.tile} = blocks::tile<{tile}, 8>({rows}, {columns}, {block});"
        )
        if self.batch != ONE:
            lines.append(f"const int {names.batch} = {names.tile}.batch;")
        reads = []
        for variable, size, operand in zip((names.a, names.b), (rows, columns), operands, strict=True):
            text, read = operand.written(schedule, target, names, size)
            lines.append(f"const auto {variable} = {text};")
            reads += read
        value, index = self._epilogue(schedule, target, names, stored_parts=bool(split))
        arguments = f"int {names.row}, int {names.column}"
        text = "\n".join(f"    {line}" for line in lines) + (
            f"\n    blocks::multiply<{tile}, {stages}>({names.shared}, {names.a}, {names.b}, {names.tile}, {first}, {last},\n"
            f"        [&](const float (&{names.sums})[{tile_n} / 2]) {{\n"
            f"    blocks::store({schedule.parameter(target.name)}, {names.sums}, {names.tile}, {rows}, {columns},\n"
            f"        [&]({arguments}, float {names.sum}) {{\n{value.text()}\n        }},\n"
            f"        [&]({arguments}) {{\n{index.text()}\n        }});\n    }});"
        )
        reads += value.reads.values()
        found = {each.name: each for each in reads}
        found.pop(target.name, None)
        name = schedule.fresh(f"{operator_name(node).split('.')[-1]}_kernel")
        about = schedule.described(self.nodes[-1] if not split else node)
        return Function(
            name, about, text, tuple(found.values()), target, f"__launch_bounds__(2 * {tile_m} + 128, 1) "
        )

    def _epilogue(
        self, schedule: Schedule, target: Place, names: Names, *, stored_parts: bool
    ) -> tuple[Body, Body]:
        """What becomes of an element's sum, and where it is stored."""
        node, last = self.nodes[0], self.nodes[-1]

        def given(body: Body, index: Index) -> str:
            assert index == _index(body, node, names)  # noqa: S101 - the finder looked
            return names.sum

        value, place = (
            schedule.body(target, "long long" if schedule.is_large(target) else "int", {node: given})
            for _ in range(2)
        )
        for body in (value, place):
            Names.of(body)
        text = names.sum
        if not stored_parts:
            text = converted(value.read(last, _index(value, node, names)), numbers(last), target.dtype)
        value.line(f"return {stored(target.dtype, text)};")
        index = _index(place, node, names)
        flat = place.flat((names.split, *index) if stored_parts else index, target.extents)
        place.line(f"return {flat};")
        return value, place


@dataclass(frozen=True)
class _Given:
    """An operand as the kernel of the product has it: packed into a buffer, or without one as it is in memory."""

    operand: Operand
    buffer: Place | None = None
    ranges: Place | None = None

    def written(
        self, schedule: Schedule, target: Place, names: Names, size: str
    ) -> tuple[str, tuple[Place, ...]]:
        """The operand in C++, and the buffers that it reads."""
        if self.buffer is None or self.ranges is None:
            matrix = self.operand.matrix(schedule, target, replace(names, batch=self.operand.number(names)))
            return f"blocks::unpacked({matrix.text})", matrix.reads
        data, found = schedule.parameter(self.buffer.name), schedule.parameter(self.ranges.name)
        if self.operand.gathered is None:
            offsets = ["", ""]
            if self.operand.batch != ONE:
                number = self.operand.number(names)
                counts = (self.buffer.extents[1:], self.ranges.extents[1:])
                offsets = [f" + (long long){number} * {count_in_cpp(each)}" for each in counts]
            text = f"blocks::Tiles{{{data}{offsets[0]}, (const unsigned*){found}{offsets[1]}, {size}, {in_cpp(self.operand.steps)}}}"
        else:
            text = _gathered(
                schedule, target, names, self.operand, f"{data}, (const unsigned*){found}, {size}"
            )
        return text, (self.buffer, self.ranges)


def _is_stored(schedule: Schedule, place: Place, operand: Operand) -> bool:
    """Whether a product can read an operand as it is in memory."""
    return not operand.gathered and operand.matrix(schedule, place, Names.of(schedule.body(place))).is_stored


def _packing(
    schedule: Schedule, node: Node, operand: Operand, buffer: Place, ranges: Place
) -> Iterator[tuple[str, str]]:
    """The kernels that find an operand's ranges and pack it."""
    names = Names.of(schedule.body(buffer))
    matrix = operand.matrix(schedule, buffer, names)
    lines, terms = in_cpp(operand.lines), in_cpp(operand.terms)
    height = 32 if operand.gathered else LINES
    grid = f"ceil_div({count_in_plan((operand.lines,))}, {height}) * ceil_div({count_in_plan((operand.terms,))}, {STRIP})"
    if operand.batch != ONE:
        grid += f" * {count_in_plan((operand.batch,))}"
    start = [
        f"const blocks::Part {names.part}({lines}, {terms}, blockIdx.x, {height});",
        f"const int {names.batch} = {names.part}.batch;",
        f"const auto {names.matrix} = {matrix.text};",
    ]
    into, found, steps = (
        schedule.parameter(buffer.name),
        schedule.parameter(ranges.name),
        in_cpp(operand.steps),
    )
    if operand.batch != ONE:
        into += f" + (long long){names.batch} * {count_in_cpp(buffer.extents[1:])}"
    given = f"{names.matrix}, {names.part}, {terms}"
    if operand.gathered:
        range_of = f"[&](int {names.line}) {{ return {operand.gathered.pack_range(names)}; }}"
        calls = {
            "ranges": f"blocks::find_ranges((unsigned*){found}, {given}, {range_of});",
            "pack": f"blocks::pack({into}, (const unsigned*){found}, {given}, {steps}, {range_of});",
        }
    else:
        at = found if operand.batch == ONE else f"{found} + {names.batch} * {lines}"
        calls = {
            "ranges": f"blocks::find_ranges_of_lines((unsigned*){at}, {given});",
            "pack": f"blocks::pack_tiles({into}, (const unsigned*){at}, {given}, {steps});",
        }
    for word, target in (("ranges", ranges), ("pack", buffer)):
        text = "\n".join(f"    {line}" for line in (*start, calls[word]))
        reads = (*matrix.reads, *((ranges,) if word == "pack" else ()))
        name = schedule.fresh(f"{word}_of_{operand.name}_kernel")
        about = f"{word} of operand {operand.name}, {operator_name(node)}"
        made = Function(name, about, text, reads, target, "__launch_bounds__(256) ")
        yield schedule.function(made), schedule.launch(made, grid, "256")


def _gathered(schedule: Schedule, target: Place, names: Names, operand: Operand, given: str) -> str:
    """A gathered operand in the product's kernel."""
    assert operand.gathered is not None  # noqa: S101 - the caller looked
    variable = names.row if operand.name == "a" else names.column
    body = schedule.body(target)
    Names.of(body)

    @contextmanager
    def of_step() -> Iterator[None]:
        with body.block(f"return [=](int {names.step}) {{", end="};"):
            yield

    operand.gathered.at(body, names, of_step)
    ranged = schedule.body(target)
    Names.of(ranged)
    ranged.line(f"return {operand.gathered.main_range(ranged, names)};")
    return (
        f"blocks::packed({given},\n"
        f"        [&](int {variable}) {{\n{body.text()}\n    }},\n"
        f"        [&](int {variable}) {{\n{ranged.text()}\n    }})"
    )


def products(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Product]:
    """Products of fp32 matrices that fill tiles, each with what follows element by element."""
    for node in kept:
        shape = _shape(node, traced) if operator_name(node) in _PRODUCTS else None
        if shape is None:
            continue
        sizes = tuple(traced.estimate(each) for each in shape)
        if min(sizes[1:]) >= FEWEST and math.prod(sizes) >= FEWEST_OPERATIONS:
            follower = None if node in outputs else follower_of(node, kept, traced)
            nodes = (node,) if follower is None else (node, follower)
            yield Product(nodes, *shape, sizes=sizes)  # type: ignore[arg-type] # four of each


@dataclass(frozen=True)
class _Plan:
    """A tile, over how many blocks terms are split, and which operands are packed beforehand."""

    tile: tuple[int, int]
    splits: int
    packs: tuple[bool, bool]


def _plan(sizes: tuple[float, float, float, float], stored: Sequence[bool]) -> _Plan:
    """The plan with the least time, as waves of blocks and passes over the operands tell it.

    `stored` says which operands may be read as they are.
    """
    batch, rows, columns, terms = sizes
    elements = [batch * rows * terms, batch * columns * terms]

    def seconds(plan: _Plan) -> float:
        (m, n), splits = plan.tile, plan.splits
        blocks = batch * math.ceil(rows / m) * math.ceil(columns / n) * splits
        rate = RATE * TILES[plan.tile] * READS[plan.packs] / MULTIPROCESSORS
        spent = math.ceil(blocks / MULTIPROCESSORS) * (m * n * terms / splits / rate + LATENCY)
        for count, packs in zip(elements, plan.packs, strict=True):
            spent += PACKED * count / BANDWIDTH + 2 * LATENCY if packs else 0.0
        # Parts are written and read.
        return spent + (8 * splits * batch * rows * columns / BANDWIDTH + LATENCY if splits > 1 else 0.0)

    most = max(1, int(terms / FEWEST_TERMS))
    splits = [1 << power for power in range(most.bit_length()) if 1 << power <= 64]
    packings = [
        packs for packs in READS if all(each or also for each, also in zip(packs, stored, strict=True))
    ]
    return min((_Plan(*each) for each in itertools.product(TILES, splits, packings)), key=seconds)


_PRODUCTS = {"aten.mm", "aten.bmm"}


def _shape(node: Node, traced: Traced) -> tuple[sympy.Expr, ...] | None:
    """Batch, rows, columns and terms; None for what the template doesn't cover."""
    tensors: Any = (node, *node.args[:2])
    if any(numbers(each) is not torch.float32 for each in tensors):
        return None
    out, left = (tuple(map(traced.expression, each.meta["val"].shape)) for each in tensors[:2])
    return product(out[:-2]), out[-2], out[-1], left[-1]


def follower_of(node: Node, kept: Sequence[Node], traced: Traced) -> Node | None:
    """The one stored node that all uses of a node lead to, element by element; None where there is no such node."""
    shape = [traced.expression(size) for size in node.meta["val"].shape]
    found: set[Node] = set()
    # A number that depends on its sizes reads no elements.
    waiting, seen = [user for user in node.users if is_tensor(user)], set()
    while waiting:
        user = waiting.pop()
        if user in seen:
            continue
        seen.add(user)
        if user.op != "call_function" or rule_of(user).kind is not Kind.ELEMENT:
            return None
        if [traced.expression(size) for size in user.meta["val"].shape] != shape:
            return None
        if user in kept:
            found.add(user)
        else:
            waiting += filter(is_tensor, user.users)
    return found.pop() if len(found) == 1 else None


def _sum_of_parts(parts: Place) -> Given:
    def given(body: Body, index: Index) -> str:
        found = body.variable("float", "sum", "0.0f")
        with body.loop("part", "0", body.size(parts.extents[0])) as part:
            body.line(f"{found} += {body.load(parts, (part, *index))};")
        return found

    return given


def _operands(node: Node, product: Product) -> Operands:
    """The two operands, and the steps of a product."""
    left, right = node.args
    return Operands(
        matrix_operand("a", left, product.batch, product.rows, product.terms),
        matrix_operand("b", right, product.batch, product.columns, product.terms),
        steps_of(product.terms),
    )


def _index(body: Body, node: Node, names: Names) -> Index:
    """The index of a product's element, in the order of its tensor's axes."""
    return (*((names.batch,) if len(body.extents(node)) == 3 else ()), names.row, names.column)
