"""Passes over rows: threads share a row, or own neighbouring rows where those are neighbours in memory.

A row is read tile by tile, in vectors where it is contiguous, and the last tile stays in registers for the next pass,
which begins with it; so a row of one tile is read once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Self

import sympy
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Function, Index, Place, node_type
from mctskernel.problems.plain_cuda.element_types import loaded, stored_type
from mctskernel.problems.plain_cuda.extents import count_in_cpp, count_in_plan
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.templates.row_space import Rows, reduces, run_of

LARGE = 1 << 30
"""Longer rows have 64-bit indices."""


Elements = Callable[[], contextlib.AbstractContextManager[Index]]
"""A loop over the elements of a tile, which gives the index of each."""


Work = Callable[[Body, Index], None]
"""Writes what is done with the element of the space at an index."""


class RowLoops:
    """A kernel while it is written: its row, and passes over that."""

    _tests_tiles = False
    """Whether a tile is tested as a whole; only where nothing in it waits for other threads."""

    _consecutive = False
    """Whether elements that a thread has of a strided row follow each other."""

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
        if self._inner == "int":
            self.body.ints.add(self._k)
        if self._strided:
            self.body.apart.add(self._k)
        self._row, self._items = self.body.fresh("row"), f"[{names['ITEMS']}]"
        self._lane = "threadIdx.y" if self._strided else "threadIdx.x"
        self._lanes = names.get("LANES") or names["THREADS"]
        self._rows = names.get("COLUMNS") or names.get("ROWS", "1")
        self._once = f"if ({self._lane} == 0{'' if self._rows == '1' else f' && mine == {self._row}'}) {{"
        self._reductions = [node for node in group.nodes if reduces(node)]
        self._held: dict[tuple[Node, Index], str] = {}
        self._of_rows: list[str] = []
        self._around, self._shift = ("", ""), ""
        self._aligned: list[str] = []
        self._whole = ""
        self._before_element = ""
        self._parted = self._from_end = False
        self._passes = 0
        self._one_tile = False  # whether there is no loop over tiles
        self._handed = False  # whether tiles are in registers where their elements are used
        self._ring: Mapping[tuple[Node, Index], str] = {}
        self._launch: tuple[str, str, str] | None = None  # with a ring: blocks, threads, shared bytes
        self._in_ring: list[Place] = []
        self._last = group.nodes[-1]
        # Tiles start at lines of 128 bytes if several warps read them.
        self._aligned_by = f"({8 if 'STAGES' in names else 1} * {names.get('VECTOR')})"

    @classmethod
    def made(
        cls,
        group: Rows,
        schedule: Schedule,
        place: Place,
        names: Mapping[str, str],
        write: Callable[[Self], tuple[str, str]],
        *,
        several: bool = False,
        counted: Sequence[Place] = (),
    ) -> tuple[str, str]:
        """What `write` writes, with 64-bit indices if it, or what is `counted`, needs them."""
        for index_type in ("int", "long long"):
            writer = cls(group, schedule, place, names, index_type=index_type, several=several)
            found = write(writer)
            if not any(map(schedule.is_large, (*writer.body.used, *counted))):
                break
        return found

    def written(
        self,
        name: str,
        about: str,
        target: Place,
        buffers: Sequence[Place] = (),
        also: tuple[Place, ...] = (),
    ) -> tuple[str, str]:
        """The text of the function, and its launch."""
        names, schedule, space = self._names, self._schedule, self._group.space
        reads = (*self.body.reads.values(), *buffers)
        text = self._quickened(self.body.text())
        threads = f"{self._rows} * {self._lanes}" if self._rows != "1" else self._lanes
        bounds = f"__launch_bounds__({self._launch[1] if self._launch else threads}, {names.get('RESIDENT', '1')}) "
        made = Function(name, about, text, reads, target, bounds, also)
        if self._launch:
            return schedule.function(made), schedule.launch(made, *self._launch)
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

    def _quickened(self, text: str) -> str:
        """A text that divides elements by what a row has once, and approximates exponentials and logarithms."""
        for name in filter(str.isidentifier, self._of_rows):
            if declared := re.search(rf"^( *)float {name} = .*\n", text, re.MULTILINE):
                before, after = text[: declared.end()], text[declared.end() :]
                deeper = rf"^({declared[1]} .*) / {name}\b"
                after, times = re.subn(deeper, rf"\1 / by_{name}", after, flags=re.MULTILINE)
                if times:
                    text = f"{before}{declared[1]}const Divisor by_{name}({name});\n{after}"
        return re.sub(r"\blogf\(", "__logf(", re.sub(r"\bexpf\(", "exponential(", text))

    def _find_row(self) -> None:
        """The row of this thread; threads beyond the last row repeat it without storing anything."""
        body, kind = self.body, self._index_type
        self._count_tiles()
        block = "(gridDim.x - 1 - blockIdx.x)" if self._from_end else "blockIdx.x"
        part, rows = f"{block} % parts", count_in_cpp(self._group.space.rows)
        if self._parted and self._from_end and run_of(self._group.space)[0]:
            # In the order of memory: segments are before rows.
            line = f"{block} / tiles_of_segment"
            ordered = f"{line} / ({rows}) * tiles_of_segment + {block} % tiles_of_segment"
            part = f"parts < tiles ? {part} : {ordered}"
            block = f"(parts < tiles ? {block} / parts : {line} % ({rows}))"
        elif self._parted:
            block = f"({block} / parts)"
        if self._parted:
            body.line(f"const int part = {part};")
        block = f"({kind}){block}"
        if self._rows == "1":
            body.line(f"const {kind} {self._row} = {block};")
        else:
            other = "threadIdx.x" if self._strided else "threadIdx.y"
            body.line(f"const {kind} mine = {block} * {self._rows} + {other};")
            body.line(f"const {kind} {self._row} = min(mine, ({kind}){rows} - 1);")
        self._split_row()

    def _split_row(self) -> None:
        space = self._group.space
        row = iter(self.body.unflat(self._row, space.rows) if space.rows else ())
        self._kept = tuple("" if gone else next(row) for gone in space.reduced)
        if self._strided and self._index_type != "int":  # for `Body.apart`
            self.body.let(self._index_type, "base", self.body.flat(self._at(), space.extents))

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
        before = f" + {vector} - 1" if self._split and vector and "STAGES" not in self._names else ""
        if vector and not before:
            before = f" + (length % {self._aligned_by} ? {self._aligned_by} - 1 : 0)"
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

    def _element(self) -> Index:
        segments, run = run_of(self._group.space)
        segment = self.body.unflat(self._segment, segments) if segments else ()
        return self._at(segment, self.body.unflat(self._k, run))

    def _hoist(self, work: Work) -> None:
        """Load once what a pass loads alike for all of a row, such as what says where that begins elsewhere."""
        body = self.body
        with body.trial(in_loop=True) as loads:
            before = body.names
            work(body, self._element())
            lines, reads = body.lines(), dict(body.reads)
            made = body.names - before
            own = {*made, self._k, self._segment}
            varying = body.depending(own - {line.declares for line in lines})
            from_memory = body.depending((), on_loads=True)
            wanted = words_of(" ".join(loads.values())) & from_memory - varying
        for line in reversed(lines):
            if line.declares in wanted:
                wanted |= words_of(line.value)
        for line in lines:
            if line.declares in wanted:
                body.reads.update(reads)
                body.let(line.text.partition(f" {line.declares} = ")[0], line.declares, line.value)
        forgotten = made - body.names
        for (node, index), offset in loads.items():
            is_known = forgotten.isdisjoint(words_of(" ".join(index)))
            if node not in self._group.nodes and is_known and own.isdisjoint(words_of(offset)):
                body.know(node, index, body.let(node_type(node), node.name, body.read(node, index)))

    def _loads(self, work: Work) -> dict[tuple[Node, Index], str]:
        """What a pass loads for each element, and the offset of an element in a contiguous run, else an empty text."""
        body = self.body
        with body.trial(in_loop=True) as loads:
            before = body.names
            index = self._element()
            before_work = body.names
            work(body, index)
            own = {*(body.names - before), self._k}
            found = {}
            for key, offset in loads.items():
                if own.isdisjoint(words_of(offset)):
                    continue
                if self._strided and not words_of(" ".join(key[1])).isdisjoint(body.names - before_work):
                    continue  # its index is of variables that are forgotten
                base = "0" if offset == self._k else offset.removesuffix(f" + {self._k}")
                straight = base != offset and own.isdisjoint(words_of(base) - {self._segment})
                if straight or self._strided:
                    found[key] = base if straight and not self._strided else ""
        return found

    def _is_shared(self, node: Node) -> bool:
        """Whether caches have what a pass loads of a node: it is no tensor of all rows."""
        leaves = getattr(self._group, "leaves", ())
        return bool(leaves) and node not in leaves and not self._ring

    def _array(self, node: Node, count: str = "") -> str:
        """Registers for what a thread has of a node in a tile, or for one vector of it."""
        place = self._schedule.places[node]
        name = self.body.fresh(f"{self._schedule.parameter(place.name)}_tile")
        kind, vector = stored_type(place.dtype), "" if self._strided else self._names["VECTOR"]
        packed = vector and place.dtype.itemsize == 2
        kind, vector = (
            (f"Packed<{kind}, {vector}>", "") if packed else (kind, f"[{vector}]" if vector else "")
        )
        self.body.line(f"{kind} {name}{count}{vector};")
        return name

    @contextlib.contextmanager
    def _tiles(self, work: Work) -> Iterator[Elements]:
        """A loop over the tiles of the row, with a tile's values in registers; gives the loop over its elements."""
        if self._handed:
            yield lambda: self._elements(self._held)
            return
        body, kind, names = self.body, self._inner, self._names
        loads = self._loads(work)
        unit, backwards = self._unit, self._passes % 2
        head = ""
        if self._one_tile:
            pass
        elif self._parted:
            head = f"for ({kind} {unit} = part; {unit} < tiles; {unit} += parts) {{"
        elif backwards:
            head = f"for ({kind} {unit} = tiles - 1; {unit} >= 0; --{unit}) {{"
        else:
            head = f"for ({kind} {unit} = 0; {unit} < tiles; ++{unit}) {{"
        reload = (
            "" if not self._passes else f"if ({unit} < tiles - 1) {{" if backwards else f"if ({unit} > 0) {{"
        )
        self._passes += 1
        with body.block(head) if head else contextlib.nullcontext():
            if self._strided:
                number = self._find_segment()
                lane = f"{self._lane} * {names['ITEMS']}" if self._consecutive else self._lane
                body.line(f"const {kind} first = {number} * {self._tile} + ({kind}){lane};")
            else:
                self._find_start()
                body.line(f"const {kind} first = start + ({kind}){self._lane} * {names['VECTOR']};")
            with self._guarded(loads):
                late = {key: loads.pop(key) for key in list(loads) if self._is_shared(key[0])}
                arrays = {key: self._held.get(key) or self._array(key[0], self._items) for key in loads}
                held = [key for key in loads if key in self._held]
                self._load({key: loads[key] for key in loads if key not in held}, arrays)
                if held:
                    with body.block(reload) if reload else contextlib.nullcontext():
                        self._load({key: loads[key] for key in held}, arrays)
                yield lambda: self._elements(arrays, {} if self._strided else late)

    def _find_segment(self) -> str:
        """The number of a tile within its segment of the row."""
        if not run_of(self._group.space)[0]:
            return self._unit
        self.body.line(f"const {self._inner} {self._segment} = {self._unit} / tiles_of_segment;")
        return f"({self._unit} % tiles_of_segment)"

    def _find_start(self) -> None:
        """Where a tile starts in its run: vectors begin at multiples of their size in memory."""
        number, base = self._find_segment(), self._base()
        self._shift = " - shift" if base != "0" else ""
        if self._shift:
            self.body.line(f"const {self._inner} shift = {base} % {self._aligned_by};")
        self.body.line(f"const {self._inner} start = {number} * {self._tile}{self._shift};")

    def _slot(self, place: Place) -> str:
        """Where a tile of a tensor is in the ring, and the end of the tensor."""
        kind, number = stored_type(place.dtype), self._in_ring.index(place)
        slot = f"(reinterpret_cast<{kind}*>(ring) + (stage * {len(self._in_ring)} + {number}) * {self._tile})"
        return f"{slot}, {self._schedule.parameter(place.name)} + (long long){count_in_cpp(place.extents)}"

    @contextlib.contextmanager
    def _guarded(self, loads: Mapping[tuple[Node, Index], str]) -> Iterator[None]:
        """What is done with a tile; twice where it pays, once without tests for tiles that need none."""
        if self._strided or not self._tests_tiles:
            yield
            return
        runs = [self._run(node, base) for (node, _), base in loads.items()]
        tests = [f"aligned<{self._names['VECTOR']}>({run}{self._shift})" for run in (*runs, *self._aligned)]
        copied = ["takes_whole"] if self._ring else []
        tests = [*copied, "start >= 0", f"start + {self._tile} <= length", *tests]
        self.body.line(f"const bool whole = {' && '.join(tests)};")
        self._whole = "!tests"
        self.body.line("#pragma unroll")
        with (
            self.body.block("for (int tests = 0; tests < 2; ++tests) {"),
            self.body.block("if (whole == !tests) {"),
        ):
            yield
        self._whole = ""

    def _run(self, node: Node, base: str) -> str:
        name = self._schedule.parameter(self._schedule.places[node].name)
        return name if base == "0" else f"{name} + {base}"

    def _base(self) -> str:
        body = self.body
        with body.trial(in_loop=True):
            offset = body.flat(self._element(), self._group.space.extents)
            declared = body.values
        for name, value in reversed(declared.items()):  # the trial's variables are forgotten
            offset = re.sub(rf"\b{name}\b", f"({value})", offset)
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
            for key, base in loads.items():
                self._load_vector(key, base, f"{arrays[key]}[{j}]")

    def _load_vector(self, key: tuple[Node, Index], base: str, array: str) -> None:
        """Load a vector of a tile."""
        body, place, run = self.body, self._schedule.places[key[0]], self._run(key[0], base)
        body.reads[place.name] = place
        at = f"first + {self._j} * ({self._lanes} * {self._names['VECTOR']})"
        whole = f", {self._whole}" if self._whole else ""
        if key in self._ring:
            body.line(f"take({array}, {self._slot(place)}, {run}, start, {at}, length, takes_whole{whole});")
        else:
            body.line(f"load({array}, {run}, {at}, length{whole});")

    def _line_of_k(self) -> None:
        item = self._j if self._consecutive else f"{self._j} * {self._lanes}"
        self.body.line(f"const {self._inner} {self._k} = first + {item};")

    @contextlib.contextmanager
    def _elements(
        self,
        arrays: Mapping[tuple[Node, Index], str],
        late: Mapping[tuple[Node, Index], str] = MappingProxyType({}),
    ) -> Iterator[Index]:
        """A loop over the elements of a tile that this thread has; vectors of `late` ones are loaded in it."""
        body, kind, j, v, k = self.body, self._inner, self._j, self._v, self._k
        with contextlib.ExitStack() as blocks:
            body.line("#pragma unroll")
            blocks.enter_context(body.block(f"for (int {j} = 0; {j} < {self._names['ITEMS']}; ++{j}) {{"))
            if self._strided:
                self._line_of_k()
                body.line(self._before_element)
                blocks.enter_context(body.block(f"if ({k} < length) {{"))
                at = f"[{j}]"
            else:
                vector = self._names["VECTOR"]
                body.line(self._around[0])
                vectors = {key: self._array(key[0]) for key in late}
                for key, array in vectors.items():
                    self._load_vector(key, late[key], array)
                inner = blocks.enter_context(contextlib.ExitStack())
                at = f"first + {j} * ({self._lanes} * {vector})"
                words = (self._names[word] for word in ("THREADS", "ITEMS", "VECTOR"))
                tile = [sympy.Symbol(word, integer=True, positive=True) for word in words]
                length = self._schedule.estimate(run_of(self._group.space)[1])
                edges = bool(self._whole) and length % self._schedule.estimate(tile) > 0
                if edges:  # few vectors are partly outside of the row
                    body.line(
                        f"const bool inside = {self._whole} || ({at} >= 0 && {at} + {vector} <= length);"
                    )
                    body.line("#pragma unroll")
                    inner.enter_context(body.block("for (int edge = 0; edge < 2; ++edge) {"))
                    inner.enter_context(body.block("if (inside == !edge) {"))
                body.line("#pragma unroll")
                inner.enter_context(body.block(f"for (int {v} = 0; {v} < {vector}; ++{v}) {{"))
                body.line(f"const {kind} {k} = {at} + {v};")
                body.line(self._before_element)
                unsigned = "unsigned" if kind == "int" else f"unsigned {kind}"
                whole = "!edge || " if edges else f"{self._whole} || " if self._whole else ""
                inner.enter_context(body.block(f"if ({whole}({unsigned}){k} < ({unsigned})length) {{"))
                at = f"[{j}][{v}]"
            index = self._element()
            found = {key: f"{array}{at}" for key, array in arrays.items()}
            if late:
                found |= {key: f"{array}[{v}]" for key, array in vectors.items()}
            for key, value in found.items():
                body.know(*key, loaded(self._schedule.places[key[0]].dtype, value))
            yield index
            if not self._strided:
                inner.close()
                body.line(self._around[1])


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))
