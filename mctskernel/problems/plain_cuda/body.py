"""The body of a kernel while it is written: local variables, loops, and the buffers that it reads and writes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.element_types import computed_type, loaded, stored
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, in_cpp, product

Index = tuple[str, ...]
"""The index of an element along each axis, as C++ expressions."""

_WORD = re.compile(r"[A-Za-z_]\w*")
_ATOM = re.compile(r"[A-Za-z_]\w*|\d+|\((?:[^()]|\([^()]*\))*\)")

_INDENT = "    "


@dataclass(eq=False)
class Line:
    """A line of text. `declares` is the local variable that it declares, which is dropped if it is unused."""

    depth: int
    text: str
    declares: str = ""
    value: str = ""
    uses: int = 0


@dataclass(frozen=True)
class Place:
    """A buffer in row-major order: its name in the launch plan, element type and extents."""

    name: str
    dtype: torch.dtype
    extents: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Function:
    """A `__global__` function: its name, a comment, its statements, what it may read, and the buffer that it fills.

    It may write to `also` as well. `given` are further parameters and their arguments in the plan. `qualifiers` are
    those before its name, such as launch bounds; with any, its pointers are `__restrict__`.
    """

    name: str
    about: str
    text: str
    reads: tuple[Place, ...]
    place: Place
    qualifiers: str = ""
    also: tuple[Place, ...] = ()
    given: tuple[tuple[str, str], ...] = ()

    @property
    def written(self) -> tuple[Place, ...]:
        return (*self.also, self.place)


ROWS = "rows.cuh"
"""The header of functions that kernels of rows call."""

Given = Callable[["Body", Index], str]
"""The element of a node at an index, as a C++ expression."""


class Body:
    """The code of a thread. Values are C++ expressions of computation types.

    Nodes in `places` are in memory, and `given` ones come from elsewhere in the kernel; others are computed where they
    are read, by `compute(body, node, index)`.
    """

    def __init__(
        self,
        *,
        places: Mapping[Node, Place],
        compute: Callable[[Body, Node, Index], str],
        expression: Callable[[Any], sympy.Expr],
        parameter: Callable[[str], str],
        index_type: str,
        taken: set[str],
        target: Place,
        given: Mapping[Node, Given] | None = None,
        depth: int = 2,
        include: Callable[[str], None] | None = None,
    ) -> None:
        """`include` has a header included, where there may be any; `depth` is that of the first line."""
        self.target = target
        self._include = include
        self._loops = 0
        self.ints: set[str] = set()
        """Variables that are 32-bit integers whatever the type of indices."""

        self.apart: set[str] = set()
        """Variables of loops over an axis other than the last."""

        self.loads: dict[tuple[Any, Index], str] = {}
        self._given = given or {}
        self._loads_from = depth
        self.expression = expression
        self.index_type = index_type
        self.reads: dict[str, Place] = {}
        self.writes: dict[str, Place] = {}
        self._places = places
        self._compute = compute
        self.parameter = parameter
        self._taken = set(taken)
        self.thread = self.fresh("i")
        self._lines: list[Line] = []
        self._depth = depth
        self._known: list[dict[Any, Any]] = [{}]

    # Places

    @property
    def values(self) -> dict[str, str]:
        """The local variables so far, and what they were declared as."""
        return {line.declares: line.value for line in self._lines if line.declares}

    def place_of(self, node: Node) -> Place | None:
        """The buffer of a node that is in memory."""
        return self._places.get(node)

    def extents(self, node: Node) -> tuple[sympy.Expr, ...]:
        return tuple(self.expression(size) for size in node.meta["val"].shape)

    @property
    def used(self) -> tuple[Place, ...]:
        """The buffers that are read and written."""
        return (*self.reads.values(), *self.writes.values())

    def read(self, node: Any, index: Sequence[str]) -> str:
        """An element of a node's tensor; computed once per scope."""
        index = tuple(index)
        key = ("read", node, index)
        known: str | None = self._find(key)
        if known is None:
            place = self._places.get(node)
            if node in self._given:
                known = self._given[node](self, index)
            elif place is not None:
                if self._depth <= self._loads_from:
                    self.loads[node, index] = self.flat(index, place.extents)
                known = self.load(place, index)
            else:
                known = self._compute(self, node, index)
            self._known[-1][key] = known
        return known

    def know(self, node: Any, index: Sequence[str], value: str) -> None:
        """Say what an element of a node is, within this scope."""
        self._known[-1]["read", node, tuple(index)] = value

    def knows(self, node: Any, index: Sequence[str]) -> bool:
        """Whether an element of a node was read or said before, within this scope or around it."""
        return self._find(("read", node, tuple(index))) is not None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._taken)

    @contextlib.contextmanager
    def trial(self, *, in_loop: bool = False) -> Iterator[dict[tuple[Any, Index], str]]:
        """Write code that is forgotten; gives the offsets of what it loads from memory, by node and index.

        `in_loop` has it written as within a loop.
        Loads within a condition or a loop are left out.
        """
        kept = self._lines, self._known, self._taken, self.reads, self.writes, self._depth
        loads = self.loads, self._loads_from
        self._loads_from = self._depth
        self._loops += in_loop
        self._lines, self._taken, self.loads = [], set(self._taken), {}
        self._known = [*map(dict, self._known), {}]
        self.reads, self.writes = dict(self.reads), dict(self.writes)
        try:
            yield self.loads
        finally:
            self._lines, self._known, self._taken, self.reads, self.writes, self._depth = kept
            self.loads, self._loads_from = loads
            self._loops -= in_loop

    def depending(self, names: Collection[str], *, on_loads: bool = False) -> set[str]:
        """These names, and the variables of a trial that depend on them, or on what is loaded."""
        found = set(names)
        for line in self._lines:
            uses = not found.isdisjoint(_WORD.findall(line.value))
            if line.declares and (uses or (on_loads and "[" in line.value)):
                found.add(line.declares)
        return found

    def lines(self) -> list[Line]:
        """The variables of a trial that are declared outside of conditions and loops."""
        return [line for line in self._lines if line.declares and line.depth == self._loads_from]

    def store(self, place: Place, index: Sequence[str], value: str) -> None:
        self.update(place, index, "{0} = {1};", stored(place.dtype, value))

    def update(self, place: Place, index: Sequence[str], statement: str, value: str) -> None:
        """Write a statement that does something to an element in memory ({0}) with a value ({1})."""
        self.writes[place.name] = place
        element = f"{self.parameter(place.name)}[{self.flat(tuple(index), place.extents)}]"
        self.line(statement.format(element, value))

    def load(self, place: Place, index: Index) -> str:
        self.reads[place.name] = place
        name = self.parameter(place.name)
        text = loaded(place.dtype, f"{name}[{self.flat(index, place.extents)}]")
        return self.let(computed_type(place.dtype), f"{name}_value", text)

    # Indices

    def as_index(self, text: str) -> str:
        """A size or number as a value of the type of indices, for functions that are overloaded by type."""
        return text if self.index_type == "int" else f"({self.index_type}){text}"

    def size(self, extent: sympy.Expr) -> str:
        """An extent; a local variable if it is an expression."""
        text = in_cpp(extent)
        if (_ATOM.fullmatch(text) and "(" not in text) or (
            extent.is_Mul and all(a.is_Atom for a in extent.args)
        ):
            return text if extent.is_Atom else f"({text})"
        return self.let(self.index_type, "extent", text)

    def flat(self, index: Index, extents: tuple[sympy.Expr, ...]) -> str:
        """The row-major offset of an element."""
        axis = next((i for i, at in enumerate(index) if at in self.apart), None)
        if axis is not None and self.index_type != "int":
            # A loop over it has this product only, and adds it to what is the same for all.
            first = self.flat((*index[:axis], "0", *index[axis + 1 :]), extents)
            first = self.let(self.index_type, "base", first)
            return plus(first, times(index[axis], self._count(extents[axis + 1 :])))
        text, done = "", 0
        while done < len(index):
            for end in range(len(index), done, -1):
                part = index[done:end], extents[done:end]
                each = self._find(("flat", *part)) if end > done + 1 else index[done]
                if each is not None:
                    break
            if product(part[1]) != ONE:
                text = plus(times(text, self._count(part[1])), each) if text and text != "0" else each
            done = end
        found = text or "0"
        self._known[-1]["unflat", found, extents] = index
        return found

    def _count(self, extents: tuple[sympy.Expr, ...]) -> str:
        text = count_in_cpp(extents)
        return text if len(extents) == 1 and extents[0].is_Atom else grouped(self.as_index(text))

    def unflat(self, flat: str, extents: tuple[sympy.Expr, ...], names: Sequence[str] = ()) -> Index:
        """The index of an element from its row-major offset."""
        known: Index | None = self._find(("unflat", flat, extents))
        if known is not None:
            return known
        found = ["0"] * len(extents)
        axes = [axis for axis, extent in enumerate(extents) if extent != ONE]
        rest = flat
        is_int = self.index_type == "int" or flat in self.ints
        for axis in reversed(axes):
            name = names[axis] if names else f"index{axis}"
            size = self.size(extents[axis])
            if axis == axes[0]:
                found[axis] = (
                    rest if _ATOM.fullmatch(rest) and not names else self.let(self.index_type, name, rest)
                )
            elif self._include and self._loops and is_int and not extents[axis].is_Integer:
                self._include(ROWS)
                inverse = self.constant(
                    "unsigned long long", "inverse", f"inverse_of({in_cpp(extents[axis])})"
                )
                above = self.let("int", "above", f"quotient({rest}, {inverse})")
                found[axis] = self.let("int", name, f"{grouped(rest)} - {above} * {size}")
                rest = above
            else:
                found[axis] = self.let(self.index_type, name, f"{grouped(rest)} % {size}")
                rest = f"{rest} / {size}" if " / " in rest or _ATOM.fullmatch(rest) else f"({rest}) / {size}"
        self._known[-1]["flat", tuple(found), extents] = flat
        return tuple(found)

    def same_place(
        self, index: Index, extents: tuple[sympy.Expr, ...], other: Index, wanted: tuple[sympy.Expr, ...]
    ) -> None:
        """Say that two indices have the same row-major offset."""
        flat = self.flat(index, extents)
        self._known[-1]["flat", other, wanted] = flat
        self._known[-1]["unflat", flat, wanted] = other
        if len(other) == 1:
            self._known[-1]["unflat", other[0], extents] = index

    # Statements

    def let(self, kind: str, name: str, value: str) -> str:
        """A local variable for a value; the same one for the same value."""
        if value.isidentifier() and name != value:
            return value
        key = ("let", kind, value)
        known: str | None = self._find(key)
        if known is None:
            known = self.fresh(name)
            self._lines.append(Line(self._depth, f"{kind} {known} = {value};", known, value))
            self._known[-1][key] = known
        return known

    def constant(self, kind: str, name: str, value: str) -> str:
        """A local variable at the beginning, for a value of parameters alone."""
        key = ("let", kind, value)
        known: str | None = self._known[0].get(key)
        if known is None:
            known = self._known[0][key] = self.fresh(name)
            self._lines.insert(0, Line(self._loads_from, f"{kind} {known} = {value};", known, value))
        return known

    def variable(self, kind: str, name: str, value: str) -> str:
        """A mutable local variable."""
        found = self.fresh(name)
        self.line(f"{kind} {found} = {value};")
        return found

    def line(self, text: str) -> None:
        if text:
            self._lines.append(Line(self._depth, text))

    @contextlib.contextmanager
    def loop(self, name: str, start: str, end: str, step: str = "1") -> Iterator[str]:
        """A loop over integers from start up to end."""
        found = self.fresh(name)
        advance = f"++{found}" if step == "1" else f"{found} += {step}"
        with self.block(f"for ({self.index_type} {found} = {start}; {found} < {end}; {advance}) {{"):
            yield found

    @contextlib.contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        """Statements in braces."""
        self.line(head)
        self._depth += 1
        self._loops += head.startswith("for")
        self._known.append({})
        taken = set(self._taken)
        yield
        self._known.pop()
        self._taken = taken
        self._depth -= 1
        self._loops -= head.startswith("for")
        self.line(end)

    def fresh(self, name: str) -> str:
        name = re.sub(r"\W", "_", name)
        number, found = 1, name
        while found in self._taken:
            number += 1
            found = f"{name}{number}"
        self._taken.add(found)
        return found

    def text(self) -> str:
        """All lines, without unused local variables."""
        kept: list[Line] = []
        used: dict[str, int] = {}
        for line in reversed(self._lines):
            if line.declares:
                line.uses = used.pop(line.declares, 0)
                if not line.uses:
                    continue
            kept.append(line)
            for word in _WORD.findall(line.value if line.declares else line.text):
                used[word] = used.get(word, 0) + 1
        return "\n".join(_INDENT * line.depth + line.text for line in _inlined(kept[::-1]))

    def _find(self, key: Any) -> Any:
        return next((scope[key] for scope in reversed(self._known) if key in scope), None)


def node_type(node: Node) -> str:
    """The C++ computation type of a node's elements."""
    return computed_type(node.meta["val"].dtype)


def numbers(node: Any) -> torch.dtype:
    """The element type of a node's tensor."""
    found: torch.dtype = node.meta["val"].dtype
    return found


def grouped(text: str) -> str:
    """An expression as an operand of a product."""
    return text if _ATOM.fullmatch(text) else f"({text})"


def times(left: str, right: str) -> str:
    if "0" in {left, right}:
        return "0"
    if left == "1":
        return right
    return left if right == "1" else f"{grouped(left)} * {grouped(right)}"


def plus(left: str, right: str) -> str:
    if left == "0":
        return right
    if right.startswith("-") and _ATOM.fullmatch(right[1:]):
        return f"{left} - {right[1:]}"
    return left if right == "0" else f"{left} + {right}"


def minus(left: str, right: str) -> str:
    return left if right == "0" else f"{left} - {grouped(right)}"


def _inlined(lines: list[Line]) -> list[Line]:
    """Inline values that are loaded from memory and used once."""
    found: list[Line] = []
    waiting: dict[str, str] = {}
    for line in lines:
        text = line.text
        for name in [name for name in waiting if re.search(rf"\b{name}\b", text)]:
            text = waiting.pop(name).join(re.split(rf"\b{name}\b", text))
        if (
            line.declares.rstrip("0123456789").endswith("_value")
            and line.uses == 1
            and _next_uses(lines, line)
        ):
            waiting[line.declares] = text.partition(" = ")[2].removesuffix(";")
            continue
        found.append(Line(line.depth, text))
    return found


def _next_uses(lines: list[Line], line: Line) -> bool:
    """Whether the only use is at the same depth, with nothing between that opens or closes a block."""
    for other in lines[lines.index(line) + 1 :]:
        if other.depth != line.depth or other.text.endswith("{"):
            return False
        if re.search(rf"\b{line.declares}\b", other.text):
            return True
    return False
