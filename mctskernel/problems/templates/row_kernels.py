"""The kernels of a group of rows.

Reductions of few long rows are split over blocks, which store their parts for a second kernel.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Body, Index, Place, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import converted, loaded, stored, stored_type
from mctskernel.problems.plain_cuda.extents import count_in_cpp, count_in_plan, product, same
from mctskernel.problems.plain_cuda.reductions import finished
from mctskernel.problems.plain_cuda.rules import Kind, behind, is_tensor, operator_name, rule_of
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.templates.row_geometry import (
    MOST_ITEMS,
    Geometry,
    geometry_of,
    lines_in_ring,
    macros,
    neighbours_of,
    ring_of,
)
from mctskernel.problems.templates.row_loops import Elements, RowLoops, Work, words_of
from mctskernel.problems.templates.row_space import Reductions, element_index, lines_of, row_index, run_of
from mctskernel.problems.templates.row_steps import (
    Part,
    Step,
    add,
    depends_on,
    is_exact,
    steps_of,
    with_parts,
)

MANY_PARTS = 1 << 20
"""So many blocks that each has one tile of a row."""


class RowWriter(RowLoops):
    """One kernel of a group of rows."""

    _group: Reductions
    _tests_tiles = True
    _beside: tuple[Place, ...] = ()

    def whole(self, name: str, steps: Sequence[Step]) -> tuple[str, str]:
        """A kernel that computes all steps and stores the last node."""
        self._parted = self._split and not self._over_rows
        self._find_row()
        works: list[Work] = [self._reduction(step) for step in steps]
        for work in (*works, *([] if steps else [self._output(self._last)])):
            self._hoist(work)
        self._hold([*works, *([] if self._over_rows else [self._output(self._last)])], steps)
        for step in steps:
            self._know(step, self._reduce(step))
        return self._stored(name)

    def parts(self, name: str, before: Sequence[Step], step: Step) -> tuple[str, str]:
        """A kernel that stores the parts of a step, with merged states of the steps before."""
        assert step.buffer is not None  # noqa: S101 - a split step has one
        self._parted, self._from_end = True, len(before) % 2 > 0
        self._find_row()
        for each in before:
            self._know(each, self._merged_part(each))
        state = self._reduce(step)
        with self.body.block(self._once):
            self.body.line(f"{self._part(step, 'part')} = {state};")
        about = self._schedule.described(step.parts[-1].nodes[-1])
        return self.written(name, about, step.buffer, [each.buffer for each in before if each.buffer])

    def ring_loads(self, step: Step) -> Mapping[tuple[Node, Index], str]:
        """The tensors that rows can bring to a ring of tiles, and where each row begins in them."""
        with self.body.trial(in_loop=True):
            self._split_row()
            first, last = self._loads_of([self._reduction(step), self._output(self._last)], [step])
        return {key: base for key, base in {**first, **last}.items() if key[0] in self._group.leaves}

    def ring(self, name: str, step: Step, come: Place) -> tuple[str, str]:
        """A kernel in which teams of blocks hold some rows together, and read each once."""
        assert step.buffer is not None  # noqa: S101 - a step of teams has one
        body, names, kind = self.body, self._names, self._index_type
        tile, stages = f"{self._tile}, {names['VECTOR']}", names["STAGES"]
        self._unit, self._lane, self._one_tile = "tile", "lane", True
        self._count_tiles()
        self._ring = self.ring_loads(step)
        runs = {self._schedule.places[node]: self._run(node, base) for (node, _), base in self._ring.items()}
        self._in_ring = list(runs)
        body.reads |= {place.name: place for place in runs}
        pointers = " | ".join(f"(size_t){self._schedule.parameter(place.name)}" for place in runs)
        body.line("extern __shared__ __align__(128) unsigned char ring[];")
        row, at, tile_of = f"{kind} {self._row}", "int tile, int stage", "int lane, bool takes_whole"
        with body.block(f"const auto copy = [&]({row}, {at}, unsigned long long& full) {{", "};"):
            self._split_row()
            self._find_start()
            for place, run in runs.items():
                body.line(f"copy_tile<{tile}>({self._slot(place)}, {run}, start, length, full);")
        with body.block(f"const auto reduce = [&]({row}) {{", "};"):
            self._split_row()
            with body.block(f"return [=]({at}, {tile_of}, {step.struct}& of_row) {{", "};"):
                self._reduce_tiles(step, "of_row")
        with body.block(f"const auto write = [&]({row}, const {step.struct}& of_row) {{", "};"):
            self._split_row()
            self._know(step, "of_row")
            self._hoist(self._output(self._last))
            with body.block(f"return [=]({at}, {tile_of}) {{", "};"):
                self._write(self._last)
        body.line(
            f"pass_rows<{names['THREADS']}, {names['PARTS']}, {stages}>({come.name}, "
            f"reinterpret_cast<unsigned long long*>({step.buffer.name}), "
            f"({kind}){count_in_cpp(self._group.space.rows)}, tiles, ({pointers}) % 16 == 0, "
            f"{step.struct}{step.starts}, copy, reduce, write);"
        )
        size = len(runs) * next(iter(runs)).dtype.itemsize
        shared = f"{stages} * {size} * {self._tile[1:-1]}"
        self._launch = names["BLOCKS"], f"2 * {names['THREADS']} + 96", shared
        about = self._schedule.described(self._last)
        return self.written(name, about, self._place, also=(step.buffer, come))

    def columns(self, name: str, step: Step) -> tuple[str, str]:
        """A kernel whose blocks bring lines of neighbouring rows to a ring."""
        body, names, space, kind = self.body, self._names, self._group.space, self._index_type
        (leaf,), (before, length, width), self._passes = self._group.leaves, lines_of(space), 1
        place, state = self._schedule.places[leaf], f"{step.struct}& of_row"
        body.reads[place.name] = place
        given = f"{state}, {stored_type(place.dtype)} found, {kind} {self._row}, int {self._k}"
        with body.block(f"const auto add = [&]({given}) {{", "};"):
            self._split_row()
            index = self._element()
            body.know(leaf, element_index(body, space, index, leaf), loaded(place.dtype, "found"))
            for part in step.parts:
                self._add(body, index, part.nodes[0], f"of_row.{part.members[0].name}")
        with body.block(f"const auto store = [&]({kind} {self._row}, const {state}) {{", "};"):
            self._split_row()
            self._know(step, "of_row")
            self._store_rows()
        x, size, chunk = self._schedule.parameter(place.name), place.dtype.itemsize, self._tile[1:-1]
        of_block = ", ".join(names[word] for word in ("THREADS", "ITEMS", "STAGES"))
        sizes = f"({kind}){count_in_cpp(before)}, {count_in_cpp(length)}, ({kind}){count_in_cpp(width)}"
        body.line(f"pass_columns<{of_block}>({x}, {sizes}, {step.struct}{step.starts}, add, store);")
        blocks = f"{count_in_plan(before)} * ceil_div({count_in_plan(width)}, {chunk})"
        shared = f"{names['STAGES']} * {size} * ({chunk} + {16 // size})"
        self._launch = blocks, f"{names['THREADS']} + 32", shared
        return self.written(name, self._schedule.described(self._last), self._place, also=self._beside)

    def fits(self, step: Step) -> bool:
        """Whether a kernel that reads rows once can be written with these macros."""
        if self._strided and "VECTOR" not in self._names:
            return all(len(part.nodes) == 1 for part in step.parts)
        loads = self._neighbour_loads(step) if self._strided else self.ring_loads(step)
        return {node for node, _ in loads} == set(self._group.leaves) if self._strided else bool(loads)

    def _neighbour_loads(self, step: Step) -> list[tuple[Node, Index]]:
        """What is read of tensors that are like the space."""
        body = self.body
        with body.trial(in_loop=True):
            self._split_row()
            loads = self._loads_of([self._reduction(step), self._output(self._last)], [step])
            here = body.flat(self._element(), self._group.space.extents)
            found = [key for key in dict.fromkeys(itertools.chain(*loads)) if key[0] in self._group.leaves]
            return [key for key in found if body.flat(key[1], body.extents(key[0])) == here]

    def neighbours(self, name: str, step: Step) -> tuple[str, str]:
        """A kernel whose threads hold vectors of neighbouring rows."""
        body, names, kind, place = self.body, self._names, self._index_type, self._place
        self._passes, (before, length, width) = 1, lines_of(self._group.space)
        loads, self._handed = self._neighbour_loads(step), True
        self._held = {key: f"tiles[{number}]" for number, key in enumerate(loads)}
        leaves = [self._schedule.places[node] for node, _ in loads]
        body.reads |= {leaf.name: leaf for leaf in leaves}
        of_leaf, count = stored_type(leaves[0].dtype), len(leaves)
        given = f"{kind} {self._row}, int first, const {of_leaf} (&tiles)[{count}][{names['ITEMS']}]"
        body.line(f"const int length = {count_in_cpp(length)};")
        with body.block(f"const auto reduce = [&]({given}, {step.struct}& of_row) {{", "};"):
            self._split_row()
            self._reduce_tiles(step, "of_row")
        results = f"{stored_type(place.dtype)} (&results)[{names['ITEMS']}]"
        with body.block(f"const auto write = [&]({given}, const {step.struct}& of_row, {results}) {{", "};"):
            self._split_row()
            self._know(step, "of_row")
            self._hoist(self._output(self._last))
            with self._tiles(self._output(self._last)) as elements, elements() as index:
                at = element_index(body, self._group.space, index, self._last)
                value = converted(body.read(self._last, at), numbers(self._last), place.dtype)
                body.line(f"results[{self._j}] = {stored(place.dtype, value)};")
        pointers = ", ".join(self._schedule.parameter(leaf.name) for leaf in leaves)
        body.line(f"const {of_leaf}* const leaves[] = {{{pointers}}};")
        of_block = ", ".join(names[word] for word in ("COLUMNS", "LANES", "ITEMS", "VECTOR"))
        body.line(
            f"pass_neighbours<{of_block}>(leaves, {self._schedule.parameter(place.name)}, length, "
            f"({kind}){count_in_cpp(width)}, {step.struct}{step.starts}, reduce, write);"
        )
        body.writes[place.name] = place
        chunk = f"({names['COLUMNS']} * {names['VECTOR']})"
        blocks = f"{count_in_plan(before)} * ceil_div({count_in_plan(width)}, {chunk})"
        self._launch = blocks, f"{names['COLUMNS']} * {names['LANES']}", ""
        return self.written(name, self._schedule.described(self._last), place)

    def merged(self, name: str, step: Step) -> tuple[str, str]:
        """A kernel that merges the parts of a step into the first one."""
        assert step.buffer is not None  # noqa: S101 - a split step has one
        self._find_row()
        state = self._combined_parts(step)
        self.body.line("__syncthreads();")
        with self.body.block(self._once):
            self.body.line(f"{self._part(step, '0')} = {state};")
        return self.written(name, "what the parts are together", step.buffer)

    def last(self, name: str, steps: Sequence[Step], *, merged: bool) -> tuple[str, str]:
        """A kernel that stores the last node; steps have merged parts, but for the last one unless it is `merged`."""
        # What the pass before read last is still in L2.
        self._parted, self._from_end = merged, merged and len(steps) % 2 > 0
        self._find_row()
        for step in steps:
            part = self._merged_part if merged or step is not steps[-1] else self._combined_parts
            self._know(step, part(step))
        return self._stored(name, [step.buffer for step in steps if step.buffer])

    def _stored(self, name: str, buffers: Sequence[Place] = ()) -> tuple[str, str]:
        """The text of a kernel that stores the last node, which knows all reductions, and its launch."""
        if self._over_rows:
            with self.body.block(self._once):
                self._store_rows()
        else:
            self._write(self._last)
        about = self._schedule.described(self._last)
        return self.written(name, about, self._place, buffers, self._beside)

    def _store_rows(self) -> None:
        """Store what a row leads to."""
        self._beside = tuple(self._schedule.places[each] for each in self._group.beside)
        for each, to in zip((*self._group.beside, self._last), (*self._beside, self._place), strict=True):
            index = row_index(self.body, self._group.space, self._at(), each)
            self.body.store(to, index, converted(self.body.read(each, index), numbers(each), to.dtype))

    @property
    def _over_rows(self) -> bool:
        """Whether the last node has an element for each row."""
        return not same(product(self.body.extents(self._last)), product(self._group.space.extents))

    def _hold(self, works: Sequence[Work], steps: Sequence[Step]) -> None:
        """Keep what several passes load in registers."""
        counts = Counter(key for loads in self._loads_of(works, steps) for key in loads)
        self._held |= {key: self._array(key[0], self._items) for key, count in counts.items() if count > 1}

    def _loads_of(self, works: Sequence[Work], steps: Sequence[Step]) -> list[dict[tuple[Node, Index], str]]:
        """What each pass loads, those after a step with its results known."""
        body, found = self.body, []
        with body.trial(in_loop=True):
            for number, work in enumerate(works):
                found.append(self._loads(work))
                for part in steps[number].parts if number < len(steps) else ():
                    for node in part.nodes:
                        body.know(node, row_index(body, self._group.space, self._at(), node), "known")
        return found

    def _reduction(self, step: Step) -> Work:
        """Adds an element to a state, for finding out what it loads."""

        def work(body: Body, index: Index) -> None:
            for part in step.parts:
                for node in part.nodes:
                    self._add(body, index, node, "state.best")
                    body.know(node, row_index(body, self._group.space, self._at(), node), "known")

        return work

    def _add(self, body: Body, index: Index, node: Node, found: str) -> None:
        add(body, self._group.space, index, node, found, place=self._k, backwards=self._passes % 2 == 0)

    def _reduce(self, step: Step) -> str:
        """One pass over the row, of which several tiles are reduced one by one and merged. Returns the state."""
        body = self.body
        state = body.fresh("of_row")
        body.line(f"{step.struct} {state} = {step.starts};")
        self._reduce_tiles(step, state)
        self._across(state)
        return state

    def _reduce_tiles(self, step: Step, state: str) -> None:
        body, target = self.body, state
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

    def _add_seconds(self, pairs: Sequence[Part], target: str, elements: Elements) -> None:
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

    def _part(self, step: Step, number: str, *, const: str = "") -> str:
        """A part of a step in memory."""
        assert step.buffer is not None  # noqa: S101 - a split step has one
        name, parts = self._schedule.parameter(step.buffer.name), step.count
        return f"reinterpret_cast<{const}{step.struct}*>({name})[{self._row} * {parts} + {number}]"

    def _merged_part(self, step: Step) -> str:
        state = self.body.fresh("of_row")
        self.body.line(f"const {step.struct} {state} = {self._part(step, '0', const='const ')};")
        return state

    def _combined_parts(self, step: Step) -> str:
        body, state = self.body, self.body.fresh("of_row")
        body.line(f"{step.struct} {state} = {step.starts};")
        with body.block(f"for (int p = {self._lane}; p < parts; p += {self._lanes}) {{"):
            body.line(f"merge({state}, {self._part(step, 'p', const='const ')});")
        self._across(state)
        return state

    def _know(self, step: Step, state: str) -> None:
        """Name the results of a step, and what follows from them for the row."""
        body, space = self.body, self._group.space
        for part in step.parts:
            for number, (node, member) in enumerate(zip(part.nodes, part.members, strict=False)):
                value = f"{state}.{member.name}"
                if part.kind == "place":  # the first one of a row that has nothing else than its start
                    value = f"{state}.place < 0 ? 0 : {state}.place"
                elif part.kind == "softmax" and number == 1:
                    top = f"{state}.{part.members[0].name}"
                    exact = "CUDART_NAN_F" if is_exact(part) else "0.0f"
                    value = f"{top} == -CUDART_INF_F ? {exact} : {value}"
                elif not (part.kind == "moments" and number == 0):
                    value = finished(body, node, value)
                name = body.let(node_type(node), node.name, value)
                self._of_rows.append(name)
                body.know(node, row_index(body, space, self._at(), node), name)
        at = self._at()
        done = {each for each in self._reductions if body.knows(each, row_index(body, space, at, each))}
        for node in self._row_nodes():
            if {each for each in self._reductions if depends_on(node, each)} <= done:
                self._of_rows.append(body.read(node, row_index(body, space, self._at(), node)))

    def _row_nodes(self) -> list[Node]:
        """Element-wise nodes with an element for each row that depend on reductions, in order."""
        group, body = self._group, self.body
        rows = product(group.space.rows)
        stored = self._schedule.places
        computed = set(behind(group.nodes, stored.__contains__)).difference(stored)
        return [
            node
            for node in group.nodes[-1].graph.nodes
            if node in computed
            and node.op == "call_function"
            and is_tensor(node)
            and rule_of(node).kind is Kind.ELEMENT
            and same(product(body.extents(node)), rows)
            and any(depends_on(node, each) for each in self._reductions)
        ]

    def _output(self, node: Node) -> Work:
        def work(body: Body, index: Index) -> None:
            at = element_index(body, self._group.space, index, node)
            body.line(f"value = {body.read(node, at)};")

        return work

    def _write(self, node: Node) -> None:
        """A pass that stores the last node."""
        body, place, names = self.body, self._place, self._names
        name = self._schedule.parameter(place.name)
        with body.trial(in_loop=True):
            before = body.names
            at = element_index(body, self._group.space, self._element(), node)
            offset = body.flat(at, place.extents)
            own = {*(body.names - before), self._k}
        base = "0" if offset == self._k else offset.removesuffix(f" + {self._k}")
        straight = not self._strided and base != offset and own.isdisjoint(words_of(base) - {self._segment})
        results = body.fresh(f"{name}_values")
        if straight:
            run = name if base == "0" else f"{name} + {base}"
            step = f"{self._j} * ({self._lanes} * {names['VECTOR']})"
            whole = "!tests" if self._rows == "1" else f"!tests && mine == {self._row}"
            end = "length" if self._rows == "1" else f"mine == {self._row} ? length : 0"
            self._around = (
                f"{stored_type(place.dtype)} {results}[{names['VECTOR']}];",
                f"store({run}, {results}, first + {step}, {end}, {whole});",
            )
            self._aligned = [run]
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


_READ_ONCE: tuple[
    tuple[Callable[[Reductions, Schedule], Geometry | None], Callable[..., tuple[str, str]], str], ...
] = (
    (ring_of, RowWriter.ring, "THREADS VECTOR ITEMS PARTS BLOCKS STAGES"),
    (lines_in_ring, RowWriter.columns, "THREADS ITEMS STAGES RESIDENT"),
    (neighbours_of, RowWriter.neighbours, "COLUMNS LANES VECTOR ITEMS"),
)
"""Kernels that read rows once: sizes where they fit, what writes them, and their macros."""


@dataclass(frozen=True)
class RowGroup(Reductions):
    """Reductions and what belongs to them, as the kernels of rows."""

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The texts of the kernels that fill a buffer with the last node, and their launches."""
        self.store_beside(schedule)
        if written := self._in_one(schedule, place):
            yield written
            return
        geometry = geometry_of(self, schedule)
        split, strided = geometry.parts > 1, self.space.strided
        several = split or schedule.estimate(run_of(self.space)[1]) > geometry.tile
        words = ["COLUMNS", "LANES", "ITEMS"] if strided else ["THREADS", "ROWS", "VECTOR", "ITEMS"]
        if split:
            words = [*(word for word in words if word != "ROWS"), "PARTS"]
        names = macros(schedule, words, geometry)
        steps = list(steps_of(self, schedule, merged=several, parts=names.get("PARTS", "")))
        schedule.include(ROWS)
        for step in steps:
            schedule.define(step.definition())
        if split:
            yield from self._in_parts(schedule, place, names, steps)
        else:
            whole = partial(RowWriter.whole, steps=steps)
            yield self._written(schedule, place, "rows", names, whole, several=several)

    def _in_one(self, schedule: Schedule, place: Place) -> tuple[str, str] | None:
        """One kernel that reads long or neighbouring rows once, or None."""
        for geometry_for, write, words in _READ_ONCE:
            geometry = geometry_for(self, schedule)
            steps = list(steps_of(self, schedule, merged=True, parts="")) if geometry else []
            if not geometry or len(steps) != 1:
                continue
            (step,), names, more = steps, macros(schedule, words.split(), geometry), {}
            if not RowWriter(self, schedule, place, names, index_type="int", several=True).fits(step):
                continue
            schedule.include(ROWS)
            schedule.define(step.definition())
            if parts := names.get("PARTS"):
                step = with_parts(step, schedule, self.space, sympy.Symbol(parts), parts, packets=True)
                more["come"] = Place(schedule.fresh("come"), torch.int32, (sympy.Integer(2),))
                schedule.add_scratch(more["come"], zero=True)
            return self._written(schedule, place, "rows", names, partial(write, step=step, **more))
        return None

    def _in_parts(
        self, schedule: Schedule, place: Place, names: Mapping[str, str], steps: Sequence[Step]
    ) -> Iterator[tuple[str, str]]:
        over_rows, written = not self.is_whole(schedule), partial(self._written, schedule, place)
        for number, step in enumerate(steps):
            yield written("parts", names, partial(RowWriter.parts, before=steps[:number], step=step))
            if not over_rows or number + 1 < len(steps):
                yield written("merged", names, partial(RowWriter.merged, step=step))
        if not over_rows:
            # Many small blocks, which have nothing else to do, write fastest.
            writing = {"ITEMS": 8} if self.space.strided else {"THREADS": 128, "ITEMS": 2, "RESIDENT": 12}
            macros_of = {word: schedule.macro(word, value) for word, value in writing.items()}
            names = {**names, **macros_of, "PARTS": schedule.macro("PARTS", MANY_PARTS)}
            schedule.require(f"{names['ITEMS']} >= 1 && {names['ITEMS']} <= {MOST_ITEMS}")
            if not self.space.strided:
                schedule.require(f"1024 % {names['THREADS']} == 0 && {names['RESIDENT']} <= 32")
        yield written("rows", names, partial(RowWriter.last, steps=steps, merged=not over_rows))

    def of_merged(self, schedule: Schedule, place: Place, step: Step) -> tuple[str, str]:
        """A kernel that stores the last node, which is whole, given the only step's merged states."""
        geometry = replace(geometry_of(self, schedule), lanes=256, items=4, parts=MANY_PARTS)
        names = macros(schedule, ("THREADS", "VECTOR", "ITEMS", "PARTS"), geometry)
        write = partial(RowWriter.last, steps=[step], merged=True)
        return self._written(schedule, place, "rows", names, write)

    def _written(
        self,
        schedule: Schedule,
        place: Place,
        name: str,
        names: Mapping[str, str],
        write: Callable[..., tuple[str, str]],
        *,
        several: bool = True,
    ) -> tuple[str, str]:
        operators = (operator_name(node).split(".")[-1].strip("_") for node in self.nodes[-3:])
        name = schedule.fresh("_".join(dict.fromkeys((*operators, name))))
        counted = [schedule.places[leaf] for leaf in self.leaves]
        made = partial(write, name=name)
        return RowWriter.made(self, schedule, place, names, made, several=several, counted=counted)
