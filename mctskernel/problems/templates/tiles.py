"""The template for matrix products: tiles on the tensor cores, with what follows in the epilogue.

A product has rows, columns and terms, and a batch of such matrices. blocks.cuh has the arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Given, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, stored
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    base_name,
    behind,
    operator_name,
    readers,
    rule_of,
    source_of,
)
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.operands import FP8, LINES, STEPS, Memory, Names, Operand, map_given

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

HEADER = "blocks.cuh"

MULTIPROCESSORS = 132
"""Of the GPUs that the first choice of tiles is made for."""

TILES = {(128, 192): 1.0, (128, 128): 0.87, (128, 64): 0.6, (64, 192): 0.65, (64, 128): 0.55, (64, 64): 0.4}
HALF_TILES = {
    **{(192, 192): 3.58, (192, 128): 2.75, (192, 64): 2.06},
    **{(128, 256): 3.78, (128, 192): 3.47, (128, 128): 3.25, (128, 64): 1.94},
    **{(64, 256): 2.88, (64, 192): 2.7, (64, 128): 2.52, (64, 64): 1.85},
}
FP8_TILES = {(128, 192): 4.6, (128, 128): 4.5, (128, 64): 3.0, (64, 192): 3.2, (64, 128): 2.9, (64, 64): 2.0}
"""Rows and columns of a tile of pairs, 16 bits and fp8, and at what multiple of RATE it computes; TF32 at half."""

TURNS = {(64, 256): 3.41, (64, 192): 2.9, (64, 128): 2.58}
"""The same of 16-bit numbers where two warp groups take turns, each with its tile."""

KINDS = {
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.float32: "blocks::TF32",
    torch.float8_e4m3fn: "blocks::E4M3",
    torch.float8_e5m2: "blocks::E5M2",
}
"""What the header calls numbers that tensor cores multiply as they are."""

RATE, BANDWIDTH, PARTS = 1.25e14, 4.3e12, 8.5e12
"""On an H200: terms a second, bytes of memory, and of parts of sums, which are in L2."""

STORED, TILE, SPLIT, CLUSTERS, PARTED, ALONE = 3.4e-11, 4.8e-7, 3.9e-6, 9.3e-7, 2.6e-6, 3.8e-8
"""Seconds of storing a byte of a tile, its beginning, another launch, clusters of either kind, a step without one."""

OF_TURNS, BEGIN_TURNS = 6.2e-7, 4.4e-6
"""Seconds of a tile's beginning where warp groups take turns, and of the first ones."""

WARM, COLD, WAIT, SHARPNESS = 2.8e11, 1.65e11, 1.3e-6, 2.9
"""Bytes a second that a multiprocessor loads, also of its first tile; a stage's latency; how well loads are hidden."""

CLUSTERED = 112
"""Multiprocessors on which there is room for clusters of four and more."""

TOGETHER, PARTS_OF_CLUSTER = 2, (1, 2, 4, 8)
"""Blocks that share what they copy, where there are several rows of tiles, and those that share a tile's terms."""

MOST_SHARED, BESIDE_STAGES = 232448, 4096
"""Bytes of shared memory of a block, and of those that aren't stages."""

_TILES_OF = {torch.float32: TILES, **dict.fromkeys(FP8, FP8_TILES)}
_PRODUCTS = {"aten.mm", "aten.bmm"}
_FOLLOWED = {"aten.mm", "aten.convolution"}

FEWEST = 16
"""Terms below which most of a step would be empty. Tiles of few rows or columns take as long as reading the others."""

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
    dtypes: tuple[torch.dtype, torch.dtype]
    """Of what is multiplied: numbers of fp32 as such, or rounded if `in_tf32`."""
    in_tf32: bool

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """Kernels that bring operands into the form that the product reads, its own, and one that adds up parts."""
        schedule.include(HEADER)
        node: Any = self.nodes[0]
        dtype = self.dtypes[0]
        is_packed = dtype is torch.float32 and not self.in_tf32
        given = yield from self._given(schedule, place)
        tiles = HALF_TILES if self.in_tf32 else _TILES_OF.get(dtype, HALF_TILES)
        (rows, columns), taken, together, of_cluster, splits = _tiling(
            self.sizes, dtype, numbers(self.nodes[-1]), in_tf32=self.in_tf32
        )
        tile_m = schedule.macro("TILE_M", rows, *sorted({tile[0] for tile in tiles}))
        tile_n = schedule.macro("TILE_N", columns, *sorted({tile[1] for tile in tiles}))
        stages, group = schedule.macro("STAGES", _stages((rows, columns))), schedule.macro("GROUP", 8)
        cluster = schedule.macro("CLUSTER", together, 1, TOGETHER)
        parts = schedule.macro("PARTS", of_cluster, *PARTS_OF_CLUSTER)
        blocks = schedule.macro("BLOCKS", MULTIPROCESSORS)
        beside = f"({cluster} * {parts})"
        turns = "1" if is_packed else schedule.macro("TURNS", taken, 1, 2)
        threads = f"2 * {tile_m} * {turns} + 128"
        shared = f"{stages} * ({tile_m} + {tile_n}) * 128 + {BESIDE_STAGES}"
        if (192, 192) in tiles:
            schedule.require(f"{tile_m} <= 128 || {tile_n} <= 192")
        schedule.require(f"{turns} == 1 || ({tile_m} == 64 && {parts} == 1)")
        schedule.require(f"({parts} == 1 || {cluster} == 1) && {blocks} >= {beside}")
        schedule.require(f"{stages} >= 3 && {shared} <= {MOST_SHARED}")
        schedule.require(f"{group} >= 1 && {group} <= 64")
        split = schedule.macro("SPLITS", splits) if splits > 1 else ""
        target = place
        if split:
            schedule.require(f"{split} >= 1 && {split} <= 64")
            count = sympy.Symbol(split, integer=True, positive=True)
            extents = (count, *schedule.place("", node).extents)
            target = Place(schedule.fresh(f"{node.name}_parts"), torch.float32, extents)
            schedule.add_scratch(target)
        macros = (tile_m, tile_n, stages, group, cluster, turns, parts, split)
        made = self._function(schedule, target, macros, threads, given)
        high, wide = (count_in_plan((each,)) for each in (self.rows, self.columns))
        grid = f"ceil_div({high}, ({tile_m} * {cluster})) * ceil_div({wide}, {tile_n})"
        for factor in (count_in_plan((self.batch,)), split):
            grid += f" * {factor}" if factor not in {"1", ""} else ""
        grid = f"{beside} * min({blocks} // {beside}, {grid})"
        yield schedule.function(made), schedule.launch(made, grid, threads, shared, beside)
        if split:
            yield schedule.kernel(schedule.whole(self.nodes[-1], place, {node: _sum_of_parts(target)}))

    def _given(
        self, schedule: Schedule, place: Place
    ) -> Generator[tuple[str, str], None, list[_Packed | _Stored]]:
        """The operands: pairs packed, others where they are if tensor cores can read them, else stored first."""
        node: Any = self.nodes[0]
        operands = [
            Operand(name, source, each, self.batch, lines, self.terms)
            for name, source, each, lines in zip(
                "ab", node.args[:2], self.dtypes, (self.rows, self.columns), strict=True
            )
        ]
        if self.dtypes[0] is torch.float32 and not self.in_tf32:
            pairs = self._packed(schedule, operands)
            yield from _packing(schedule, node, pairs)
            return [*pairs]
        given: list[_Packed | _Stored] = []
        names = Names.of(schedule.body(place))
        for each in operands:
            memory = each.memory(schedule, place, names)
            can_turn = each.dtype.itemsize == 2
            if memory and (memory.by_term or can_turn) and _can_be_copied(schedule, memory):
                given.append(_Stored.of(schedule, each, memory))
            elif self.in_tf32:
                packed = _Packed(each, self._buffer(schedule, each))
                yield from _packing(schedule, node, [packed])
                given.append(packed)
            else:
                by_term = memory.by_term if memory and can_turn else each.name == "a" or not can_turn
                kept = each.buffer(schedule.fresh(f"{node.name}_{each.name}"), by_term=by_term)
                schedule.add_scratch(kept)
                yield schedule.kernel(each.copy(kept, by_term=by_term))
                batch = names.batch if self.batch != ONE else "0"
                memory = Memory(kept, by_term, kept.extents[-1], schedule.parameter(kept.name), batch)
                given.append(_Stored.of(schedule, each, memory))
        return given

    def _buffer(self, schedule: Schedule, operand: Operand) -> Place:
        buffer = Place(schedule.fresh(f"{self.nodes[0].name}_{operand.name}"), torch.float16, operand.packed)
        schedule.add_scratch(buffer)
        return buffer

    def _packed(self, schedule: Schedule, operands: Sequence[Operand]) -> list[_Packed]:
        node = self.nodes[0]
        extents = (self.batch, self.rows + self.columns, sympy.Integer(2))
        ranges = Place(schedule.fresh(f"{node.name}_ranges"), torch.int32, extents)
        schedule.add_scratch(ranges, zero=True)
        first, other = (_Packed(each, self._buffer(schedule, each), ranges) for each in operands)
        return [first, replace(other, before=self.rows)]

    def _function(
        self,
        schedule: Schedule,
        target: Place,
        macros: tuple[str, ...],
        threads: str,
        given: Sequence[_Packed | _Stored],
    ) -> Function:
        node = self.nodes[0]
        names = Names.of(schedule.body(target))
        tile_m, tile_n, stages, group, cluster, turns, parts, split = macros
        rows, columns, batch, steps = (
            in_cpp(each) for each in (self.rows, self.columns, self.batch, given[0].operand.steps)
        )
        extents = f"{rows}, {columns}, {steps}, {batch}, {split or 1}"
        tiling = f"blocks::Tiling<{tile_m} * {cluster}, {tile_n}, {group}>{{{extents}}}"
        how = ", ".join((tile_m, tile_n, stages, cluster, turns, parts))
        lines = [
            f"extern __shared__ unsigned char {names.shared}[];",
            f"blocks::multiply<{how}>({names.shared}, {tiling},",
        ]
        of_batch = f"const int {names.batch} = {names.tile}.batch; " if self.batch != ONE else ""
        lines += [
            f"    [&](const blocks::Tile& {names.tile}) {{ {of_batch}return {each.written(schedule, names.batch)}; }},"
            for each in given
        ]
        value, index = self._epilogue(schedule, target, names, stored_parts=bool(split))
        arguments = f"int {names.row}, int {names.column}"
        lines += [
            f"    [&](const blocks::Tile& {names.tile}, const float (&{names.sums})[{tile_n} / 2 / {parts}]) {{",
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
            f"__launch_bounds__({threads}, 1) ",
            given=tuple(map_given(each.map) for each in given if isinstance(each, _Stored) and each.map),
        )

    def _epilogue(
        self, schedule: Schedule, target: Place, names: Names, *, stored_parts: bool
    ) -> tuple[Body, Body]:
        """What becomes of an element's sum, and where it is stored."""
        node, last = self.nodes[0], self.nodes[-1]

        def given(body: Body, index: Index) -> str:
            assert index == _index(body, node, names)  # noqa: S101 - the finder looked
            return str(names.sum)

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
    """An operand with a buffer for it packed.

    That of pairs has one for the ranges of lines too, `before` which may be the other operand's.
    """

    operand: Operand
    buffer: Place
    ranges: Place | None = None
    before: sympy.Expr | None = None

    @property
    def reads(self) -> tuple[Place, ...]:
        """The buffers that the product reads."""
        return (self.buffer, self.ranges) if self.ranges else (self.buffer,)

    def places(self, schedule: Schedule, batch: str) -> tuple[str, str]:
        """Where a matrix of the batch is packed, and where its ranges are."""

        def of(place: Place, count: tuple[sympy.Expr, ...]) -> str:
            offset = "" if self.operand.batch == ONE else f" + (long long){batch} * {count_in_cpp(count)}"
            return schedule.parameter(place.name) + offset

        before, ranges = f" + {in_cpp(self.before)}" if self.before else "", "nullptr"
        if self.ranges:
            ranges = f"(blocks::Range*){of(self.ranges, self.ranges.extents[1:2])}{before}"
        return of(self.buffer, self.buffer.extents[1:]), ranges

    def written(self, schedule: Schedule, batch: str) -> str:
        """The operand in the kernel of the product."""
        data, ranges = self.places(schedule, batch)
        kind = "Packed" if self.ranges else "PackedAs<blocks::TF32>"
        return (
            f"blocks::{kind}{{{data}, {ranges}, {in_cpp(self.operand.lines)}, {in_cpp(self.operand.steps)}}}"
        )


@dataclass(frozen=True)
class _Stored:
    """An operand where it is in memory, and its tensor map's name, if TMA can read such."""

    operand: Operand
    memory: Memory
    map: str

    @staticmethod
    def of(schedule: Schedule, operand: Operand, memory: Memory) -> _Stored:
        extents = memory.place.extents
        shape = extents if len(extents) == 3 else (ONE, *extents)
        box = (1, LINES, STEPS[operand.dtype])
        name = schedule.add_tensor_map(memory.place, shape, box) if memory.batch else ""
        return _Stored(operand, memory, name)

    @property
    def reads(self) -> tuple[Place, ...]:
        """The buffers that the product reads."""
        return (self.memory.place,)

    def written(self, schedule: Schedule, batch: str) -> str:
        """The operand in the kernel of the product."""
        del schedule, batch  # its expressions have them
        found, operand = self.memory, self.operand
        kind = f"{KINDS[operand.dtype]}, {'true' if found.by_term else 'false'}"
        pointer, at = (f"&{self.map}", found.batch) if self.map else ("nullptr", "0")
        data = found.data if operand.dtype.itemsize == 2 else f"(const {KINDS[operand.dtype]}*)({found.data})"
        sizes = f"{in_cpp(operand.lines)}, {in_cpp(operand.terms)}, {at}, {in_cpp(found.stride)}"
        return f"blocks::Stored<{kind}>{{{pointer}, {data}, {sizes}}}"


def _can_be_copied(schedule: Schedule, memory: Memory) -> bool:
    """Whether TMA can read a matrix of typical sizes."""
    return schedule.estimate((memory.stride,)) * memory.place.dtype.itemsize % 16 == 0


def _packing(schedule: Schedule, node: Node, packed: Sequence[_Packed]) -> Iterator[tuple[str, str]]:
    """The kernel that packs operands, and for pairs its second launch, which packs again what the first couldn't."""
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
        kind, again = ("", names.again) if each.ranges else ("<blocks::TF32>", "")
        lines += [
            f"if (blockIdx.x < {first}) {{" if is_first else "} else {",
            f"    const blocks::Part {names.part}({extents}, {block});",
            *([f"    const int {names.batch} = {names.part}.batch;"] if operand.batch != ONE else []),
            f"    const auto {names.matrix} = {matrix.text};",
            f"    blocks::pack{kind}({data}, {ranges}, {names.matrix}, {names.part}, {again or 'false'});",
        ]
    ranges_of = [each.ranges for each in packed if each.ranges]
    made = Function(
        schedule.fresh("pack_kernel"),
        f"pack operands of {operator_name(node)}{', and again where they had too small a scale' if ranges_of else ''}",
        "\n".join(f"    {line}" for line in (*lines, "}")),
        tuple({each.name: each for each in reads}.values()),
        packed[-1].buffer,
        "__launch_bounds__(256) ",
        also=(*ranges_of[:1], *(each.buffer for each in packed[:-1])),
        given=((f"int {names.again}", "0"),) if ranges_of else (),
    )
    grid = " + ".join(count_in_plan(each.operand.blocks) for each in packed)
    yield schedule.function(made), schedule.launch(made, grid, "256")
    if ranges_of:
        yield "", schedule.launch(replace(made, given=((f"int {names.again}", "1"),)), grid, "256")


def products(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Product]:
    """Products of matrices that fill tiles, each with what follows element by element."""
    for node in kept:
        shape = _shape(node, traced) if operator_name(node) in _PRODUCTS else None
        if shape is None:
            continue
        sizes = tuple(traced.estimate(each) for each in shape)
        if sizes[3] >= FEWEST and math.prod(sizes) >= FEWEST_OPERATIONS:
            follower = None if node in outputs else follower_of(node, kept, traced)
            nodes = (node,) if follower is None else (node, follower)
            dtypes = _multiplied(node, numbers(nodes[-1]))
            in_tf32 = dtypes[0] is torch.float32 and torch.backends.cuda.matmul.allow_tf32
            yield Product(nodes, *shape, sizes, dtypes, in_tf32)  # type: ignore[arg-type] # four of them


def _multiplied(node: Node, result: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """The types of a product's operands: those that both were cast from, where the result has 16 bits or fewer."""
    found = [_source(each) for each in node.args[:2]]
    first, second = ((numbers(each) if each else numbers(node)) for each in found)
    narrow = first is second or {first, second} <= set(FP8)
    return (first, second) if narrow and first.itemsize <= 2 >= result.itemsize else (numbers(node),) * 2


def _source(node: Any) -> Node | None:
    """What has fewer bits than floats that were cast and viewed: the narrowest of them."""
    found, each = None, node
    while isinstance(each, Node):
        if numbers(each) in STEPS and numbers(each).itemsize <= min(numbers(found or node).itemsize, 2):
            found = each
        if each.op != "call_function" or not (
            rule_of(each).kind is Kind.VIEW or base_name(each) == "_to_copy"
        ):
            break
        each = next(iter(source_of(each)[0].args), None)
    return found


def narrowed(kept: Sequence[Node]) -> Iterator[Node]:
    """The numbers of fp8 that products multiply, which had better be stored."""
    for node in kept:
        if operator_name(node) in _PRODUCTS:
            found = [_source(each) for each in node.args[:2]]
            if all(each is not None and numbers(each) in FP8 for each in found):
                yield from (each for each in found if each is not None and each.op == "call_function")


def _seconds(  # noqa: PLR0917 - what a choice of tiles depends on
    sizes: tuple[float, float, float, float],
    widths: tuple[int, int],
    tile: tuple[int, int],
    rate: float,
    turns: int,
    cluster: tuple[int, int],
    splits: int,
) -> float:
    """The time of a product on tiles, but for what is the same for all; `widths` are bytes of operands and results.

    A multiprocessor computes tiles one after another. Of a cluster, so many that are below each other are computed
    together, or so many parts of a tile's terms.
    """
    batch, rows, columns, terms = sizes
    together, parts = cluster
    across = batch * math.ceil(columns / tile[1]) * splits
    room = (MULTIPROCESSORS if parts <= 2 else CLUSTERED) // parts
    count = math.ceil(together * math.ceil(rows / tile[0] / together) * across / room)
    if parts > 1 and count > 1:
        return math.inf
    area, own = tile[0] * tile[1], terms / splits / parts
    products = area * own * MULTIPROCESSORS / (RATE * rate)
    loads = (min(tile[0], rows) + min(tile[1], columns) / together) * own * widths[0]
    steps = own * widths[0] / 128

    def both(one: float, another: float) -> float:
        return math.pow(one**SHARPNESS + another**SHARPNESS, 1 / SHARPNESS)

    first, other = (
        both(products, max(loads / COLD, steps * WAIT / _stages(tile))),
        both(products, loads / WARM),
    )
    stored = area * STORED * (4 if splits > 1 else widths[1])
    if turns == 1:
        spent = first + (count - 1) * other + count * (stored + TILE)
    else:
        spent = first + (count - 1) * max(other, stored) + count * OF_TURNS + BEGIN_TURNS
    spent += CLUSTERS if together > 1 else PARTED if parts > 1 else steps * ALONE if splits == 1 else 0.0
    operands = widths[0] * terms * (rows + columns)
    spent = both(spent, batch * (operands + widths[1] * rows * columns) / BANDWIDTH)
    return spent + (8 * splits * batch * rows * columns / PARTS + SPLIT if splits > 1 else 0.0)


def _tiling(
    sizes: tuple[float, float, float, float], dtype: torch.dtype, result: torch.dtype, *, in_tf32: bool
) -> tuple[tuple[int, int], int, int, int, int]:
    """The tile with the least time, warp groups that take turns, a cluster's tiles and parts of terms, and splits."""
    tiles, slower = _TILES_OF.get(dtype, HALF_TILES), 1.0
    if in_tf32:
        tiles, slower = HALF_TILES, 0.5
    most = max(1, int(sizes[3] / FEWEST_TERMS))
    splits = [1 << power for power in range(most.bit_length()) if 1 << power <= 64]
    choices = [(tile, rate, 1) for tile, rate in tiles.items()]
    choices += [(tile, rate, 2) for tile, rate in TURNS.items()] if tiles is HALF_TILES else []
    widths = (dtype.itemsize, result.itemsize)
    clusters = [(TOGETHER, 1), *((1, each) for each in PARTS_OF_CLUSTER if each <= most)]
    possible = (
        (choice, cluster, parts)
        for choice, cluster, parts in itertools.product(choices, clusters, splits)
        if cluster == (1, 1)
        or (parts == 1 and (sizes[1] > choice[0][0] if cluster[0] > 1 else choice[2] == 1))
    )

    (tile, _, turns), cluster, parts = min(
        possible,
        key=lambda each: _seconds(sizes, widths, each[0][0], slower * each[0][1], each[0][2], *each[1:]),
    )
    return tile, turns, *cluster, parts


def _stages(tile: tuple[int, int]) -> int:
    return min((MOST_SHARED - BESIDE_STAGES) // (sum(tile) * 128), 6)


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
    ends = {*kept, *known}
    for user in behind(readers(node), ends.__contains__, readers):
        if user in known:
            continue
        if user.op != "call_function" or rule_of(user).kind is not Kind.ELEMENT:
            return None
        if [traced.expression(size) for size in user.meta["val"].shape] != shape:
            return None
        if user in kept:
            found.add(user)
    return found.pop() if len(found) == 1 else None


def followed(order: Sequence[Node], kept: Sequence[Node], traced: Traced) -> Iterator[Node]:
    """What several others read of chains behind products and convolutions: it had better be stored in place of sums."""
    for node in kept:
        if operator_name(node) in _FOLLOWED and follower_of(node, kept, traced) is None:
            end = end_of(node, order, kept, traced)
            if end is not node and len(readers(end)) > 1:
                yield end


def end_of(node: Node, order: Iterable[Node], kept: Sequence[Node], traced: Traced) -> Node:
    """The last node, of those that aren't kept, that all uses of a node lead to element by element; or else itself."""

    def is_end(each: Node) -> bool:
        return each in kept or rule_of(each).kind is not Kind.ELEMENT

    reached = {each for each in behind(readers(node), is_end, readers) if not is_end(each)}
    ends = [each for each in order if each in reached and follower_of(node, [*kept, each], traced) is each]
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
    *batch, rows, columns = body.extents(node)
    pair = ("0" if size == ONE else name for size, name in ((rows, names.row), (columns, names.column)))
    return (*((names.batch,) if batch else ()), *pair)
