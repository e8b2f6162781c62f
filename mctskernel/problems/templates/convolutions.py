"""The template for convolutions in TF32, which is PyTorch's own precision for them unless it is told otherwise.

Strides, dilation and transposition become tables of taps (`convolution_geometry`). What follows element by element is
computed where sums are stored.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Index, Place, numbers, plus, times
from mctskernel.problems.plain_cuda.element_types import converted, stored
from mctskernel.problems.plain_cuda.extents import ONE, count_in_plan, in_cpp, product
from mctskernel.problems.plain_cuda.products import AXES
from mctskernel.problems.plain_cuda.rules import argument, base_name, operator_name, readers, tensors
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.convolution_geometry import (
    MOST_ROWS,
    OF_BLOCK,
    WORDS,
    Geometry,
    Tables,
    arrays,
)
from mctskernel.problems.templates.epilogues import HEADER, Epilogue, Written, by_header
from mctskernel.problems.templates.pools import Pool, pools
from mctskernel.problems.templates.row_space import extents_of
from mctskernel.problems.templates.row_steps import Step
from mctskernel.problems.templates.rows import readers_of, row_groups
from mctskernel.problems.templates.tiles import end_of, sum_of_parts, with_follower

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule
    from mctskernel.problems.templates.row_kernels import RowGroup

CONVOLUTION = "aten.convolution"

PRODUCERS = 64
"""Of a block, as the header has it."""

MANY_PARTS = 8
"""Parts of an image with which it matters little that the last one is not full."""

MOST_TAPS = {False: 21, True: 7}
"""Taps whose weights a stage holds, for each of TF32 and exact products."""

FEW = 32
"""Inputs times outputs of a group below which tensor cores would mostly multiply zeros."""

EXACT = 8
"""Inputs of a group up to which cuDNN has no TF32, and three products cost little."""

TOGETHER = (16, 12, 8, 4)
"""Outputs that a thread computes where few terms are summed in fp32."""

THREADS, MOST_WEIGHTS = 270_000, 64
"""Threads that fill a GPU, and weights that one has in registers."""

TILE_CYCLES, TAP_CYCLES, DIRECT_CYCLES = 11, 3.4, 0.0165
"""Cycles of a multiprocessor for a place: of 64 rows, 8 terms of each in three products, and one term in fp32."""

FEW_STEPS = 24
"""Products along which sums are short: storing them takes longer, and smaller blocks overlap it better."""

WIDEST, STORING = 4096, 11264
"""Columns of a strip, and bytes of shared memory beside stages."""

MULTIPROCESSORS, MANY = 132, 100
"""Of the GPUs that templates are made for, and convolutions of which a launch plan has no room for further kernels."""

BLOCKS = 16 * MULTIPROCESSORS
"""Those that come later even the others out."""

MOST_STATIC, SHARED, MOST_SHARED = 48 << 10, 101 << 10, 232448
"""Bytes of shared memory: that need no permission, of stages where two blocks fit on a multiprocessor, and of one."""


_SUMS = {"sum", "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d"}
_LINEAR = set("add sub div cat view clone permute select unsqueeze squeeze constant_pad_nd".split())


_Words = tuple[str, str, tuple[str, ...]]
"""What a convolution, its sizes and its macros are in C++."""


@dataclass(frozen=True)
class Convolution:
    """A convolution and the element-wise operators that follow it; the last of `nodes` is stored.

    Or the group of rows that its `epilogue` computes, or a `pool`, for which it stores what pairs of columns give.
    """

    nodes: tuple[Node, ...]
    tables: Tables
    epilogue: Epilogue | None = None
    pool: Pool | None = None

    @property
    def held(self) -> Node:
        """What is computed of each sum."""
        return self.epilogue.held if self.epilogue else self.pool.source if self.pool else self.nodes[-1]

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """A kernel that packs the weights, the convolution's, and one that completes a reduction or a pool."""
        node = self.nodes[0]
        tensor = _source(node)[0]
        schedule.include(HEADER)
        groups = int(argument(node, "groups"))
        body = schedule.body(place)
        given, out = body.extents(tensor), body.extents(node)
        channels, rows = given[1] // groups, out[1] // groups
        places = self._places(out)
        named = ("TILE_ROWS", "STRIP", "DEEP", "STAGES", "WARP_GROUPS", "LOADERS", "BLOCKS")
        choice = self._choice(schedule, channels, rows, places)
        macros = tuple(schedule.macro(*each) for each in zip(named, choice, strict=True))
        is_stored = bool(self.epilogue and self.epilogue.stored)
        in_pairs = self.pool or is_stored or (not self.epilogue and schedule.estimate(out[-1:]) % 2 == 0)
        split = self._split(schedule, self._steps(schedule, channels), out, places)
        name = schedule.fresh(node.name)
        schedule.define(self.tables.text(name, by_image=bool(self.epilogue and self.epilogue.by_image)))
        sizes = _sizes(node, body, places) + (f", {split}" if split else "")
        packed = self._packed(schedule, channels, rows, macros)
        yield self._packing(schedule, packed, (name, sizes, macros))
        step, target = None, place
        if split:
            count = sympy.Symbol(split, integer=True, positive=True)
            target = Place(schedule.fresh(f"{node.name}_parts"), torch.float32, (out[0] * count, *out[1:]))
            schedule.add_scratch(target)
        if self.epilogue and self.epilogue.parts:
            step = self.epilogue.step(schedule, self._count_parts(out[0], places, macros))
            target = step.buffer or place
        if self.pool or is_stored:
            schedule.require(f"{macros[1]} >= 2")
            extents = (*out[:-1], sympy.floor(out[-1] / 2)) if self.pool else out
            target = Place(schedule.fresh(self.held.name), torch.float32, extents)
            schedule.add_scratch(target)
        of_block = "" if split else f"{name}_geometry, {macros[0]}, {macros[1]}, {macros[4]}"
        follow = self._follow(schedule, target if self.pool or split else place, step, of_block)
        words = name, sizes, (*macros, "2" if in_pairs else "1", split or "1")
        also = (step.buffer,) if step and step.buffer and is_stored else ()
        yield self._product(schedule, (target, *also), words, (schedule.places[tensor], packed), follow)
        if split:
            parts = sum_of_parts(Place(target.name, torch.float32, (count, *out)))
            given_sum = {node: lambda body, index: _with_bias(node, body, index, parts(body, index))}
            yield schedule.kernel(schedule.whole(self.nodes[-1], place, given_sum))
        if self.pool or is_stored:
            schedule.places[self.held] = target
        if self.epilogue and step:
            yield from self.epilogue.merged(schedule, place, step)
        if self.pool:
            yield from self.pool.kernels(schedule, place)

    def _places(self, out: Sequence[sympy.Expr]) -> list[sympy.Expr]:
        """The places of a phase along each axis."""
        return [*map(_parts, _three(out[2:], ONE), self.tables.geometry.out)]

    def _steps(self, schedule: Schedule, channels: sympy.Expr) -> int:
        """The products of terms of a tap."""
        terms = schedule.estimate((channels,)) * self.tables.geometry.fold
        return math.ceil(terms / (WORDS * 4 // numbers(self.nodes[0]).itemsize))

    def _split(
        self, schedule: Schedule, steps: int, out: Sequence[sympy.Expr], places: Sequence[sympy.Expr]
    ) -> str:
        """The macro of parts of the channels that blocks of their own compute, where there would be too few."""
        results = schedule.estimate(out)
        blocks = results / OF_BLOCK
        for halo, extent in zip(self.tables.halo, places[1:], strict=True):
            blocks *= 1 + halo / schedule.estimate((extent,))
        taps = sum(len(each.taps) for each in self.tables.sections) / self.tables.phases
        products = steps * taps * 128 * (3 if self.tables.exact else 1)

        def cycles(splits: int) -> float:
            """About, of products by blocks beside each other, and of storing parts and loading them again."""
            waves, alone = (
                math.ceil(blocks * splits / 2 / MULTIPROCESSORS),
                blocks * splits <= MULTIPROCESSORS,
            )
            stored = (splits > 1) * (3000 + splits * results / 325)
            return waves * products / splits * (1.6 if alone else 2) + stored

        found = min((each for each in (1, 2, 4, 8, 16) if steps >= 2 * each or each == 1), key=cycles)
        node = self.nodes[0]
        is_one_of_many = len(node.graph.find_nodes(op="call_function", target=node.target)) > MANY
        if self.epilogue or self.pool or is_one_of_many or cycles(found) > 0.75 * cycles(1):
            return ""
        split = schedule.macro("SPLITS", found)
        schedule.require(f"{split} >= 1 && {split} <= 64")
        return split

    def _count_parts(
        self, images: sympy.Expr, places: Sequence[sympy.Expr], macros: Sequence[str]
    ) -> sympy.Expr:
        """How many parts of an image, or of all, the warp groups of blocks have, for each channel."""
        assert self.epilogue is not None  # noqa: S101 - that keeps parts
        tile, strip, groups = (sympy.Symbol(macros[at], integer=True, positive=True) for at in (0, 1, 4))
        down, across = self.tables.halo
        vector = 2 if self.epilogue.stored else 1
        width = _parts(places[2], _parts(places[2], sympy.floor(strip / vector) * vector))
        width = _parts(width, vector) * vector
        strips = _parts(places[2], width)
        count = places[0] * (places[1] + down) * (width + across)
        count *= 1 if self.epilogue.by_image else images
        own = 1 + (groups - 1) * sympy.floor(64 / tile)
        return strips * _parts(count, sympy.floor(OF_BLOCK / tile)) * self.tables.phases * own

    def _choice(
        self, schedule: Schedule, channels: sympy.Expr, rows: sympy.Expr, places: Sequence[sympy.Expr]
    ) -> tuple[int, ...]:
        """Rows of a block, columns of a strip, steps of a stage, stages, warp groups and loaders, and blocks."""
        columns = schedule.estimate((places[2],))
        steps = self._steps(schedule, channels)
        sections = self.tables.sections
        taps = sum(len(each.taps) for each in sections) / self.tables.phases
        deep = min(steps, 3 if steps == 3 else 2) if self.tables.most_taps < 3 else 1
        stack = self.tables.geometry.stack
        is_short = stack == 1 and deep == 1 and steps * taps < FEW_STEPS
        channels_of_block = self.epilogue is not None and not self.epilogue.parts
        is_wide = schedule.estimate((rows,)) * stack > 64 and (channels_of_block or not is_short)

        def cost(tile: int, strip: int) -> float:
            """Cycles, about: of products, loading and storing."""
            loads = steps * len(sections) / self.tables.phases * self.tables.lines(tile, strip)
            cycles = steps * taps * 128 + (6 if self.tables.exact else 2.5) * loads + 2500 * (1 + 32 / strip)
            alone = 1 if 2 * self.tables.stage(tile, strip, deep) <= SHARED else 1.6
            return math.ceil(columns / strip) * (strip + self.tables.halo[1]) * cycles * alone

        widths = {
            math.ceil(columns / parts / 2) * 2 for parts in range(math.ceil(columns / WIDEST), columns + 1)
        }
        tile = strip = 0
        for tile in (128, 64) if is_wide else (64,):
            costs = {each: cost(tile, each) for each in widths if each >= min(8, columns)}
            strip = min(costs, key=lambda each: (costs[each], -each))
            if channels_of_block or 2 * self.tables.stage(tile, strip, deep) <= SHARED:
                break  # two blocks on a multiprocessor
        stage = self.tables.stage(tile, strip, deep)
        memory = SHARED if 2 * stage <= SHARED else MOST_SHARED - STORING
        # More warps compute what follows, and products take more of shared memory's time.
        follows = self.held is not self.nodes[0] or bool(self.pool or self.epilogue)
        several = (channels_of_block or (follows and self.tables.exact)) and self.tables.is_even
        # With so many threads 256 places are multiplied by halves, which read more of shared memory.
        is_wide = tile == MOST_ROWS and numbers(self.nodes[0]) is torch.float32
        is_wide = not self.tables.exact and (is_wide or self.tables.most_taps * deep < 3)
        groups = (2, 1) if several else (1, 2 if is_wide else 1)
        return tile, strip, deep, min(max(memory // stage, 2), 4), *groups, BLOCKS

    def _packed(
        self, schedule: Schedule, channels: sympy.Expr, rows: sympy.Expr, macros: Sequence[str]
    ) -> Place:
        """The buffer of packed weights."""
        node = self.nodes[0]
        tile, deep = (sympy.Symbol(macros[number], integer=True, positive=True) for number in (0, 2))
        terms = WORDS * 4 // numbers(node).itemsize
        extents = (
            sympy.Integer(argument(node, "groups")),
            _parts(rows, sympy.floor(tile * (16 // self.tables.geometry.stack) / 16)),
            sympy.Integer(sum(len(each.taps) for each in self.tables.sections)),
            _parts(channels * self.tables.geometry.fold, deep * terms),
            sympy.Integer(1 + self.tables.exact),
            deep * terms * tile,
        )
        packed = Place(schedule.fresh(f"{node.name}_weights"), numbers(node), extents)
        schedule.add_scratch(packed)
        return packed

    def _packing(self, schedule: Schedule, packed: Place, words: _Words) -> tuple[str, str]:
        """The kernel that packs the weights."""
        node = self.nodes[0]
        name, sizes, (tile, _, deep, *_) = words
        body = schedule.body(packed)
        text = (
            f"    const convolutions::Sizes sizes = {{{sizes}}};\n"
            f"    convolutions::pack_weights<{name}_geometry, {tile}, {deep}>({schedule.parameter(packed.name)},\n"
            f"        (long long)blockIdx.x * blockDim.x + threadIdx.x, sizes, {name}_taps, {name}_sections,\n"
            f"        {_weights(node, body)});"
        )
        made = Function(
            schedule.fresh("pack_weights_kernel"),
            f"weights, {operator_name(node)}",
            text,
            tuple(body.reads.values()),
            packed,
            "__launch_bounds__(256) ",
        )
        count = count_in_plan((*packed.extents[:-2], packed.extents[-1]))
        return schedule.function(made), schedule.launch(made, f"ceil_div({count}, 256)", "256")

    def _follow(self, schedule: Schedule, place: Place, step: Step | None, of_block: str) -> Written:
        """What becomes of sums, as arguments in C++, and what it reads."""
        held = schedule.place("", self.held) if self.epilogue else place
        value, at, names = _epilogue((self.nodes[0], self.held), schedule, held)
        text, reads = _function(at, names), list[Place]()
        if self.pool:
            text = f"convolutions::pairs<{str(self.pool.is_largest).lower()}>({text})"
        elif self.epilogue and step:
            text, reads = self.epilogue.of_places(schedule, step, of_block, value.text(), text)
        elif self.epilogue:
            text, reads = self.epilogue.of_channels(schedule, place, of_block)
        elif not of_block:
            return f"        convolutions::Sum(),\n        {text}", reads
        of_sum = _function(value, names, f"float {names[-1]}")
        return f"        {of_sum},\n        {text}", [*value.reads.values(), *reads]

    def _product(
        self,
        schedule: Schedule,
        written: tuple[Place, ...],
        words: _Words,
        read: tuple[Place, Place],
        follow: Written,
    ) -> tuple[str, str]:
        """The kernel of the convolution."""
        node, (place, *also) = self.nodes[0], written
        name, sizes, (tile, strip, deep, stages, warp_groups, loaders, blocks, vector, split) = words
        tensor, packed = read
        body = schedule.body(place)
        out = body.extents(node)
        places = self._places(out)
        groups = int(argument(node, "groups"))
        shared = body.fresh("shared")
        teams = f"1 + ({loaders} - 1) * (2 - {warp_groups})"  # with two warp groups there is no third one
        call = f"{name}_geometry, {tile}, {strip}, {deep}, {stages}, {warp_groups}, {teams}, {vector}"
        text = (
            f"    extern __shared__ unsigned char {shared}[];\n"
            f"    const convolutions::Sizes sizes = {{{sizes}}};\n"
            f"    convolutions::convolve<{call}>(\n"
            f"        {schedule.parameter(place.name)}, {shared}, {schedule.parameter(tensor.name)}, "
            f"{schedule.parameter(packed.name)}, sizes,\n"
            f"        {name}_sections, {name}_taps, {name}_phases,\n"
            f"{by_header(follow[0], schedule, self.nodes[:1])});"
        )
        threads = f"128 * {warp_groups} + {PRODUCERS} * ({teams})"
        reads = {each.name: each for each in (tensor, packed, *follow[1])}
        for each in written:
            reads.pop(each.name, None)
        made = Function(
            schedule.fresh("convolution_kernel"),
            schedule.described(self.held if self.pool else self.nodes[-1]),
            text,
            tuple(reads.values()),
            place,
            f"__launch_bounds__({threads}, 2) ",
            tuple(also),
        )
        rows, columns = self.tables.halo
        lines = (
            f"(({OF_BLOCK} {{0}} {tile} + {columns + rows * columns + 31} + {rows} * {strip}) {{0}} 32 * 32)"
        )
        of_step = (1 + self.tables.exact) * WORDS * 4
        stage = f"{stages} * {deep} * {of_step} * ({lines} + {self.tables.most_taps} * {tile})"
        schedule.require(
            f"({tile} == 64 || {tile} == 128) && {strip} >= 1 && {strip} <= {WIDEST} && {deep} >= 1 && {stages} >= 2"
        )
        groups_of = f"({warp_groups} == 1" + f" || {warp_groups} == 2" * self.tables.is_even + ")"
        schedule.require(f"{groups_of} && ({loaders} == 1 || {loaders} == 2)")
        schedule.require(f"{stage.format('/')} + {STORING} <= {MOST_SHARED}")
        across = count_in_plan((places[2],))
        strips = f"ceil_div({across}, {strip})"
        high = f"({count_in_plan((places[1],))} + {rows})"
        planes = count_in_plan((out[0], places[0]))
        own = f"({tile} * {16 // self.tables.geometry.stack} // 16)"
        grid = (
            f"ceil_div({planes} * {high} * (ceil_div({across}, {strips}) + {columns}), {OF_BLOCK} // {tile})"
            f" * {strips}"
            f" * ceil_div({count_in_plan((out[1] // groups,))}, {own}) * {groups * self.tables.phases} * {split}"
        )
        return schedule.function(made), schedule.launch(
            made, f"min(max({blocks}, {grid} // 16), {grid})", threads, f"{stage.format('//')} + {STORING}"
        )


@dataclass(frozen=True)
class DirectConvolution:
    """A convolution of few terms in fp32, and what follows it. A thread has so many `outputs`: one if depthwise."""

    nodes: tuple[Node, ...]
    geometry: Geometry
    outputs: int = 1

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """Its kernel."""
        node = self.nodes[0]
        tensor = _source(node)[0]
        found = schedule.places[tensor]
        schedule.include(HEADER)
        name = schedule.fresh(node.name)
        geometry = self.geometry
        listed = {
            "KERNEL": geometry.kernel,
            "STEPS": geometry.stride,
            "PADDING": geometry.padding,
            "DILATION": geometry.dilation,
        }
        transposed = f"    static constexpr bool TRANSPOSED = {str(geometry.transposed).lower()};\n"
        schedule.define(f"struct {name}_geometry {{\n{arrays(listed)}{transposed}}};")
        body = schedule.body(place)
        out = _three(body.extents(node)[2:], ONE)
        run, across, vector = self._choice(schedule, body, out)
        outputs = schedule.macro("OUTPUTS", self.outputs) if self.outputs > 1 else ""
        weights = _weights(node, body)
        value, index, names = _epilogue(self.nodes, schedule, place)
        of_sum = _function(value, names, f"float {names[-1]}")
        follow = f"        {of_sum},\n        {_function(index, names)}"
        result, images = (schedule.parameter(each.name) for each in (place, found))
        call = f"convolve_directly<{name}_geometry, {run}, {across}, {vector}>({result}, {images}"
        shared = ""
        if outputs:
            schedule.require(f"{outputs} >= 4 && {outputs} <= 32 && {outputs} % 4 == 0")
            memory = value.fresh("shared")
            shared = f"    extern __shared__ unsigned char {memory}[];\n"
            call = f"convolve_few<{name}_geometry, {outputs}, {across}, {vector}>({result}, (float*){memory}, {images}"
        text = (
            f"{shared}    const convolutions::Sizes sizes = {{{_sizes(node, body, out)}}};\n"
            f"    convolutions::{call}, sizes,\n"
            f"        {weights},\n{by_header(follow, schedule, self.nodes[:1])});"
        )
        reads = {each.name: each for each in (found, *body.reads.values(), *value.reads.values())}
        reads.pop(place.name, None)
        made = Function(
            schedule.fresh("convolution_kernel"),
            schedule.described(self.nodes[-1]),
            text,
            tuple(reads.values()),
            place,
            f"__launch_bounds__(256{', 2' if outputs else ''}) ",
        )
        images, rows = body.extents(node)[:2]
        groups = int(argument(node, "groups"))
        together = (images, out[0]) if outputs else (images, rows, out[0])
        threads = f"{count_in_plan(together)} * ceil_div({count_in_plan((out[1],))}, {run})"
        grid = f"ceil_div({threads} * ceil_div({count_in_plan((out[2],))}, {across}), 256)"
        if outputs:
            grid += f" * ceil_div({count_in_plan((rows // groups,))}, {outputs}) * {groups}"
            channels = body.extents(tensor)[1] // groups
            shared = f"{count_in_plan((channels,))} * {math.prod(geometry.kernel)} * {outputs} * 4"
        yield schedule.function(made), schedule.launch(made, grid, "256", shared)

    def _choice(self, schedule: Schedule, body: Body, out: Sequence[sympy.Expr]) -> tuple[str, str, str]:
        """Rows and columns of a thread, and columns that are loaded at once, as macros or numbers."""
        node = self.nodes[0]
        high, wide = (schedule.estimate((each,)) for each in out[1:])
        planes = schedule.estimate(body.extents(argument(node, "weight"))[1:2]) * self.geometry.kernel[0]
        columns = 1 if wide <= 2 else 4 if high > 1 or self.outputs > 1 else 8
        most = 1 if high == 1 or self.outputs > 1 else 4 if planes == 1 else 8
        while most > 2 and schedule.estimate(body.extents(node)) < THREADS * most * columns:
            most //= 2
        down, right = self.geometry.out[1:]
        columns = math.ceil(columns / right) * right * (2 if right == 2 else 1)
        across = schedule.macro("ACROSS", columns)
        width = schedule.estimate(body.extents(_source(node)[0])[-1:])
        vector = schedule.macro("VECTOR", math.gcd(width, 4), 1, 2, 4)
        run = "1"
        if self.outputs == 1 and high > 1:
            run = schedule.macro("RUN", math.ceil(high / math.ceil(high / most) / down) * down)
        schedule.require(f"{across} >= 1 && {across} <= 16 && {run} >= 1 && {run} <= 32")
        return run, across, vector


def _sizes(node: Node, body: Body, places: Sequence[sympy.Expr]) -> str:
    """The initialiser of a convolution's Sizes."""
    groups, out = int(argument(node, "groups")), body.extents(node)
    given = body.extents(_source(node)[0])
    axes = (_three(given[2:], ONE), _three(out[2:], ONE), places)
    counts = in_cpp(out[0]), str(groups), in_cpp(given[1] // groups), in_cpp(out[1] // groups)
    return ", ".join((*counts, *(f"{{{', '.join(map(in_cpp, each))}}}" for each in axes)))


def _weights(node: Node, body: Body) -> str:
    """A function of a group, its output, its input and a tap, that gives weights."""
    weight: Any = argument(node, "weight")
    group, row, channel, tap = (body.fresh(each) for each in ("group", "row", "channel", "tap"))
    extents = body.extents(weight)
    groups = int(argument(node, "groups"))
    places = body.unflat(tap, extents[2:], [f"tap_{each}" for each in AXES[len(extents) - 2]])
    first, second = (channel, row) if argument(node, "transposed") else (row, channel)
    if groups != 1:
        first = plus(times(group, in_cpp(extents[0] // groups)), first)
    body.line(f"return {body.read(weight, (first, second, *places))};")
    return f"[&](int {group}, int {row}, int {channel}, int {tap}) {{\n{body.text()}\n        }}"


def _epilogue(nodes: Sequence[Node], schedule: Schedule, place: Place) -> tuple[Body, Body, tuple[str, ...]]:
    """What becomes of an element's sum, where it is stored, and what the arguments of both are called."""
    node, last = nodes[0], nodes[-1]
    kind = "long long" if schedule.is_large(place) else "int"
    rank = len(schedule.body(place).extents(node)) - 2
    words = ("image", "channel", "depth", "row", "column", "product")
    names: tuple[str, ...] = ()

    def given(body: Body, index: Index) -> str:
        return _with_bias(node, body, index, names[-1])

    value, at = (schedule.body(place, kind, {node: given}) for _ in range(2))
    for body in (value, at):
        names = tuple(map(body.fresh, words))
    image = "0" if place.extents[0] == ONE else names[0]
    index = (image, names[1], *names[5 - rank : 5])
    text = converted(value.read(last, index), numbers(last), place.dtype)
    value.line(f"return {stored(place.dtype, text)};")
    at.line(f"return {at.flat(index, place.extents)};")
    return value, at, names


def _with_bias(node: Node, body: Body, index: Index, value: str) -> str:
    bias: Any = argument(node, "bias")
    return value if bias is None else f"({value} + {body.read(bias, (index[1],))})"


def _function(body: Body, names: tuple[str, ...], *further: str) -> str:
    arguments = ", ".join((*(f"int {each}" for each in names[:-1]), *further))
    return f"[&]({arguments}) {{\n{body.text()}\n        }}"


def convolutions(
    kept: Sequence[Node], outputs: Collection[Node], traced: Traced
) -> Iterator[Convolution | DirectConvolution]:
    """The convolutions of 16 bits, or that PyTorch computes in TF32, each with what follows element by element."""
    behind_any = _Behind(
        kept, traced, tuple(row_groups(kept, outputs, traced)), tuple(pools(kept, outputs, traced))
    )
    for nodes in (
        each for node in kept if _is_covered(node) for each in with_follower(node, kept, outputs, traced)
    ):
        node, geometry = nodes[0], _geometry(nodes[0], traced)
        if geometry is None:
            continue
        groups = int(argument(node, "groups"))
        tensor = _source(node)[0]
        inputs, rows = (
            traced.estimate(traced.expression(each.meta["val"].shape[1])) // groups for each in (tensor, node)
        )
        is_small = math.prod(geometry.kernel[1:]) <= MOST_WEIGHTS and max(geometry.stride[1:]) <= 4
        if inputs * rows < FEW and (is_small or not geometry.transposed):
            yield DirectConvolution(nodes, geometry)
            continue
        is_few = inputs <= EXACT or (bool(traced.moved) and any(map(_is_sum, tensors(node)[:2])))
        exact = is_few and numbers(node) is torch.float32
        terms = inputs * math.prod(geometry.kernel)
        own = geometry.with_fewest(inputs, rows, WORDS * 4 // numbers(node).itemsize)
        tables = Tables(own, tuple(own.sections(MOST_TAPS[exact])), exact)
        steps = math.ceil(inputs * own.fold * numbers(node).itemsize / (4 * WORDS))
        if is_few and not geometry.transposed and _is_direct(terms, steps, rows, tables):
            yield DirectConvolution(nodes, geometry, min(TOGETHER, key=lambda each: (-rows % each, -each)))
            continue
        if 2 * tables.stage(64, 8, 1) > MOST_SHARED - STORING:
            continue
        if not {*outputs} & {*nodes}:
            yield from behind_any.reduced(nodes, tables, rows if groups == 1 else math.inf)
        yield Convolution(nodes, tables)


class _Behind(NamedTuple):
    """What convolutions may be followed by."""

    kept: Sequence[Node]
    traced: Traced
    groups: Sequence[RowGroup]
    pools: Sequence[Pool]

    def reduced(self, nodes: Sequence[Node], tables: Tables, rows: float) -> Iterator[Convolution]:
        """A convolution and what follows element by element with what is reduced of that; blocks have so many rows."""
        kept, traced = self.kept, self.traced
        held = nodes[-1] if len(nodes) > 1 else end_of(nodes[0], nodes[0].graph.nodes, kept, traced)
        readers = readers_of(kept, traced)
        for leaf, group in itertools.product(nodes, self.groups):
            others = readers[leaf] - {*group.nodes}
            epilogue = Epilogue.of(leaf, held, group, traced, shared=bool(others))
            if epilogue is None or not others <= {*kept[kept.index(group.nodes[-1]) :]}:
                continue
            for stacked in (True, False):
                own = replace(tables.geometry, stacked=stacked)
                own_tables = Tables(own, tuple(own.sections(MOST_TAPS[tables.exact])), tables.exact)
                if _pays(epilogue, own_tables, rows, traced):
                    within = (*nodes[: nodes.index(leaf) + 1], *group.nodes)
                    yield Convolution(within, own_tables, epilogue)
        if tables.geometry.out[2] == tables.geometry.stack <= 2:
            for pool in (each for each in self.pools if each.joins(held)):
                yield Convolution((*nodes, *pool.nodes), tables, pool=replace(pool, in_pairs=True))


def _pays(epilogue: Epilogue, tables: Tables, rows: float, traced: Traced) -> bool:
    """Whether a block has all channels of its places, or an image so many places that its last part counts little."""
    if not tables.is_even:
        return False
    if not epilogue.parts:
        return rows * tables.geometry.stack <= MOST_ROWS
    extents = extents_of(epilogue.held, traced)
    places = traced.estimate(product(extents[2:] if epilogue.by_image else (extents[0], *extents[2:])))
    return places >= MANY_PARTS * OF_BLOCK / MOST_ROWS * math.prod(tables.geometry.out)


def _is_direct(terms: float, steps: int, rows: float, tables: Tables) -> bool:
    """Whether fp32 takes fewer cycles than products on tensor cores: of 64 rows, and so many steps for each tap."""
    steps *= sum(len(each.taps) for each in tables.sections)
    each = TAP_CYCLES if tables.exact else TAP_CYCLES / 3
    products = math.ceil(rows / 64) * (TILE_CYCLES + steps * each) / tables.geometry.beside
    # Columns beside each other share what they read, unless the kernel has one.
    cycles = rows * terms * DIRECT_CYCLES * (1.6 if tables.geometry.kernel[2] == 1 else 1)
    return terms * max(TOGETHER) * 4 <= MOST_STATIC and cycles < products


def _is_sum(node: Node) -> bool:
    """Whether a node has sums of inputs, which have more digits than TF32 even where inputs don't."""
    is_sum = False
    while base_name(node) in _SUMS | _LINEAR:
        is_sum |= base_name(node) in _SUMS
        node = tensors(node)[0]
    return is_sum and node.op == "placeholder"


def convolved(kept: Sequence[Node]) -> Iterator[Node]:
    """The views that convolutions read, which they had better find in memory as they are."""
    tensors_of = (_source(node)[0] for node in kept if _is_covered(node))
    yield from (each for each in tensors_of if each.op == "call_function")


def padded(kept: Sequence[Node]) -> set[Node]:
    """What only puts zeros around the inputs of convolutions, which read those as they are."""
    return {argument(node, "input") for node in kept if _is_covered(node) and _source(node)[1]}


def _source(node: Node) -> tuple[Node, Sequence[int]]:
    """What a convolution reads, and the zeros that another operator adds before and after its axes, last axis first."""
    tensor: Any = argument(node, "input")
    if operator_name(tensor) == "aten.constant_pad_nd" and readers(tensor) == [node]:
        pads = argument(tensor, "pad")
        is_known = all(isinstance(each, int) and each >= 0 for each in pads) and not argument(tensor, "value")
        if is_known and not argument(node, "transposed") and len(pads) <= 2 * (tensor.meta["val"].dim() - 2):
            return argument(tensor, "self"), pads
    return tensor, ()


def _is_covered(node: Node) -> bool:
    types = {torch.float16, torch.bfloat16, *([torch.float32] if torch.backends.cudnn.allow_tf32 else [])}
    is_one = operator_name(node) == CONVOLUTION and numbers(node) in types
    return is_one and all(numbers(each) is numbers(node) for each in tensors(node)[:2])


def _geometry(node: Node, traced: Traced) -> Geometry | None:
    """What a convolution does along its axes; None where that isn't known."""
    weight: Any = argument(node, "weight")
    kernel = [traced.expression(size) for size in weight.meta["val"].shape[2:]]
    if not all(each.is_Integer for each in kernel):
        return None

    def along(word: str, empty: int) -> tuple[int, ...]:
        values = [int(value) for value in argument(node, word)]
        return _three(values * len(kernel) if len(values) == 1 else values, empty)

    before = _three(_source(node)[1][-2::-2], 0)
    return Geometry(
        _three([int(size) for size in kernel], 1),
        along("stride", 1),
        tuple(map(operator.add, along("padding", 0), before)),
        along("dilation", 1),
        bool(argument(node, "transposed")),
    )


def _three(values: Sequence[Any], empty: Any) -> tuple[Any, ...]:
    """Numbers along depth, rows and columns, from those of an image's axes."""
    return (*[empty] * (3 - len(values)), *values)


def _parts(size: sympy.Expr, part: sympy.Expr | int) -> sympy.Expr:
    return sympy.floor((size + part - 1) / part)
