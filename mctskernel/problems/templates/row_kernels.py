"""The kernels of a group of rows: threads share a row, or own neighbouring rows where those are neighbours in memory.

A row is read tile by tile, in vectors where it is contiguous, and the last tile stays in registers for the next pass,
which begins with it; so a row of one tile is read once. Reductions of few long rows are split over blocks, which store
their parts for a second kernel.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Index, Place, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import (
    computed_type,
    converted,
    highest,
    literal,
    loaded,
    lowest,
    stored,
    stored_type,
)
from mctskernel.problems.plain_cuda.extents import count_in_cpp, count_in_plan, product, same
from mctskernel.problems.plain_cuda.reductions import (
    REDUCTIONS,
    accumulated,
    combine,
    finished,
    start_of,
)
from mctskernel.problems.plain_cuda.rules import Kind, base_name, is_tensor, operator_name, rule_of, tensors
from mctskernel.problems.templates.row_functions import ACROSS, DOWN, VECTORS
from mctskernel.problems.templates.rows import (
    PLACES,
    RowGroup,
    Rows,
    Space,
    element_index,
    pair,
    reduces,
    row_index,
)

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

THREADS_OF_A_DEVICE = 132 * 2048
"""What a reduction to few results should be split over."""

LARGE = 1 << 30
"""Longer rows have 64-bit indices."""

MULTIPROCESSORS, RESIDENT_THREADS = 132, 1024
"""Of the GPU that sizes are chosen for, and of a multiprocessor: enough loads in flight, and 64 registers for each."""

FEW_WAVES = 16
"""With so few blocks that take long, those of the last wave leave many multiprocessors idle."""

MOST_ITEMS = 64
"""Registers of a thread for elements."""


@dataclass(frozen=True)
class Member:
    """A number in the state of a reduction."""

    kind: str
    name: str
    start: str


@dataclass(frozen=True)
class Part:
    """One reduction, or a pair of reductions in one pass (`rows.pair`), and its members of the state."""

    nodes: tuple[Node, ...]
    kind: str
    members: tuple[Member, ...]

    def merge(self) -> list[str]:
        """Statements that add the state `other` to `into`."""
        names = [member.name for member in self.members]
        if self.kind == "place":
            best, place = names
            return [
                f"if (other.{place} >= 0 && {_better(self.nodes[0], f'other.{best}', 'into.', f'other.{place}')}) {{",
                f"    into.{best} = other.{best};",
                f"    into.{place} = other.{place};",
                "}",
            ]
        if not self.kind:
            statement = REDUCTIONS[base_name(self.nodes[0])][0]
            return [statement.format(f"into.{names[0]}", f"other.{names[0]}")]
        if self.kind == "softmax":
            top, total = names
            return [
                f"float {top} = other.{top} > into.{top} || other.{top} != other.{top} ? other.{top} : into.{top};",
                f"into.{total} *= into.{top} == {top} ? 1.0f : expf(into.{top} - {top});",
                f"into.{total} += other.{total} * (other.{top} == {top} ? 1.0f : expf(other.{top} - {top}));",
                f"into.{top} = {top};",
            ]
        mean, squares, count = names
        return [
            f"float {count} = into.{count} + other.{count};",
            f"float share = other.{count} / fmaxf({count}, 1.0f);",
            f"float step = other.{mean} - into.{mean};",
            f"into.{mean} += share * step;",
            f"into.{squares} += other.{squares} + step * step * into.{count} * share;",
            f"into.{count} = {count};",
        ]


@dataclass(frozen=True)
class Step:
    """Reductions that one pass computes, with the struct of their states, and the buffer of its parts if split."""

    struct: str
    parts: tuple[Part, ...]
    buffer: Place | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """All members of the state."""
        return tuple(member for part in self.parts for member in part.members)

    @property
    def starts(self) -> str:
        """The initial values of the state."""
        return "{" + ", ".join(member.start for member in self.members) + "}"

    def definition(self) -> str:
        """The struct, and the function that merges two."""
        members = "".join(f"    {each.kind} {each.name};\n" for each in self.members)
        lines = "".join(f"    {line}\n" for part in self.parts for line in part.merge())
        return (
            f"struct {self.struct} {{\n{members}}};\n\n"
            f"__device__ __forceinline__ void merge({self.struct}& into, const {self.struct}& other) {{\n{lines}}}"
        )


@dataclass(frozen=True)
class Geometry:
    """Macros by what they are for, with their values. A value of 0 leaves one out."""

    lanes: int
    rows: int
    vector: int
    items: int
    parts: int

    @property
    def tile(self) -> int:
        """Elements of a row that a block holds at once."""
        return self.lanes * self.vector * self.items


def row_kernels(group: RowGroup, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
    """The texts of the kernels of a group, and their launches."""
    geometry = geometry_of(group, schedule)
    split, strided = geometry.parts > 1, group.space.strided
    several = split or schedule.estimate(run_of(group.space)[1]) > geometry.tile
    words = ["COLUMNS", "LANES", "ITEMS"] if strided else ["THREADS", "ROWS", "VECTOR", "ITEMS"]
    if split:
        words = [*(word for word in words if word != "ROWS"), "PARTS"]
    names = macros(schedule, words, geometry)
    steps = list(_steps(group, schedule, merged=several, parts=names.get("PARTS", "")))
    for text in (VECTORS, ACROSS) if not strided else (DOWN,):
        schedule.define(text)
    title = "_".join(
        dict.fromkeys(operator_name(node).split(".")[-1].strip("_") for node in group.nodes[-3:])
    )
    head = "".join(f"{step.definition()}\n\n" for step in steps)
    stages = [(n, n + 1) for n in range(len(steps))] if split else []
    for first, end in (*stages, (len(steps), len(steps)) if split else (0, len(steps))):
        name = schedule.fresh(f"{title}_{'parts' if first < end and split else 'rows'}")
        for index_type in ("int", "long long"):
            writer = RowWriter(group, schedule, place, names, index_type=index_type, several=several)
            made = writer.kernel(name, steps, first, end, last=not split or first == len(steps))
            if index_type == "int" and any(schedule.is_large(each) for each in writer.body.used):
                continue
            text, launch = made
            yield head + text, launch
            head = ""
            break


def geometry_of(group: RowGroup, schedule: Schedule) -> Geometry:
    """Macros for typical sizes."""
    space = group.space
    rows, (segments, run) = max(schedule.estimate(space.rows), 1), run_of(group.space)
    outer, length = schedule.estimate(segments), schedule.estimate(run)
    writes = same(product(space.extents), product(schedule.place("", group.nodes[-1]).extents))
    if space.strided:
        return _of_columns(rows, length, writes=writes)
    vector = max(16 // max((numbers(node).itemsize for node in group.leaves), default=4), 1)
    count = outer * length
    few = (rows < 264 and count >= 1 << 13) or (rows < FEW_WAVES * MULTIPROCESSORS and count > 1 << 17)
    if few:
        units = outer * -(-length // (256 * 4 * vector))
        parts = min(range(1, min(units, 2 * SLOTS) + 1), key=lambda each: _idle(rows * each) + each / 1e4)
        return Geometry(256, 1, vector, 4, max(parts, 2))
    vectors = -(-length // vector)
    if vectors <= 32:
        lanes, items = power_of_two(vectors), 1
    else:
        lanes = min(max(power_of_two(-(-vectors // 4)), 32), 1024)
        items = min(-(-vectors // lanes), 8)
    return Geometry(lanes, max(256 // lanes, 1), vector, items, 1)


def _of_columns(rows: int, length: int, *, writes: bool) -> Geometry:
    """Macros for neighbouring rows, each of which one or a few threads walk along."""
    lanes = 1
    if length > MOST_ITEMS and (writes or rows < THREADS_OF_A_DEVICE // 2):
        lanes = min(power_of_two(-(-length // 32)), 16)
    elif length > MOST_ITEMS:
        # Several threads a row where that leaves fewer multiprocessors idle at the end.
        lanes = min((1, 2, 4), key=lambda each: _idle(-(-rows * each // 256)) + each / 100)
    items = min(-(-length // lanes), MOST_ITEMS if lanes == 1 else 32) if writes else min(length, 16)
    items = -(-items // 8) * 8 if items > 8 else items
    columns = max(256 // lanes, 32) if writes or rows > THREADS_OF_A_DEVICE else 32
    most = -(-length // (lanes * items))
    parts = min(THREADS_OF_A_DEVICE // (rows * lanes), most) if rows * lanes * 4 < THREADS_OF_A_DEVICE else 1
    return Geometry(lanes, columns, 1, items, power_of_two(parts + 1) // 2 if parts > 1 else 1)


SLOTS = MULTIPROCESSORS * RESIDENT_THREADS // 256
"""Blocks of 256 threads that run at a time."""


def _idle(blocks: int) -> float:
    """The share of time in which places for blocks are empty, if all take equally long."""
    return 1 - blocks / (-(-blocks // SLOTS) * SLOTS)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least a number."""
    return 1 << max(number - 1, 0).bit_length()


def run_of(space: Space) -> tuple[tuple[sympy.Expr, ...], tuple[sympy.Expr, ...]]:
    """The extents of a row's reduced axes: those of its segments, and those within a contiguous one."""
    if space.strided:
        return (), tuple(e for e, gone in zip(space.extents, space.reduced, strict=True) if gone)
    start = _tail(space.reduced)
    return tuple(
        e for e, gone in zip(space.extents[:start], space.reduced[:start], strict=True) if gone
    ), space.extents[start:]


def _tail(reduced: Sequence[bool]) -> int:
    start = len(reduced)
    while start and reduced[start - 1]:
        start -= 1
    return start


def macros(schedule: Schedule, words: Sequence[str], geometry: Geometry) -> dict[str, str]:
    """Define macros; returns what each is called."""
    values = {
        "THREADS": geometry.lanes,
        "LANES": geometry.lanes,
        "ROWS": geometry.rows,
        "COLUMNS": geometry.rows,
        "VECTOR": geometry.vector,
        "ITEMS": geometry.items,
        "PARTS": geometry.parts,
        "RESIDENT": max(RESIDENT_THREADS // (geometry.lanes * geometry.rows), 1),
    }
    names = {word: schedule.macro(word, values[word]) for word in (*words, "RESIDENT")}
    block = [names[word] for word in ("THREADS", "LANES", "ROWS", "COLUMNS") if word in names]
    threads = " * ".join(block)
    schedule.require(f"{threads} <= 1024")
    schedule.require(f"{names['RESIDENT']} >= 1 && {names['RESIDENT']} <= 32")
    schedule.require(f"{names['ITEMS']} >= 1 && {names['ITEMS']} <= {MOST_ITEMS}")
    if "THREADS" in names:
        schedule.require(f"1024 % {names['THREADS']} == 0")
        schedule.require(f"{names['VECTOR']} >= 1 && {names['VECTOR']} <= 16 && 16 % {names['VECTOR']} == 0")
    return names


def _steps(group: RowGroup, schedule: Schedule, *, merged: bool, parts: str) -> Iterator[Step]:
    """The reductions in passes: each needs only those before it, except for pairs where `merged`."""
    levels: dict[Node, int] = {}
    for node in group.reductions:
        levels[node] = 1 + max((levels[each] for each in levels if _depends(node, each)), default=-1)
    ranks = [[n for n in levels if levels[n] == rank] for rank in range(max(levels.values()) + 1)]
    while ranks:
        now, after = ranks[0], ranks[1] if len(ranks) > 1 else []
        pairs = {second: next((f for f in now if pair(f, second)), None) for second in after}
        if not merged or not after or None in pairs.values() or len(set(pairs.values())) < len(after):
            chosen: list[tuple[Node, ...]] = [(node,) for node in now]
            ranks = ranks[1:]
        else:
            seconds = {first: second for second, first in pairs.items()}
            chosen = [(node, seconds[node]) if node in seconds else (node,) for node in now]
            ranks = ranks[2:]
        taken: set[str] = set()
        large = schedule.estimate(run_of(group.space)[1]) >= LARGE
        made = tuple(_part(nodes, taken, "long long" if large else "int") for nodes in chosen)
        step = Step(schedule.fresh("".join(_title(n) for nodes in chosen for n in nodes)), made)
        if parts:
            words = sum(2 if m.kind in {"double", "long long"} else 1 for m in step.members)
            if any(m.kind in {"double", "long long"} for m in step.members):
                words += words % 2
            extents = (*group.space.rows, sympy.Symbol(parts), sympy.Integer(words))
            buffer = Place(schedule.fresh(f"{made[0].nodes[0].name}_parts"), torch.int32, extents)
            schedule.add_scratch(buffer)
            step = Step(step.struct, made, buffer)
        yield step


def _title(node: Node) -> str:
    return base_name(node).capitalize()


def _part(nodes: tuple[Node, ...], taken: set[str], place_type: str) -> Part:
    kind = pair(*nodes) if len(nodes) > 1 else ""

    def member(node: Node, name: str = "", start: str = "") -> Member:
        name = found = name or base_name(node)
        number = 1
        while found in taken:
            number += 1
            found = f"{name}{number}"
        taken.add(found)
        type_ = computed_type(accumulated(node))
        return Member("int" if type_ == "bool" else type_, found, start or start_of(node))

    if base_name(nodes[0]) in PLACES:
        (node,) = nodes
        dtype = numbers(tensors(node)[0])
        ends = lowest(dtype) if base_name(node) == "argmax" else highest(dtype)
        return Part(
            nodes,
            "place",
            (Member(computed_type(dtype), "best", literal(ends, dtype)), Member(place_type, "place", "-1")),
        )
    members = [member(node, "squares" if kind == "moments" and node is nodes[1] else "") for node in nodes]
    if kind == "moments":
        members.append(member(nodes[0], "count", "0.0f"))
    return Part(nodes, kind, tuple(members))


def _depends(node: Node, on: Node) -> bool:
    waiting, seen = tensors(node), set()
    while waiting:
        each = waiting.pop()
        if each is on:
            return True
        if each not in seen:
            seen.add(each)
            waiting += tensors(each)
    return False


_Elements = Callable[[], contextlib.AbstractContextManager[Index]]
"""A loop over the elements of a tile, which gives the index of each."""


def _better(node: Node, value: str, state: str, place: str = "") -> str:
    """Whether an element comes before what a state of `best` and `place` has; NaN comes first.

    Of equal ones that with the lower `place` does, or without one the state.
    """
    sign, best = ">" if "argmax" in base_name(node) else "<", f"{state}best"
    if not place:
        return f"({state}place < 0 || {value} {sign} {best} || ({value} != {value} && {best} == {best}))"
    before = f"{place} < {state}place"
    return (
        f"({state}place < 0 || {value} {sign} {best} || ({value} == {best} && {before}) || "
        f"({value} != {value} && ({best} == {best} || {before})))"
    )


Work = Callable[[Body, Index], None]
"""Writes what is done with the element of the space at an index."""


class RowWriter:
    """One kernel while it is written."""

    def __init__(
        self,
        group: Rows,
        schedule: Schedule,
        place: Place,
        names: Mapping[str, str],
        *,
        index_type: str,
        several: bool,
    ) -> None:
        self._group, self._schedule, self._place, self._names = group, schedule, place, names
        self._strided, self._several = group.space.strided, several
        self._split = "PARTS" in names
        self.body = schedule.body(place, index_type, depth=1)
        self._index_type = index_type
        large = schedule.estimate(run_of(group.space)[1]) >= LARGE
        self._inner = "long long" if large and index_type == "long long" else "int"
        self._k, self._j, self._v, self._unit, self._segment = map(
            self.body.fresh, ("k", "j", "v", "tile", "segment")
        )
        self._row = self.body.fresh("row")
        self._lane = "threadIdx.y" if self._strided else "threadIdx.x"
        self._lanes = names["LANES" if self._strided else "THREADS"]
        self._rows = names.get("COLUMNS") or names.get("ROWS", "1")
        self._once = f"if ({self._lane} == 0{'' if self._rows == '1' else f' && mine == {self._row}'}) {{"
        self._reductions = [node for node in group.nodes if reduces(node)]
        self._held: dict[tuple[Node, Index], str] = {}
        self._around = ("", "")
        self._before_element = ""
        self._parted = self._reverse = False
        self._passes = 0

    # The kernel

    def kernel(
        self, name: str, steps: Sequence[Step], first: int, end: int, *, last: bool
    ) -> tuple[str, str]:
        """A kernel that begins with the stored parts of the steps before `first` and computes those up to `end`."""

        group, body, schedule = self._group, self.body, self._schedule
        node = group.nodes[-1]
        over_rows = not same(product(body.extents(node)), product(group.space.extents))
        self._parted = self._split and not (last and over_rows)
        self._find_row()
        for step in steps[:first]:
            self._know(step, self._combined_parts(step))
        works: list[Work] = [self._reduction(step) for step in steps[first:end]]
        output = None if over_rows or not last else self._output(node)
        self._hold([*works, *([output] if output else [])], steps[first:end])
        for step in steps[first:end]:
            state = self._reduce(step)
            if self._split:
                self._store_part(step, state)
            else:
                self._know(step, state)
        if last:
            if over_rows:
                with body.block(self._once):
                    index = row_index(body, group.space, self._at(), node)
                    body.store(
                        self._place,
                        index,
                        converted(body.read(node, index), numbers(node), self._place.dtype),
                    )
            else:
                self._write(node)
        target = self._place if last else steps[first].buffer
        assert target is not None  # noqa: S101 - a split step has one
        about = schedule.described(node if last else steps[first].parts[-1].nodes[-1])
        return self.written(name, about, target, [s.buffer for s in steps[:first] if s.buffer])

    def written(self, name: str, about: str, target: Place, buffers: Sequence[Place] = ()) -> tuple[str, str]:
        """The text of the function, and its launch."""
        names, schedule, space = self._names, self._schedule, self._group.space
        reads = (*self.body.reads.values(), *buffers)
        threads = f"{self._rows} * {self._lanes}" if self._rows != "1" else self._lanes
        bounds = f"__launch_bounds__({threads}, {names['RESIDENT']}) "
        made = Function(name, about, self.body.text(), reads, target, bounds)
        blocks = count_in_plan(space.rows)
        if self._rows != "1":
            blocks = f"ceil_div({blocks}, {self._rows})"
        if self._parted:
            segments, run = run_of(self._group.space)
            vector = f" + {names['VECTOR']} - 1" if not self._strided else ""
            tiles = f"ceil_div({count_in_plan(run)}{vector}, {self._tile[1:-1]})"
            tiles = f"{tiles} * {count_in_plan(segments)}" if segments else tiles
            parts = f"min({names['PARTS']}, {tiles})"
            blocks = f"{blocks} * {parts}" if blocks != "1" else parts
        axes = [self._rows, self._lanes] if self._strided else [self._lanes, self._rows]
        block = '", "'.join(axes[: 1 if axes[-1] == "1" else 2])
        return schedule.function(made), schedule.launch(made, blocks, block)

    def _find_row(self) -> None:
        """The row of this thread; threads beyond the last row repeat it without storing anything."""
        body, kind = self.body, self._index_type
        self._count_tiles()
        block = f"({kind})blockIdx.x"
        if self._parted:
            body.line("const int part = blockIdx.x % parts;")
            block = f"({kind})(blockIdx.x / parts)"
        if self._rows == "1":
            body.line(f"const {kind} {self._row} = {block};")
        else:
            other = "threadIdx.x" if self._strided else "threadIdx.y"
            body.line(f"const {kind} mine = {block} * {self._rows} + {other};")
            body.line(
                f"const {kind} {self._row} = min(mine, ({kind}){count_in_cpp(self._group.space.rows)} - 1);"
            )
        space = self._group.space
        row = iter(body.unflat(self._row, space.rows) if space.rows else ())
        self._kept = tuple("" if gone else next(row) for gone in space.reduced)

    @property
    def _tile(self) -> str:
        """Elements of a tile."""
        vector = [] if self._strided else [self._names["VECTOR"]]
        return f"({' * '.join([self._lanes, self._names['ITEMS'], *vector])})"

    def _count_tiles(self) -> None:
        body, kind, tile, vector = self.body, self._inner, self._tile, self._names.get("VECTOR", "")
        segments, run = run_of(self._group.space)
        count = count_in_cpp(run)
        body.line(f"const {kind} length = {count if kind == 'int' else f'({kind}){count}'};")
        # Vectors begin at multiples of their size in memory, so the first one may begin before the row.
        before = f" + {vector} - 1" if self._split and vector else ""
        before = before or (f" + (length % {vector} ? {vector} - 1 : 0)" if vector else "")
        tiles = f"(length{before} + {tile} - 1) / {tile}"
        if segments:
            body.line(f"const {kind} tiles_of_segment = {tiles};")
            tiles = f"{count_in_cpp(segments)} * tiles_of_segment"
        body.line(f"const {kind} tiles = {tiles};")
        if self._split:
            body.line(f"const int parts = min(({kind}){self._names['PARTS']}, tiles);")

    def _at(self, segment: Index = (), run: Index = ()) -> Index:
        """The index of an element of the row, or of its first one."""
        found, inner = [], iter((*segment, *run))
        for each, gone in zip(self._kept, self._group.space.reduced, strict=True):
            found.append(next(inner, "0") if gone else each)
        return tuple(found)

    # Passes over the row

    def _element(self) -> Index:
        segments, run = run_of(self._group.space)
        segment = self.body.unflat(self._segment, segments) if segments else ()
        return self._at(segment, self.body.unflat(self._k, run))

    def _loads(self, work: Work) -> dict[tuple[Node, Index], str]:
        """What a pass loads for each element, and the offset of an element in a contiguous run, else an empty text."""
        body = self.body
        with body.trial() as loads:
            before = body.names
            index = self._element()
            work(body, index)
            own = {*(body.names - before), self._k}
            found = {}
            for key, offset in loads.items():
                if own.isdisjoint(_words(offset)):
                    continue
                base = "0" if offset == self._k else offset.removesuffix(f" + {self._k}")
                straight = base != offset and own.isdisjoint(_words(base) - {self._segment})
                if straight or self._strided:
                    found[key] = base if straight and not self._strided else ""
        return found

    def _hold(self, works: Sequence[Work], steps: Sequence[Step]) -> None:
        """Keep what several passes load in registers."""
        body = self.body
        if not works:
            return
        counts: dict[tuple[Node, Index], int] = {}
        with body.trial():
            for number, work in enumerate(works):
                for key in self._loads(work):
                    counts[key] = counts.get(key, 0) + 1
                if number < len(steps):
                    for part in steps[number].parts:
                        for node in part.nodes:
                            body.know(node, row_index(body, self._group.space, self._at(), node), "known")
        for key, count in counts.items():
            if count > 1:
                self._held[key] = self._array(key[0])

    def _array(self, node: Node) -> str:
        place = self._schedule.places[node]
        name = self.body.fresh(f"{self._schedule.parameter(place.name)}_tile")
        vector = "" if self._strided else f"[{self._names['VECTOR']}]"
        self.body.line(f"{stored_type(place.dtype)} {name}[{self._names['ITEMS']}]{vector};")
        return name

    @contextlib.contextmanager
    def _tiles(self, work: Work) -> Iterator[_Elements]:
        """A loop over the tiles of the row, with a tile's values in registers; gives the loop over its elements."""
        body, kind, names = self.body, self._inner, self._names
        segments, _ = run_of(self._group.space)
        loads = self._loads(work)
        tile = self._tile
        unit, backwards = self._unit, self._passes % 2
        if self._parted:
            head = f"for ({kind} {unit} = part; {unit} < tiles; {unit} += parts) {{"
        elif backwards:
            head = f"for ({kind} {unit} = tiles - 1; {unit} >= 0; --{unit}) {{"
        else:
            head = f"for ({kind} {unit} = 0; {unit} < tiles; ++{unit}) {{"
        reload = (
            "" if not self._passes else f"if ({unit} < tiles - 1) {{" if backwards else f"if ({unit} > 0) {{"
        )
        self._passes += 1
        with body.block(head):
            number = unit
            if segments:
                body.line(f"const {kind} {self._segment} = {unit} / tiles_of_segment;")
                number = f"({unit} % tiles_of_segment)"
            if self._strided:
                body.line(f"const {kind} first = {number} * {tile} + ({kind}){self._lane};")
            else:
                base = self._base()
                shift = f" - ({kind})({base} % {names['VECTOR']})" if base != "0" else ""
                body.line(
                    f"const {kind} first = {number} * {tile} + ({kind})threadIdx.x * {names['VECTOR']}{shift};"
                )
            arrays = {key: self._held.get(key) or self._array(key[0]) for key in loads}
            held = [key for key in loads if key in self._held]
            self._load({key: loads[key] for key in loads if key not in held}, arrays)
            if held:
                with body.block(reload) if reload else contextlib.nullcontext():
                    self._load({key: loads[key] for key in held}, arrays)
            yield lambda: self._elements(arrays)

    def _base(self) -> str:
        body = self.body
        with body.trial():
            offset = body.flat(self._element(), self._group.space.extents)
        return "0" if offset == self._k else f"({offset.removesuffix(f' + {self._k}')})"

    def _load(self, loads: dict[tuple[Node, Index], str], arrays: dict[tuple[Node, Index], str]) -> None:
        """Load a tile."""
        body, j = self.body, self._j
        if not loads:
            return
        body.line("#pragma unroll")
        with body.block(f"for (int {j} = 0; {j} < {self._names['ITEMS']}; ++{j}) {{"):
            if self._strided:
                self._line_of_k()
                with body.block(f"if ({self._k} < length) {{"):
                    self._element()
                    for node, index in loads:
                        place = self._schedule.places[node]
                        body.reads[place.name] = place
                        name = self._schedule.parameter(place.name)
                        body.line(f"{arrays[node, index]}[{j}] = {name}[{body.flat(index, place.extents)}];")
                return
            for (node, index), base in loads.items():
                place = self._schedule.places[node]
                body.reads[place.name] = place
                name = self._schedule.parameter(place.name)
                run = name if base == "0" else f"{name} + {base}"
                step = f"{j} * ({self._lanes} * {self._names['VECTOR']})"
                body.line(f"load({arrays[node, index]}[{j}], {run}, first + {step}, length);")

    def _line_of_k(self) -> None:
        item = f"({self._names['ITEMS']} - 1 - {self._j})" if self._reverse else self._j
        self.body.line(f"const {self._inner} {self._k} = first + {item} * {self._lanes};")

    @contextlib.contextmanager
    def _elements(self, arrays: Mapping[tuple[Node, Index], str]) -> Iterator[Index]:
        """A loop over the elements of a tile that this thread has."""
        body, kind, j, v, k = self.body, self._inner, self._j, self._v, self._k
        with contextlib.ExitStack() as blocks:
            body.line("#pragma unroll")
            blocks.enter_context(body.block(f"for (int {j} = 0; {j} < {self._names['ITEMS']}; ++{j}) {{"))
            if self._strided:
                self._line_of_k()
                blocks.enter_context(body.block(f"if ({k} < length) {{"))
                at = f"[{j}]"
            else:
                vector = self._names["VECTOR"]
                self._line(self._around[0])
                body.line("#pragma unroll")
                inner = blocks.enter_context(contextlib.ExitStack())
                inner.enter_context(body.block(f"for (int {v} = 0; {v} < {vector}; ++{v}) {{"))
                body.line(f"const {kind} {k} = first + {j} * ({self._lanes} * {vector}) + {v};")
                self._line(self._before_element)
                inner.enter_context(body.block(f"if ({k} >= 0 && {k} < length) {{"))
                at = f"[{j}][{v}]"
            index = self._element()
            for key, array in arrays.items():
                node, where = key
                body.know(node, where, loaded(self._schedule.places[node].dtype, f"{array}{at}"))
            yield index
            if not self._strided:
                inner.close()
                self._line(self._around[1])

    # Reductions

    def _reduction(self, step: Step) -> Work:
        """Adds an element to a state, for finding out what it loads."""

        def work(body: Body, index: Index) -> None:
            for part in step.parts:
                for node in part.nodes:
                    self._add(body, index, node, "state.best")
                    body.know(node, row_index(body, self._group.space, self._at(), node), "known")

        return work

    def _add(self, body: Body, index: Index, node: Node, found: str) -> None:
        source = tensors(node)[0]
        value = body.read(source, element_index(body, self._group.space, index, source))
        if base_name(node) in PLACES:
            value = body.let(node_type(source), "value", value)
            state = found.removesuffix("best")
            backwards = self._passes % 2 == 0
            with body.block(f"if {_better(node, value, state, self._k if backwards else '')} {{"):
                body.line(f"{state}best = {value};")
                body.line(f"{state}place = {self._k};")
            return
        combine(body, node, found, converted(value, numbers(source), accumulated(node)))

    def _reduce(self, step: Step) -> str:
        """One pass over the row, of which several tiles are reduced one by one and merged. Returns the state."""
        body = self.body
        state = target = body.fresh("of_row")
        body.line(f"{step.struct} {state} = {step.starts};")
        with self._tiles(self._reduction(step)) as elements:
            if self._several:
                target = "of_tile"
                body.line(f"{step.struct} {target} = {step.starts};")
            with elements() as index:
                for part in step.parts:
                    names = [f"{target}.{member.name}" for member in part.members]
                    self._add(body, index, part.nodes[0], names[0])
                    if part.kind == "moments":
                        body.line(f"{names[2]} += 1.0f;")
            self._add_seconds([part for part in step.parts if len(part.nodes) > 1], target, elements)
            if self._several:
                body.line(f"merge({state}, {target});")
        self._across(state)
        return state

    def _add_seconds(self, pairs: Sequence[Part], target: str, elements: _Elements) -> None:
        """The second reductions of pairs, with what the first ones are in this thread's part of a tile."""
        if not pairs:
            return
        body = self.body
        names = {part: [f"{target}.{member.name}" for member in part.members] for part in pairs}
        for part in pairs:
            if part.kind == "moments":
                body.line(f"{names[part][0]} /= fmaxf({names[part][2]}, 1.0f);")
        with elements() as index:
            for part in pairs:
                first, second = part.nodes
                body.know(first, row_index(body, self._group.space, self._at(), first), names[part][0])
                self._add(body, index, second, names[part][1])
        for part in pairs:
            if part.kind == "softmax":
                top, total = names[part]
                body.line(f"{total} = {top} == -CUDART_INF_F ? 0.0f : {total};")

    def _across(self, state: str) -> None:
        """Merge the states of all threads of a row."""
        if self._strided:
            self.body.line(f"across_lanes<{self._rows}, {self._lanes}>({state});")
        else:
            self.body.line(f"across<{self._lanes}, {self._rows}>({state});")

    def _store_part(self, step: Step, state: str) -> None:
        assert step.buffer is not None  # noqa: S101 - a split step has one
        body, parts = self.body, self._names["PARTS"]
        name = self._schedule.parameter(step.buffer.name)
        with body.block(self._once):
            body.line(f"reinterpret_cast<{step.struct}*>({name})[{self._row} * {parts} + part] = {state};")

    def _combined_parts(self, step: Step) -> str:
        assert step.buffer is not None  # noqa: S101 - a split step has one
        body, parts = self.body, self._names["PARTS"]
        name = self._schedule.parameter(step.buffer.name)
        state = body.fresh("of_row")
        body.line(f"{step.struct} {state} = {step.starts};")
        with body.block(f"for (int p = {self._lane}; p < parts; p += {self._lanes}) {{"):
            body.line(
                f"merge({state}, reinterpret_cast<const {step.struct}*>({name})[{self._row} * {parts} + p]);"
            )
        self._across(state)
        return state

    def _know(self, step: Step, state: str) -> None:
        """Name the results of a step, and what follows from them for the row."""
        body, space = self.body, self._group.space
        for part in step.parts:
            for number, (node, member) in enumerate(zip(part.nodes, part.members, strict=False)):
                value = f"{state}.{'place' if part.kind == 'place' else member.name}"
                if part.kind == "softmax" and number == 1:
                    top = f"{state}.{part.members[0].name}"
                    exact = "CUDART_NAN_F" if _is_exact(part) else "0.0f"
                    value = f"{top} == -CUDART_INF_F ? {exact} : {value}"
                elif part.kind != "place" and not (part.kind == "moments" and number == 0):
                    value = finished(body, node, value)
                name = body.let(node_type(node), node.name, value)
                body.know(node, row_index(body, space, self._at(), node), name)
        done = {node for node in self._reductions if self._is_known(node)}
        for node in self._row_nodes():
            if {each for each in self._reductions if _depends(node, each)} <= done:
                body.read(node, row_index(body, space, self._at(), node))

    def _is_known(self, node: Node) -> bool:
        body = self.body
        return body.knows(node, row_index(body, self._group.space, self._at(), node))

    def _row_nodes(self) -> list[Node]:
        """Element-wise nodes with an element for each row that depend on reductions, in order."""
        group, body = self._group, self.body
        rows = product(group.space.rows)
        seen: set[Node] = set()
        waiting = list(group.nodes)
        while waiting:
            node = waiting.pop()
            if node not in seen and node.op == "call_function" and node not in self._schedule.places:
                seen.add(node)
                waiting += tensors(node)
        return [
            node
            for node in group.nodes[-1].graph.nodes
            if node in seen
            and is_tensor(node)
            and rule_of(node).kind is Kind.ELEMENT
            and same(product(body.extents(node)), rows)
            and any(_depends(node, each) for each in self._reductions)
        ]

    # The result

    def _output(self, node: Node) -> Work:
        def work(body: Body, index: Index) -> None:
            at = element_index(body, self._group.space, index, node)
            body.line(f"value = {body.read(node, at)};")

        return work

    def _write(self, node: Node) -> None:
        """A pass that stores the last node."""
        body, place, names = self.body, self._place, self._names
        name = self._schedule.parameter(place.name)
        with body.trial():
            before = body.names
            at = element_index(body, self._group.space, self._element(), node)
            offset = body.flat(at, place.extents)
            own = {*(body.names - before), self._k}
        base = "0" if offset == self._k else offset.removesuffix(f" + {self._k}")
        straight = not self._strided and base != offset and own.isdisjoint(_words(base) - {self._segment})
        results = body.fresh(f"{name}_values")
        if straight:
            run = name if base == "0" else f"{name} + {base}"
            step = f"{self._j} * ({self._lanes} * {names['VECTOR']})"
            end = "length" if self._rows == "1" else f"mine == {self._row} ? length : 0"
            self._around = (
                f"{stored_type(place.dtype)} {results}[{names['VECTOR']}];",
                f"store({run}, {results}, first + {step}, {end});",
            )
            body.writes[place.name] = place
        with self._tiles(self._output(node)) as elements, elements() as index:
            at = element_index(body, self._group.space, index, node)
            value = converted(body.read(node, at), numbers(node), place.dtype)
            if straight:
                body.line(f"{results}[{self._v}] = {stored(place.dtype, value)};")
            else:
                with (
                    body.block(f"if (mine == {self._row}) {{")
                    if self._rows != "1"
                    else contextlib.nullcontext()
                ):
                    body.store(place, at, value)

    def _line(self, text: str) -> None:
        if text:
            self.body.line(text)


def _is_exact(part: Part) -> bool:
    """Whether a sum of exponentials is NaN where the maximum is infinite, as exp(inf - inf)."""
    term = tensors(part.nodes[1])[0]
    seen, waiting = set[Node](), [term]
    while waiting:
        node = waiting.pop()
        if node is part.nodes[0] or node in seen or node.op != "call_function":
            continue
        seen.add(node)
        waiting += tensors(node)
    return not any(base_name(node) == "where" and _depends(node, part.nodes[0]) for node in seen)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))
