"""The template for matrix products: tiles on the tensor cores, with what follows in the epilogue.

A product has rows, columns and terms, and a batch of such matrices. blocks.cuh has the arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Given, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, stored, stored_type
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product
from mctskernel.problems.plain_cuda.rules import Kind, is_tensor, operator_name, rule_of
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.operands import LINES, STEPS, Memory, Names, Operand, map_given

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

HEADER = "blocks.cuh"

MULTIPROCESSORS = 132
"""Of the GPUs that the first choice of tiles is made for."""

TILES = {(128, 192): 1.0, (128, 128): 0.87, (128, 64): 0.6, (64, 192): 0.65, (64, 128): 0.55, (64, 64): 0.4}
HALF_TILES = {
    **{(192, 192): 3.24, (192, 128): 3.0, (192, 64): 2.1},
    **{(128, 256): 3.17, (128, 192): 3.0, (128, 128): 2.8, (128, 64): 1.87},
    **{(64, 256): 2.26, (64, 192): 2.13, (64, 128): 1.87, (64, 64): 1.4},
}
"""Rows and columns of a tile of fp32 and of 16-bit numbers, and at what multiple of RATE it computes."""

RATE, BANDWIDTH, LATENCY, STORED = 1.25e14, 3e12, 1e-6, 1.5e-10
"""On an H200: terms and bytes a second, and seconds of a tile's or launch's beginning and of storing a number."""

TOGETHER = 2
"""Blocks that share what they copy, where there are several rows of tiles."""

MOST_SHARED, BESIDE_STAGES = 232448, 4096
"""Bytes of shared memory of a block, and of those that aren't stages."""

_PRODUCTS = {"aten.mm", "aten.bmm"}
_FOLLOWED = {"aten.mm", "aten.convolution"}

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
    dtype: torch.dtype

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """Kernels that bring operands into the form that the product reads, and the product's; one that adds up parts.

        Numbers of fp32 are packed, and others are read where they are; those that are computed are stored first.
        """
        schedule.include(HEADER)
        node: Any = self.nodes[0]
        is_packed = self.dtype is torch.float32
        operands = [
            Operand(name, source, self.dtype, self.batch, lines, self.terms)
            for name, source, lines in (("a", node.args[0], self.rows), ("b", node.args[1], self.columns))
        ]
        given: list[_Packed] | list[_Stored]
        if is_packed:
            given = self._packed(schedule, operands)
            yield from _packing(schedule, node, given)
        else:
            for each in operands:
                if each.memory(schedule, place, Names.of(schedule.body(place))) is None:
                    kept = schedule.place(schedule.fresh(f"{node.name}_{each.name}"), each.node)
                    schedule.add_scratch(kept)
                    yield schedule.kernel(schedule.whole(each.node, kept))
                    schedule.places[each.node] = kept
            given = [_Stored.of(schedule, each, place) for each in operands]
        tiles = TILES if is_packed else HALF_TILES
        (rows, columns), splits = _tiling(self.sizes, tiles, TOGETHER)
        tile_m, tile_n = schedule.macro("TILE_M", rows), schedule.macro("TILE_N", columns)
        most = (MOST_SHARED - BESIDE_STAGES) // ((rows + columns) * 128)
        stages, group = schedule.macro("STAGES", min(most, 6) if is_packed else 4), schedule.macro("GROUP", 8)
        cluster = schedule.macro("CLUSTER", TOGETHER if self.sizes[1] > rows else 1)
        blocks = schedule.macro("BLOCKS", MULTIPROCESSORS)
        shared = f"{stages} * ({tile_m} + {tile_n}) * 128 + {BESIDE_STAGES}"
        for macro, axis in ((tile_m, 0), (tile_n, 1)):
            allowed = sorted({tile[axis] for tile in tiles})
            schedule.require(" || ".join(f"{macro} == {each}" for each in allowed))
        if not is_packed:
            schedule.require(f"{tile_m} <= 128 || {tile_n} <= 192")
        schedule.require(f"({cluster} == 1 || {cluster} == 2) && {blocks} >= {cluster}")
        schedule.require(f"{stages} >= 3 && {shared} <= {MOST_SHARED}")
        schedule.require(f"{group} >= 1 && {group} <= 64")
        split = schedule.macro("SPLITS", splits) if splits > 1 else ""
        target = place
        if split:
            schedule.require(f"{split} >= 1 && {split} <= 64")
            count = sympy.Symbol(split, integer=True, positive=True)
            target = Place(
                schedule.fresh(f"{node.name}_parts"),
                torch.float32,
                (count, *schedule.place("", node).extents),
            )
            schedule.add_scratch(target)
        made = self._function(schedule, target, (tile_m, tile_n, stages, group, cluster, split), given)
        down, across = (count_in_plan((each,)) for each in (self.rows, self.columns))
        grid = f"ceil_div({down}, ({tile_m} * {cluster})) * ceil_div({across}, {tile_n})"
        for factor in (count_in_plan((self.batch,)), split):
            grid += f" * {factor}" if factor not in {"1", ""} else ""
        grid = f"{cluster} * min({blocks} // {cluster}, {grid})"
        yield schedule.function(made), schedule.launch(made, grid, f"2 * {tile_m} + 128", shared, cluster)
        if split:
            parts = {node: _sum_of_parts(target)}
            yield schedule.kernel(schedule.whole(self.nodes[-1], place, parts))

    def _packed(self, schedule: Schedule, operands: Sequence[Operand]) -> list[_Packed]:
        node = self.nodes[0]
        extents = (self.batch, self.rows + self.columns, sympy.Integer(2))
        ranges = Place(schedule.fresh(f"{node.name}_ranges"), torch.int32, extents)
        schedule.add_scratch(ranges, zero=True)
        found = []
        for each in operands:
            buffer = Place(schedule.fresh(f"{node.name}_{each.name}"), torch.float16, each.packed)
            schedule.add_scratch(buffer)
            found.append(_Packed(each, buffer, ranges, sympy.Integer(0) if each.name == "a" else self.rows))
        return found

    def _function(
        self,
        schedule: Schedule,
        target: Place,
        macros: tuple[str, str, str, str, str, str],
        given: Sequence[_Packed] | Sequence[_Stored],
    ) -> Function:
        node = self.nodes[0]
        names = Names.of(schedule.body(target))
        tile_m, tile_n, stages, group, cluster, split = macros
        rows, columns, batch, steps = (
            in_cpp(each) for each in (self.rows, self.columns, self.batch, given[0].operand.steps)
        )
        extents = f"{rows}, {columns}, {steps}, {batch}, {split or 1}"
        tiling = f"blocks::Tiling<{tile_m} * {cluster}, {tile_n}, {group}>{{{extents}}}"
        lines = [
            f"extern __shared__ unsigned char {names.shared}[];",
            f"blocks::multiply<{tile_m}, {tile_n}, {stages}, {cluster}>({names.shared}, {tiling},",
        ]
        of_batch = f"const int {names.batch} = {names.tile}.batch; " if self.batch != ONE else ""
        lines += [
            f"    [&](const blocks::Tile& {names.tile}) {{ {of_batch}return {each.written(schedule, names.batch)}; }},"
            for each in given
        ]
        value, index = self._epilogue(schedule, target, names, stored_parts=bool(split))
        arguments = f"int {names.row}, int {names.column}"
        lines += [
            f"    [&](const blocks::Tile& {names.tile}, const float (&{names.sums})[{tile_n} / 2]) {{",
            *([f"        const int {names.batch} = {names.tile}.batch;"] if self.batch != ONE else []),
            f"        blocks::store({schedule.parameter(target.name)}, {names.sums}, {names.tile}, {rows}, {columns},",
            f"            [&]({arguments}, float {names.sum}) {{\n{value.text()}\n            }},",
            f"            [&]({arguments}) {{\n{index.text()}\n            }});",
            "    });",
        ]
        reads = [*(each for one in given for each in one.reads), *value.reads.values()]
        found = {each.name: each for each in reads}
        found.pop(target.name, None)
        return Function(
            schedule.fresh(f"{operator_name(node).split('.')[-1]}_kernel"),
            schedule.described(self.nodes[-1] if not split else node),
            "\n".join(f"    {line}" for line in lines),
            tuple(found.values()),
            target,
            f"__launch_bounds__(2 * {tile_m} + 128, 1) ",
            given=tuple(map_given(each.map) for each in given if isinstance(each, _Stored) and each.map),
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
        flat = place.flat((f"{names.tile}.part", *index) if stored_parts else index, target.extents)
        place.line(f"return {flat};")
        return value, place


@dataclass(frozen=True)
class _Packed:
    """An operand with buffers for it packed and for the ranges of lines, `before` which may be the other operand's."""

    operand: Operand
    buffer: Place
    ranges: Place
    before: sympy.Expr

    @property
    def reads(self) -> tuple[Place, ...]:
        """The buffers that the product reads."""
        return self.buffer, self.ranges

    def places(self, schedule: Schedule, batch: str) -> tuple[str, str]:
        """Where a matrix of the batch is packed, and where its ranges are."""

        def of(place: Place, count: tuple[sympy.Expr, ...]) -> str:
            offset = "" if self.operand.batch == ONE else f" + (long long){batch} * {count_in_cpp(count)}"
            return schedule.parameter(place.name) + offset

        before = f" + {in_cpp(self.before)}" if self.before else ""
        ranges = f"(blocks::Range*){of(self.ranges, self.ranges.extents[1:2])}{before}"
        return of(self.buffer, self.buffer.extents[1:]), ranges

    def written(self, schedule: Schedule, batch: str) -> str:
        """The operand in the kernel of the product."""
        data, ranges = self.places(schedule, batch)
        return (
            f"blocks::Packed{{{data}, {ranges}, {in_cpp(self.operand.lines)}, {in_cpp(self.operand.steps)}}}"
        )


@dataclass(frozen=True)
class _Stored:
    """An operand where it is in memory, and its tensor map's name, if TMA can read such."""

    operand: Operand
    memory: Memory
    map: str

    @staticmethod
    def of(schedule: Schedule, operand: Operand, target: Place) -> _Stored:
        memory = operand.memory(schedule, target, Names.of(schedule.body(target)))
        assert memory is not None  # noqa: S101 - it is stored before
        extents = memory.place.extents
        shape = extents if len(extents) == 3 else (ONE, *extents)
        name = schedule.add_tensor_map(memory.place, shape, (1, LINES, LINES)) if memory.batch else ""
        return _Stored(operand, memory, name)

    @property
    def reads(self) -> tuple[Place, ...]:
        """The buffers that the product reads."""
        return (self.memory.place,)

    def written(self, schedule: Schedule, batch: str) -> str:
        """The operand in the kernel of the product."""
        del schedule, batch  # its expressions have them
        found, operand = self.memory, self.operand
        kind = f"{stored_type(operand.dtype)}, {'true' if found.by_term else 'false'}"
        pointer, at = (f"&{self.map}", found.batch) if self.map else ("nullptr", "0")
        sizes = f"{in_cpp(operand.lines)}, {in_cpp(operand.terms)}, {at}, {in_cpp(found.stride)}"
        return f"blocks::Stored<{kind}>{{{pointer}, {found.data}, {sizes}}}"


def _packing(schedule: Schedule, node: Node, packed: Sequence[_Packed]) -> Iterator[tuple[str, str]]:
    """The kernel that packs both operands, and its second launch, which packs again what the first one couldn't."""
    names = Names.of(schedule.body(packed[0].buffer))
    first = count_in_cpp(packed[0].operand.blocks)
    lines: list[str] = []
    reads: list[Place] = []
    for each in packed:
        operand, is_first = each.operand, each is packed[0]
        matrix = operand.matrix(schedule, each.buffer, names)
        reads += matrix.reads
        extents = f"{in_cpp(operand.lines)}, {in_cpp(operand.steps)}"
        block = "blockIdx.x" if is_first else f"blockIdx.x - {first}"
        data, ranges = each.places(schedule, names.batch)
        lines += [
            f"if (blockIdx.x < {first}) {{" if is_first else "} else {",
            f"    const blocks::Part {names.part}({extents}, {block});",
            *([f"    const int {names.batch} = {names.part}.batch;"] if operand.batch != ONE else []),
            f"    const auto {names.matrix} = {matrix.text};",
            f"    blocks::pack({data}, {ranges}, {names.matrix}, {names.part}, {names.again});",
        ]
    made = Function(
        schedule.fresh("pack_kernel"),
        f"pack the operands of {operator_name(node)}, and again where they had too small a scale",
        "\n".join(f"    {line}" for line in (*lines, "}")),
        tuple({each.name: each for each in reads}.values()),
        packed[1].buffer,
        "__launch_bounds__(256) ",
        also=(packed[0].ranges, packed[0].buffer),
        given=((f"int {names.again}", "0"),),
    )
    grid = " + ".join(count_in_plan(each.operand.blocks) for each in packed)
    yield schedule.function(made), schedule.launch(made, grid, "256")
    yield "", schedule.launch(replace(made, given=((f"int {names.again}", "1"),)), grid, "256")


def products(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Product]:
    """Products of matrices that fill tiles, each with what follows element by element."""
    for node in kept:
        shape = _shape(node, traced) if operator_name(node) in _PRODUCTS else None
        if shape is None:
            continue
        sizes = tuple(traced.estimate(each) for each in shape)
        if min(sizes[1:]) >= FEWEST and math.prod(sizes) >= FEWEST_OPERATIONS:
            follower = None if node in outputs else follower_of(node, kept, traced)
            nodes = (node,) if follower is None else (node, follower)
            yield Product(nodes, *shape, sizes, numbers(node))  # type: ignore[arg-type] # four of them


def _tiling(
    sizes: tuple[float, float, float, float], tiles: Mapping[tuple[int, int], float], cluster: int
) -> tuple[tuple[int, int], int]:
    """The tile with the least time, as waves of blocks tell it, and over how many blocks terms are split.

    Where there are several rows of tiles, so many of a `cluster` are computed together.
    """
    batch, rows, columns, terms = sizes

    def seconds(tile: tuple[int, int], splits: int) -> float:
        together = cluster if rows > tile[0] else 1
        blocks = (
            together * batch * math.ceil(rows / tile[0] / together) * math.ceil(columns / tile[1]) * splits
        )
        rate, area = RATE * tiles[tile] / MULTIPROCESSORS, tile[0] * tile[1]
        spent = math.ceil(blocks / MULTIPROCESSORS) * (area * (terms / splits / rate + STORED) + LATENCY)
        # Parts are written and read.
        return spent + (8 * splits * batch * rows * columns / BANDWIDTH + 3 * LATENCY if splits > 1 else 0.0)

    most = max(1, int(terms / FEWEST_TERMS))
    splits = [1 << power for power in range(most.bit_length()) if 1 << power <= 64]
    return min(itertools.product(tiles, splits), key=lambda each: seconds(*each))


def _shape(node: Node, traced: Traced) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr, sympy.Expr] | None:
    """Batch, rows, columns and terms; None for what the template doesn't cover."""
    tensors: Any = (node, *node.args[:2])
    if numbers(node) not in STEPS or any(numbers(each) is not numbers(node) for each in tensors):
        return None
    out, left = (tuple(map(traced.expression, each.meta["val"].shape)) for each in tensors[:2])
    return product(out[:-2]), out[-2], out[-1], left[-1]


def follower_of(
    node: Node, kept: Sequence[Node], traced: Traced, known: Collection[Node] = ()
) -> Node | None:
    """The one stored node that all uses of a node lead to, element by element; None where there is no such node.

    Those that are `known` need it no more.
    """
    shape = [traced.expression(size) for size in node.meta["val"].shape]
    found: set[Node] = set()
    # A number that depends on its sizes reads no elements.
    waiting, seen = [user for user in node.users if is_tensor(user)], {*known}
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


def followed(order: Sequence[Node], kept: Sequence[Node], traced: Traced) -> Iterator[Node]:
    """What several others read of chains behind products and convolutions: it had better be stored in place of sums."""
    for node in kept:
        if operator_name(node) in _FOLLOWED and follower_of(node, kept, traced) is None:
            end = end_of(node, order, kept, traced)
            if end is not node and len([user for user in end.users if is_tensor(user)]) > 1:
                yield end


def end_of(node: Node, order: Iterable[Node], kept: Sequence[Node], traced: Traced) -> Node:
    """The last node, of those that aren't kept, that all uses of a node lead to element by element; or else itself."""
    ends = [each for each in order if each not in kept and follower_of(node, [*kept, each], traced) is each]
    return ends[-1] if ends else node


def _sum_of_parts(parts: Place) -> Given:
    def given(body: Body, index: Index) -> str:
        found = body.variable("float", "sum", "0.0f")
        with body.loop("part", "0", body.size(parts.extents[0])) as part:
            body.line(f"{found} += {body.load(parts, (part, *index))};")
        return found

    return given


def _index(body: Body, node: Node, names: Names) -> Index:
    """The index of a product's element, in the order of its tensor's axes."""
    return (*((names.batch,) if len(body.extents(node)) == 3 else ()), names.row, names.column)
