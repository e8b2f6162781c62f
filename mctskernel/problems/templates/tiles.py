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
from mctskernel.problems.plain_cuda.views import keeps_order
from mctskernel.problems.templates.operands import FP8, LINES, STEPS, Memory, Names, Operand, map_given
from mctskernel.problems.templates.row_space import extents_of

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

HEADER = "blocks.cuh"

MULTIPROCESSORS = 132
"""Of the GPUs that the first choice of tiles is made for."""

_Rates = dict[int, tuple[float, ...]]

TILES: _Rates = {64: (0.4, 0.55, 0.65), 128: (0.6, 0.87, 1.0)}
HALF_TILES: _Rates = {64: (1.51, 2.73, 1.47, 3.1), 128: (2.49, 3.35, 3.43, 3.67), 192: (2.16, 2.44, 3.82)}
FP8_TILES: _Rates = {64: (2.2, 3.6, 3.2), 128: (3.2, 5.8, 5.85)}
"""By rows of a tile, at what multiple of RATE pairs, 16 bits and fp8 are multiplied with 64, 128 and more columns; TF32
at half."""

TURNS = {64: (2.19, 2.21, 3.46, 3.32)}
"""The same of 16-bit numbers where two warp groups take turns, each with its tile."""

WIDTHS = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
"""Columns of tiles that edits may choose."""

KINDS = {
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.float32: "blocks::TF32",
    torch.float8_e4m3fn: "blocks::E4M3",
    torch.float8_e5m2: "blocks::E5M2",
}
"""What the header calls numbers that tensor cores multiply as they are."""

RATE, BANDWIDTH, FROM_L2, PARTS = 1.25e14, 3.35e12, 1.63e13, 8.91e12
"""On an H200: terms a second, bytes of memory, those that all blocks load, and of parts of sums, which are in L2."""

STORED, TILE, SPLIT, CLUSTERS, PARTED, ALONE = 3.98e-11, 1.11e-7, 3.24e-6, 9.9e-7, 3e-6, 2.65e-8
"""Seconds of storing a byte of a tile, its beginning, another launch, clusters of either kind, a step without one."""

OF_TURNS, BEGIN_TURNS = 6.66e-7, 6.55e-6
"""Seconds of a tile's beginning where warp groups take turns, and of the first ones."""

WARM, COLD, WAIT, SHARPNESS = 2.71e11, 2.05e11, 1.07e-6, 4.2
"""Bytes a second that a multiprocessor loads, also of its first tile; a stage's latency; how well loads are hidden."""

EXCHANGED, UNALIGNED = 1.8, 2.42
"""How many times as long storing takes if operands are exchanged, and loading where lines don't begin at 128 bytes."""

CLUSTERED = 112
"""Multiprocessors on which there is room for clusters of four and more."""

BESIDE, LEAST_BESIDE, FEWEST_MATRICES = 1.34e-3, 0.3, 16
"""What share of a batch is packed beside products, by rows and columns; the least, and of how many matrices."""

TOGETHER, PARTS_OF_CLUSTER = 2, (1, 2, 4, 8)
"""Blocks that share what they copy, where there are several rows of tiles, and those that share a tile's terms."""

MOST_SHARED, BESIDE_STAGES = 232448, 2048
"""Bytes of shared memory of a block, and of those that aren't stages."""

CONVERT, MOST_CONVERTED = 9e-7, 128
"""Seconds of a step of an operand that blocks convert to pairs, and lines of it and of the other one in a tile."""

_TILES_OF = {torch.float32: TILES, **dict.fromkeys(FP8, FP8_TILES)}
_PRODUCTS = {"aten.mm", "aten.bmm"}
_FOLLOWED = {"aten.mm", "aten.convolution"}

MOST_FEW, FEW = {True: 16, False: 8}, (1, 2, 4, 8, 16)
"""Rows or columns of products that tensor cores don't compute, by whether the other operand's terms are neighbours; and
how many of them a block computes."""

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

    @property
    def is_pairs(self) -> bool:
        """Whether numbers of fp32 are multiplied as pairs of fp16."""
        return self.dtypes[0] is torch.float32 and not self.in_tf32

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """Kernels that bring operands into the form that the product reads, its own, and one that adds up parts."""
        schedule.include(HEADER)
        if few := self._few(schedule, place):
            yield self._of_few(schedule, place, few)
            return
        converted = self._converted(schedule, place)
        given = yield from self._given(schedule, place, converted)
        tiling = self._tiling(numbers(self.nodes[-1]), [*map(_unit, given)], is_converted=bool(converted))
        packed = [each for each in given if isinstance(each, _Packed)]
        before = self._before(schedule, place, tiling)
        if packed:
            yield self._packing(schedule, packed, before)
        if tiling.is_exchanged:
            given.reverse()
        target, split = place, schedule.macro("SPLITS", tiling.splits) if tiling.splits > 1 else ""
        if split:
            schedule.require(f"{split} >= 1 && {split} <= 64")
            count = sympy.Symbol(split, integer=True, positive=True)
            extents = (count, *schedule.place("", self.nodes[0]).extents)
            target = Place(schedule.fresh(f"{self.nodes[0].name}_parts"), torch.float32, extents)
            schedule.add_scratch(target)
        yield self._of_tiles(schedule, target, given, tiling, split or before)
        if split:
            yield schedule.kernel(
                schedule.whole(self.nodes[-1], place, {self.nodes[0]: sum_of_parts(target)})
            )

    def _of_tiles(
        self, schedule: Schedule, target: Place, given: Sequence[_Given], tiling: _Tiling, count: str
    ) -> tuple[str, str]:
        """The kernel of the product on tiles; `target` has a `count` of parts of the sums if terms are split.

        Else those of a batch's matrices that are packed before it.
        """
        split, before = (count, "") if tiling.splits > 1 else ("", count)
        is_half, unit = self.in_tf32 or self.dtypes[0].itemsize == 2, _unit(given[1])
        tile_m = schedule.macro("TILE_M", tiling.rows, 64, 128, *([192] if is_half else []))
        wide = (each for each in WIDTHS if each % unit == 0 and (is_half or each <= 192))
        tile_n = schedule.macro("TILE_N", tiling.columns, *sorted({tiling.columns, *wide}))
        turns = "1" if self.is_pairs else schedule.macro("TURNS", tiling.turns, 1, 2)
        line, others = (132, 256) if tiling.is_converted else (128, 128)
        tables, item = 2 * BESIDE_STAGES if self.is_pairs else BESIDE_STAGES, target.dtype.itemsize
        most = _stages(tiling.rows, tiling.columns, line, tables)
        left = MOST_SHARED - tables - most * (tiling.rows + tiling.columns) * line
        high, across = tiling.rows * tiling.turns * 128, tiling.columns // tiling.parts * item // 128
        staged = not (split or tiling.is_exchanged or self.is_pairs) and item in {2, 4}
        stages = schedule.macro("STAGES", most)
        slots = schedule.macro("SLOTS", min(left // high, across, 4), *range(5)) if staged else "0"
        group, blocks = schedule.macro("GROUP", 8), schedule.macro("BLOCKS", MULTIPROCESSORS)
        cluster = schedule.macro("CLUSTER", tiling.together, 1, TOGETHER)
        parts = schedule.macro("PARTS", tiling.parts, *PARTS_OF_CLUSTER[: 1 if before else None])
        beside, threads = f"({cluster} * {parts})", f"2 * {tile_m} * {turns} + {others}"
        shared = f"{stages} * ({tile_m} + {tile_n}) * {line} + {tables}"
        shared += f" + {slots} * {tile_m} * {turns} * 128" if staged else ""
        schedule.require(f"{blocks} >= {beside} && {tile_n} % (8 * {parts}) == 0")
        schedule.require(f"{stages} >= 3 && {shared} <= {MOST_SHARED}")
        schedule.require(f"{group} >= 1 && {group} <= 64")
        boxes = ((tile_m, tile_m), (f"{tile_n} / {cluster}", f"{tile_n} // {cluster}"))
        mapped = [
            each.mapped(schedule, *box) if isinstance(each, _Stored) and not each.is_pairs else each
            for each, box in zip(given, boxes, strict=True)
        ]
        names = Names.of(schedule.body(target))
        counts = (*(each.operand.lines for each in given), given[0].operand.steps, self.batch)
        extents = ", ".join([*map(in_cpp, counts), split or "1"])
        call = f"extern __shared__ unsigned char {names.shared}[];\n"
        call += f"    blocks::multiply<{', '.join((tile_m, tile_n, stages, cluster, turns, parts, slots))}>("
        call += f"{names.shared}, blocks::Tiling<{tile_m} * {cluster}, {tile_n}, {group}>{{{extents}}}"
        sums, store = f"const float (&{names.sums})[{tile_n} / 2 / {parts}]", ""
        maps = [each.map for each in mapped if isinstance(each, _Stored) and each.map]
        if staged:
            whole = schedule.place("", self.nodes[0]).extents
            maps.append(schedule.add_tensor_map(target, _matrices(whole), (1, 16, 128 // item)))
            store = f"store_boxes<{tile_m}, {tile_n}, {stages}, {slots}>(&{maps[-1]}, {names.shared}, "
        words = (call, sums, store, before)
        made = self._function(schedule, target, words, f"{threads}, 1", mapped, stored_parts=bool(split))
        made = replace(made, given=tuple(map(map_given, maps)))
        grid = _grid(given, f"({tile_m} * {cluster})", tile_n, self.batch) + (f" * {split}" if split else "")
        grid = f"{beside} * min({blocks} // {beside}, {grid})"
        return schedule.function(made), schedule.launch(made, grid, threads, shared, beside)

    def _tiling(self, result: torch.dtype, units: Sequence[int], *, is_converted: bool) -> _Tiling:
        """The tiles with the least time; their columns are multiples of a unit of each operand."""
        widths, slower = (self.dtypes[0].itemsize, result.itemsize), 0.5 if self.in_tf32 else 1.0
        table = HALF_TILES if self.in_tf32 else _TILES_OF.get(self.dtypes[0], HALF_TILES)
        found = _tilings(self.sizes, table, units)
        known = ((replace(each, is_converted=is_converted), rate * slower) for each, rate in found)
        return min((_seconds(self.sizes, widths, *each), each[0]) for each in known)[1]

    def _few(self, schedule: Schedule, place: Place) -> list[_Stored]:
        """The operands, where one of them has few lines and both can be read where they are, that one first."""
        given = self._in_memory(schedule, place)
        is_few = len(given) == 2 and min(self.sizes[1:3]) <= MOST_FEW[given[-1].memory.by_term]
        return given if is_few and self.dtypes[0] is torch.float32 else []

    def _of_few(self, schedule: Schedule, place: Place, given: Sequence[_Stored]) -> tuple[str, str]:
        """The kernel of a product of few rows or columns."""
        by_term = given[1].memory.by_term
        count, others = sorted(self.sizes[1:3])
        rows = next(each for each in FEW if each >= min(count, FEW[-1]))
        widths = (16, 8, 4, 2, 1) if by_term else (128, 64, 32)
        enough = (each for each in widths if self.sizes[0] * others / each > MULTIPROCESSORS - 5)
        chosen = next(enough, 1) if by_term else 128 if rows <= 4 else 64
        few, columns = schedule.macro("FEW", rows, *FEW), schedule.macro("COLUMNS", chosen, *widths)
        is_busy = chosen not in {1, 2, 128} and (
            not by_term or self.sizes[0] * others >= 2 * chosen * MULTIPROCESSORS
        )
        threads = schedule.macro("THREADS", 256 if is_busy else 512, 128, 256, 512)
        if not by_term:
            schedule.require(f"{few} * {columns} * {threads} <= {12 << 15}")
        call = f"blocks::multiply_few<{few}, {columns}, {threads}>("
        call += ", ".join(in_cpp(each.operand.lines) for each in given)
        sums = f"const blocks::One& {Names.of(schedule.body(place)).sums}"
        made = self._function(schedule, place, (call, sums, "", ""), threads, given)
        return schedule.function(made), schedule.launch(made, _grid(given, few, columns, self.batch), threads)

    def _operands(self) -> list[Operand]:
        """A and B."""
        return [
            Operand(name, source, each, self.batch, lines, self.terms)
            for name, source, each, lines in zip(
                "ab", self.nodes[0].args[:2], self.dtypes, (self.rows, self.columns), strict=True
            )
        ]

    def _in_memory(self, schedule: Schedule, place: Place) -> list[_Stored]:
        """The operands that are matrices in memory, that of fewer lines first."""
        names = Names.of(schedule.body(place))
        found = [(each, each.memory(schedule, place, names)) for each in self._operands()]
        given = [_Stored(each, memory) for each, memory in found if memory]
        return given[:: 1 if self.sizes[1] <= self.sizes[2] else -1]

    def _converted(self, schedule: Schedule, place: Place) -> list[_Stored]:
        """The operand of fp32 numbers that blocks convert: so few tiles read it that packing it would take longer."""
        is_some = self.is_pairs and min(self.sizes[1:3]) <= MOST_CONVERTED
        found, name = self._in_memory(schedule, place), "b" if self.sizes[1] <= self.sizes[2] else "a"
        return [replace(each, is_pairs=True) for each in found if is_some and each.operand.name == name]

    def _given(
        self, schedule: Schedule, place: Place, converted: Sequence[_Stored]
    ) -> Generator[tuple[str, str], None, list[_Given]]:
        """The operands where they are if tensor cores can read them or blocks convert them, else packed or stored."""
        node: Any = self.nodes[0]
        given: list[_Given] = []
        names = Names.of(schedule.body(place))
        if self.is_pairs:
            known = [each.operand.name for each in converted]
            pairs = self._packed(schedule, [each for each in self._operands() if each.name not in known])
            return sorted([*pairs, *converted], key=lambda each: each.operand.name)
        for each in self._operands():
            memory = each.memory(schedule, place, names)
            can_turn = each.dtype.itemsize == 2
            aligned = memory and schedule.estimate((memory.stride,)) * each.dtype.itemsize % 16 == 0
            if memory and aligned and (memory.by_term or can_turn):
                given.append(_Stored(each, memory))
            elif self.in_tf32:
                given.append(_Packed(each, self._buffer(schedule, each)))
            else:
                by_term = memory.by_term if memory and can_turn else each.name == "a" or not can_turn
                kept = each.buffer(schedule.fresh(f"{node.name}_{each.name}"), by_term=by_term)
                schedule.add_scratch(kept)
                yield schedule.kernel(each.copy(kept, by_term=by_term))
                batch = names.batch if self.batch != ONE else "0"
                memory = Memory(kept, by_term, kept.extents[-1], schedule.parameter(kept.name), batch)
                given.append(_Stored(each, memory))
        return given

    def _buffer(self, schedule: Schedule, operand: Operand) -> Place:
        buffer = Place(schedule.fresh(f"{self.nodes[0].name}_{operand.name}"), torch.float16, operand.packed)
        schedule.add_scratch(buffer)
        return buffer

    def _packed(self, schedule: Schedule, operands: Sequence[Operand]) -> list[_Packed]:
        counts = [each.lines + each.blocks[0] for each in operands]
        extents = (self.batch, sympy.Add(*counts), sympy.Integer(2))
        ranges = Place(schedule.fresh(f"{self.nodes[0].name}_ranges"), torch.int32, extents)
        schedule.add_scratch(ranges, zero=True)
        first, *other = (_Packed(each, self._buffer(schedule, each), ranges) for each in operands)
        return [first, *(replace(each, before=counts[0]) for each in other)]

    def _before(self, schedule: Schedule, place: Place, tiling: _Tiling) -> str:
        """How many matrices of a batch are packed before the products, if others are packed beside them."""
        batch, rows, columns, terms = self.sizes
        share = min(BESIDE * rows * columns / (rows + columns), 0.9)
        is_large = (
            self.is_pairs and batch >= FEWEST_MATRICES and terms >= FEWEST_TERMS and share >= LEAST_BESIDE
        )
        is_whole = tiling.splits * tiling.parts == 1 and not tiling.is_converted
        if not (is_large and is_whole) or len(self._in_memory(schedule, place)) < 2:
            return ""
        return schedule.macro("BEFORE", math.ceil(batch * (1 - share)))

    def _pack(
        self, schedule: Schedule, packed: Iterable[_Packed], names: Names, function: str
    ) -> tuple[str, list[Place]]:
        """A function that packs a part of a matrix of a batch, and what it reads."""
        text, reads = f"auto {names.pack} = [&](int {names.batch}, int {names.part}) {{\n", list[Place]()
        text += f"        blocks::{function}({names.part}"
        for each in packed:
            matrix = each.operand.matrix(schedule, each.buffer, names)
            text += f",\n            {', '.join((*each.places(schedule, names.batch), matrix.text))}"
            reads += matrix.reads
        return f"{text});\n    }};", reads

    def _packing(self, schedule: Schedule, packed: Sequence[_Packed], before: str) -> tuple[str, str]:
        """The kernel that packs operands, or the first matrices of a batch."""
        names = Names.of(schedule.body(packed[0].buffer))
        kind = f"pack<{'float' if self.is_pairs else 'blocks::TF32'}>"
        text, reads = self._pack(schedule, packed, names, kind)
        count, grid = (
            f"({' + '.join(of(each.operand.blocks) for each in packed)})"
            for of in (count_in_cpp, count_in_plan)
        )
        batch = count_in_plan((self.batch,))
        call = f"{names.pack}(blockIdx.x / {count}, blockIdx.x % {count});"
        call = (
            f"blocks::pack_first({names.pack}, {before}, {count}, {in_cpp(self.batch)});" if before else call
        )
        grid += f" * {f'max(min({before}, {batch}), 1)' if before else batch}"
        made = Function(
            schedule.fresh("pack_kernel"),
            f"pack operands of {operator_name(self.nodes[0])}{', the first of a batch' if before else ''}",
            f"    {text}\n    {call}",
            tuple({each.name: each for each in reads}.values()),
            packed[-1].buffer,
            "__launch_bounds__(256) ",
            also=(*packed[0].reads[1:], *(each.buffer for each in packed[:-1])),
        )
        return schedule.function(made), schedule.launch(made, grid, "256")

    def _function(
        self,
        schedule: Schedule,
        target: Place,
        words: tuple[str, str, str, str],
        threads: str,
        given: Sequence[_Given],
        *,
        stored_parts: bool = False,
    ) -> Function:
        """A kernel that is a call with operands, and with what stores the sums of a tile as a parameter.

        `words` are the call, how sums are declared, the call that stores them if that isn't the usual one, and how many
        matrices are packed before it, if others are packed beside it.
        """
        call, sums, store, before = words
        node, names = self.nodes[0], Names.of(schedule.body(target))
        store = store or ("store(" if given[0].operand.name == "a" else "store_transposed(")
        extents = ", ".join(in_cpp(each.operand.lines) for each in given)
        of_batch = f"const int {names.batch} = {names.tile}.batch; " if self.batch != ONE else ""
        given_tile = f"const blocks::Tile& {names.tile}"
        value, index = self._epilogue(schedule, target, names, stored_parts=stored_parts)
        arguments = f"int {names.row}, int {names.column}"
        lines = [
            f"{call},",
            *(
                f"    [&]({given_tile}) {{ {of_batch}return {each.written(schedule, names.batch)}; }},"
                for each in given
            ),
            f"    [&]({given_tile}, {sums}) {{",
            *([f"        {of_batch}"] if of_batch else []),
            f"        blocks::{store}{schedule.parameter(target.name)}, {names.sums}, {names.tile}, {extents},",
            f"            [&]({arguments}, float {names.sum}) {{\n{value.text()}\n            }},",
            f"            [&]({arguments}) {{\n{index.text()}\n            }});",
            "    });",
        ]
        reads = [*(each for one in given for each in one.reads), *value.reads.values()]
        also: tuple[Place, ...] = ()
        if before:
            packed = [each for each in given if isinstance(each, _Packed)]
            text, sources = self._pack(schedule, packed, names, "pack_eight")
            done = Place(schedule.fresh(f"{node.name}_done"), torch.int32, (self.batch + 1,))
            schedule.add_scratch(done, zero=True)
            beside = f"blocks::beside({names.pack}, {schedule.parameter(done.name)}, {before})"
            lines, reads = [text, *lines[:-1], f"    }}, {beside});"], [*reads, *sources]
            also = (*(place for each in given for place in each.reads), done)
        found = {each.name: each for each in reads}
        for each in (target, *also):
            found.pop(each.name, None)
        return Function(
            schedule.fresh(f"{operator_name(node).split('.')[-1]}_kernel"),
            schedule.described(node if stored_parts else self.nodes[-1]),
            "\n".join(f"    {line}" for line in lines),
            tuple(found.values()),
            target,
            f"__launch_bounds__({threads}) ",
            tuple({each.name: each for each in also}.values()),
        )

    def _epilogue(
        self, schedule: Schedule, target: Place, names: Names, *, stored_parts: bool
    ) -> tuple[Body, Body]:
        """What becomes of an element's sum, and where it is stored."""
        node, last = self.nodes[0], self.nodes[-1]

        def given(body: Body, index: Index) -> str:
            assert index == _index(body, node, names) or viewed  # noqa: S101 - the finder looked
            return str(names.sum)

        viewed = last.meta["val"].dim() > node.meta["val"].dim()  # its rows are along several axes
        value, place = (
            schedule.body(target, "long long" if schedule.is_large(target) else "int", {node: given})
            for _ in range(2)
        )
        for body in (value, place):
            Names.of(body)
        text = names.sum
        if not stored_parts:
            at = _index(value, node, names)
            at = (*value.unflat(at[0], value.extents(last)[:-1]), at[1]) if viewed else at
            text = converted(value.read(last, at), numbers(last), target.dtype)
        value.line(f"return {stored(target.dtype, text)};")
        index = _index(place, node, names)
        whole = target.extents if stored_parts else place.extents(node)
        flat = place.flat((f"{names.tile}.part", *index) if stored_parts else index, whole)
        place.line(f"return {flat};")
        return value, place


@dataclass(frozen=True)
class _Packed:
    """An operand with a buffer for it packed.

    That of pairs has one for the ranges of lines and blocks of them too, `before` which may be the other operand's.
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
    """An operand in memory: for blocks to convert, or its tensor map's name, if TMA can read it, and a box's lines."""

    operand: Operand
    memory: Memory
    map: str = ""
    box: str = ""
    is_pairs: bool = False

    def mapped(self, schedule: Schedule, lines: str, in_plan: str) -> _Stored:
        """The operand with a tensor map, of boxes with so many lines where terms are neighbours."""
        shape = _matrices(self.memory.place.extents)
        box = (1, in_plan if self.memory.by_term else LINES, STEPS[self.operand.dtype])
        tf32, add = self.operand.dtype is torch.float32, schedule.add_tensor_map
        name = add(self.memory.place, shape, box, tf32=tf32) if self.memory.batch else ""
        return replace(self, map=name, box=f", {lines}" if self.memory.by_term else "")

    @property
    def reads(self) -> tuple[Place, ...]:
        """The buffers that the product reads."""
        return (self.memory.place,)

    def written(self, schedule: Schedule, batch: str) -> str:
        """The operand in the kernel of the product."""
        del schedule, batch  # its expressions have them
        found, operand = self.memory, self.operand
        if self.is_pairs:
            sizes = f"{in_cpp(operand.lines)}, {in_cpp(operand.terms)}, {in_cpp(found.stride)}"
            return f"blocks::Unpacked<{'true' if found.by_term else 'false'}>{{{found.data}, {sizes}}}"
        kind = f"{KINDS[operand.dtype]}, {'true' if found.by_term else 'false'}{self.box}"
        pointer, at = (f"&{self.map}", found.batch) if self.map else ("nullptr", "0")
        data = found.data if operand.dtype.itemsize == 2 else f"(const {KINDS[operand.dtype]}*)({found.data})"
        sizes = f"{in_cpp(operand.lines)}, {in_cpp(operand.terms)}, {at}, {in_cpp(found.stride)}"
        return f"blocks::Stored<{kind}>{{{pointer}, {data}, {sizes}}}"


_Given = _Packed | _Stored


def _matrices(extents: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """The extents of a batch of matrices, of which there may be one."""
    return (*[ONE] * (3 - len(extents)), *extents)


def _grid(given: Sequence[_Given], rows: str, columns: str, batch: sympy.Expr) -> str:
    """The tiles of a product, in a plan."""
    high, wide = (count_in_plan((each.operand.lines,)) for each in given)
    tiles = f"ceil_div({high}, {rows}) * ceil_div({wide}, {columns})"
    return tiles if batch == ONE else f"{tiles} * {count_in_plan((batch,))}"


def _unit(operand: _Given) -> int:
    """What the columns of a tile are multiples of."""
    return 16 if isinstance(operand, _Stored) and operand.memory.by_term else LINES


def products(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterator[Product]:
    """Products of matrices that fill tiles, each with what follows element by element."""
    for node in kept:
        shape = _shape(node, traced) if operator_name(node) in _PRODUCTS else None
        if shape is None:
            continue
        sizes = tuple(traced.estimate(each) for each in shape)
        if sizes[3] >= FEWEST and math.prod(sizes) >= FEWEST_OPERATIONS:
            for nodes in with_follower(node, kept, outputs, traced):
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


def _seconds(
    sizes: tuple[float, float, float, float], widths: tuple[int, int], tiling: _Tiling, rate: float
) -> float:
    """The time of a product on tiles, but for what is the same for all; `widths` are bytes of operands and results.

    A multiprocessor computes tiles one after another. Of a cluster, so many that are below each other are computed
    together, or so many parts of a tile's terms.
    """
    batch, *sides, terms = sizes
    rows, columns = sides[:: -1 if tiling.is_exchanged else 1]
    tile, parts, splits = (tiling.rows, tiling.columns), tiling.parts, tiling.splits
    across = batch * math.ceil(columns / tile[1]) * splits
    room = (MULTIPROCESSORS if parts <= 2 else CLUSTERED) // parts
    count = math.ceil(tiling.together * math.ceil(rows / tile[0] / tiling.together) * across / room)
    if parts > 1 and count > 1:
        return math.inf
    area, own = tile[0] * tile[1], terms / splits / parts
    if tiling.is_converted and (tiling.together > 1 or max(tile) > MOST_CONVERTED):
        return math.inf
    products = max(area * own * MULTIPROCESSORS / (RATE * rate), own / 32 * CONVERT * tiling.is_converted)
    loads = (tile[0] + tile[1] / tiling.together) * own * widths[0]
    loads *= UNALIGNED if widths[0] < 4 and terms * widths[0] % 128 else 1.0
    steps = own * widths[0] / 128

    def both(one: float, another: float) -> float:
        return math.pow(one**SHARPNESS + another**SHARPNESS, 1 / SHARPNESS)

    first = both(products, max(loads / COLD, steps * WAIT / _stages(*tile)))
    other = both(products, loads / WARM)
    stored = area * STORED * (4 if splits > 1 else widths[1])
    stored *= EXCHANGED if tiling.is_exchanged else 1.0
    if tiling.turns == 1:
        spent = first + (count - 1) * other + count * (stored + TILE)
    else:
        spent = first + (count - 1) * max(other, stored) + count * OF_TURNS + BEGIN_TURNS
    spent += (
        CLUSTERS if tiling.together > 1 else PARTED if parts > 1 else steps * ALONE if splits == 1 else 0.0
    )
    spent = both(spent, batch * (widths[0] * terms * sum(sides) + widths[1] * rows * columns) / BANDWIDTH)
    spent = both(spent, math.ceil(rows / tile[0]) * across * parts * loads / FROM_L2)
    return spent + (8 * splits * batch * rows * columns / PARTS + SPLIT if splits > 1 else 0.0)


def _rate(rates: Sequence[float], columns: int) -> float:
    """The rate of a tile with so many columns: the time is linear between known ones, and below them constant."""
    place = columns / 64 - 1
    if place <= 0:
        return rates[0] * columns / 64
    below = min(int(place), len(rates) - 2)
    times = [(each + 1) / rates[each] for each in (below, below + 1)]
    return (place + 1) / (times[0] + (place - below) * (times[1] - times[0]))


@dataclass(frozen=True, order=True)
class _Tiling:
    """Tiles of a product.

    Of warp groups that take turns, of a cluster's tiles and parts of a tile's terms, of parts of all terms, and whether
    operands are exchanged, so that the result's columns are the tiles' rows; and whether blocks convert one.
    """

    rows: int
    columns: int
    turns: int = 1
    together: int = 1
    parts: int = 1
    splits: int = 1
    is_exchanged: bool = False
    is_converted: bool = False


def _tilings(
    sizes: tuple[float, float, float, float], table: _Rates, units: Sequence[int]
) -> Iterator[tuple[_Tiling, float]]:
    """All tilings of a product, and the rates of their tiles."""
    most = max(1, int(sizes[3] / FEWEST_TERMS))
    splits = [1 << power for power in range(most.bit_length()) if 1 << power <= 64]
    ways = [(TOGETHER, 1, each) for each in splits] + [(1, 1, each) for each in splits]
    ways += [(1, each, 1) for each in PARTS_OF_CLUSTER if 1 < each <= most]
    for turns, rates in ((1, table), (2, TURNS if table is HALF_TILES else {})):
        for (high, known), is_exchanged in itertools.product(rates.items(), (False, True)):
            rows, columns = (sizes[2], sizes[1]) if is_exchanged else sizes[1:3]
            unit = units[0] if is_exchanged else units[1]
            for wide in range(unit, min(64 * len(known), int(columns) + unit - 1) + 1, unit):
                rate = _rate(known, wide)
                for together, parts, split in ways:
                    if (together == 1 or rows > high) and (
                        parts == 1 or (turns == 1 and wide % (8 * parts) == 0)
                    ):
                        yield _Tiling(high, wide, turns, together, parts, split, is_exchanged), rate


def _stages(rows: int, columns: int, line: int = 128, beside: int = BESIDE_STAGES) -> int:
    return min((MOST_SHARED - beside) // ((rows + columns) * line), 12)


def _shape(node: Node, traced: Traced) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr, sympy.Expr] | None:
    """Batch, rows, columns and terms; None for what the template doesn't cover."""
    tensors: Any = (node, *node.args[:2])
    if numbers(node) not in STEPS or any(numbers(each) is not numbers(node) for each in tensors):
        return None
    out, left = (tuple(map(traced.expression, each.meta["val"].shape)) for each in tensors[:2])
    return product(out[:-2]), out[-2], out[-1], left[-1]


def with_follower(
    node: Node, kept: Sequence[Node], outputs: Collection[Node], traced: Traced
) -> list[tuple[Node, ...]]:
    """A node with what follows it, and alone, for where another group has that."""
    follower = None if node in outputs else follower_of(node, kept, traced)
    return [(node,)] if follower is None else [(node, follower), (node,)]


def follower_of(
    node: Node, kept: Sequence[Node], traced: Traced, known: Collection[Node] = ()
) -> Node | None:
    """The one stored node that all uses of a node lead to, element by element; None where there is no such node.

    Those that are `known` need it no more.
    """
    shape = extents_of(node, traced)
    views = {shape}
    found: set[Node] = set()
    ends = {*kept, *known}
    for user in behind(readers(node), ends.__contains__, readers):
        if user in known:
            continue
        if _is_view(user, node):
            views.add(extents_of(user, traced))
        elif user.op != "call_function" or rule_of(user).kind is not Kind.ELEMENT:
            return None
        if extents_of(user, traced) not in views:
            return None
        if user in kept:
            found.add(user)
    shapes = [extents_of(each, traced) for each in found]
    # Its rows may be along several axes.
    is_one = [each[-1:] for each in shapes] == [shape[-1:]] and len(shapes[0]) >= len(shape)
    return found.pop() if is_one else None


def _is_view(node: Node, product: Node) -> bool:
    """Whether a node is a view of a product, or of what follows it, with its elements in the same order."""
    return operator_name(product) == "aten.mm" and keeps_order(node)


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
        return each in kept or (rule_of(each).kind is not Kind.ELEMENT and not _is_view(each, node))

    reached = {each for each in behind(readers(node), is_end, readers) if not is_end(each)}
    reached = {each for each in reached if rule_of(each).kind is Kind.ELEMENT}
    ends = [each for each in order if each in reached and follower_of(node, [*kept, each], traced) is each]
    return ends[-1] if ends else node


def sum_of_parts(parts: Place) -> Given:
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
