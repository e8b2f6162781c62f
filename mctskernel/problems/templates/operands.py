"""Operands of products: matrices as C++ expressions, and how they are packed for the tensor cores.

blocks.cuh says what a matrix is, and has the arithmetic.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from mctskernel.problems.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, in_cpp, product
from mctskernel.problems.plain_cuda.schedule import Job

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

STEP = 32
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
STEPS = {torch.float32: STEP, torch.float16: 64, torch.bfloat16: 64, **dict.fromkeys(FP8, 128)}
"""Terms of a step, which has 128 bytes of a line, as the header has them."""

STRIP, LINES = 8, 64
"""Steps and lines of what a block packs."""


_Words = namedtuple(
    "_Words", "batch row column line term sum tile sums shared part pack matrix left right values score"
)


class Names(_Words):
    """The variables of a kernel."""

    @staticmethod
    def of(body: Body) -> Names:
        """Names that a body doesn't use; the same for any empty one."""
        return Names(*(body.fresh("product" if each == "sum" else each) for each in Names._fields))


@dataclass(frozen=True)
class Matrix:
    """A matrix in C++: an expression over the batch, and the buffers that it reads."""

    text: str
    reads: tuple[Place, ...]


@dataclass(frozen=True)
class Memory:
    """A matrix in a buffer, seen through views that only move axes.

    Its terms are neighbours, or else its lines are; `stride` is the distance of two lines, or else of two terms. `data`
    and `batch` are C++ expressions: where it begins, and its place along the buffer's first axis, where that is the
    batch's and the others are the matrix's own.
    """

    place: Place
    by_term: bool
    stride: sympy.Expr
    data: str
    batch: str | None


OfTerm = Callable[[], AbstractContextManager[None]]
"""Opens the function of a term within that of its line."""


@dataclass(frozen=True)
class Operand:
    """A batch of matrices: A by row and term, or B by term and column. Its numbers may be wider than its `dtype`."""

    name: str
    node: Any
    dtype: torch.dtype
    batch: sympy.Expr
    lines: sympy.Expr
    terms: sympy.Expr

    @property
    def steps(self) -> sympy.Expr:
        """Steps of a line."""
        return ceiling(self.terms, STEPS[self.dtype])

    @property
    def packed(self) -> tuple[sympy.Expr, ...]:
        """The extents of the packed operand, in numbers of 16 bits."""
        return (self.batch, ceiling(self.lines, LINES), self.steps, sympy.Integer(64 * LINES))

    @property
    def blocks(self) -> tuple[sympy.Expr, ...]:
        """The blocks that pack a matrix."""
        return (ceiling(self.lines, LINES), ceiling(self.terms, STRIP * STEPS[self.dtype]))

    def matrix(self, schedule: Schedule, target: Place, names: Names) -> Matrix:
        """The operand in a kernel that fills a buffer."""

        def value(body: Body, of_term: OfTerm) -> None:
            with of_term():
                body.line(f"return {body.read(self.node, self._index(body, names))};")

        found = self.memory(schedule, target, names)
        if found is None:
            return computed(schedule, target, names, self, value)
        given = f"{found.data}, {in_cpp(self.lines)}, {in_cpp(self.terms)}, {in_cpp(found.stride)}"
        return Matrix(f"blocks::{'ByTerm' if found.by_term else 'ByLine'}{{{given}}}", (found.place,))

    def memory(self, schedule: Schedule, target: Place, names: Names) -> Memory | None:
        """Where the operand is, if it is a matrix in memory."""
        body = schedule.body(target)
        index = self._index(body, names)
        value = body.read(self.node, index)
        if len(body.loads) != 1:
            return None
        (((node, found), offset),) = body.loads.items()
        place = schedule.places[node]
        own = (names.line, names.term)
        if place.dtype is not self.dtype or value != body.load(place, found):
            return None
        extents = {names.line: self.lines, names.term: self.terms, names.batch: self.batch}
        first = index[:-2] if self.batch != ONE else ()
        for order in ((*first, *own), (*first, *own[::-1])):
            sizes = tuple(extents[each] for each in order)
            if offset == body.flat(order, sizes):  # several axes as one
                place, found = Place(place.name, place.dtype, sizes), order
        if self.lines == ONE and found[-2:] == ("0", names.term):
            found = (*found[:-2], *own)
        if any(found.count(each) != 1 for each in own):
            return None
        strides = {each: product(place.extents[number + 1 :]) for number, each in enumerate(found)}
        others = [each for each in found if each not in own]
        line, term = (strides[each] for each in own)
        if ONE not in {line, term} or not all(each == "0" or each in index for each in others):
            return None
        offset = "".join(
            f" + (long long){each} * {count_in_cpp(place.extents[number + 1 :])}"
            for number, each in enumerate(found)
            if each not in own and each != "0"
        )
        is_plain = len(found) <= 3 and set(found[-2:]) == set(own)
        batch = (found[0] if len(found) == 3 else "0") if is_plain else None
        data = f"{schedule.parameter(place.name)}{offset}"
        return Memory(place, term == ONE, line if term == ONE else term, data, batch)

    def buffer(self, name: str, *, by_term: bool) -> Place:
        """A buffer for the operand that TMA can read, whose terms are neighbours, or else its lines."""
        outer, inner = (self.lines, self.terms) if by_term else (self.terms, self.lines)
        together = 16 // self.dtype.itemsize
        return Place(name, self.dtype, (self.batch, outer, ceiling(inner, together) * together))

    def copy(self, buffer: Place, *, by_term: bool) -> Job:
        """The kernel that fills such a buffer."""
        inner = self.terms if by_term else self.lines

        def emit(body: Body, index: Index) -> str:
            *batch, first, second = index
            in_order = by_term == (self.name == "a")
            found = (
                *batch[3 - len(body.extents(self.node)) :],
                *((first, second) if in_order else (second, first)),
            )

            def value() -> str:
                return converted(body.read(self.node, found), numbers(self.node), self.dtype)

            if buffer.extents[-1] == inner:
                return value()
            kept = body.variable("float", "value", "0.0f")
            with body.block(f"if ({second} < {body.size(inner)}) {{"):
                body.line(f"{kept} = {value()};")
            return kept

        return Job(self.node, buffer, buffer.extents, emit)

    def _index(self, body: Body, names: Names) -> Index:
        pair = (names.line, names.term) if self.name == "a" else (names.term, names.line)
        return (*((names.batch,) if len(body.extents(self.node)) == 3 else ()), *pair)


def map_given(name: str) -> tuple[str, str]:
    """A kernel's parameter for a tensor map, and its argument in the plan."""
    return f"const __grid_constant__ blocks::TensorMap {name}", name


def ceiling(count: sympy.Expr, size: int) -> sympy.Expr:
    """How many of a size hold a count."""
    return count / size if (count / size).is_integer else sympy.floor((count + size - 1) / size)


def computed(
    schedule: Schedule, target: Place, names: Names, operand: Operand, value: Callable[[Body, OfTerm], None]
) -> Matrix:
    """An operand whose elements are computed where they are read.

    `value(body, of_term)` writes what depends on the line alone, and then in the context of `of_term` the rest.
    """

    def written(index_type: str) -> Body:
        body = schedule.body(target, index_type)
        Names.of(body)

        @contextmanager
        def of_term() -> Iterator[None]:
            with body.block(f"return [=](int {names.term}) {{", end="};"):
                yield

        value(body, of_term)
        return body

    body = written("int")
    if any(schedule.is_large(each) for each in body.reads.values()):
        body = written("long long")
    lines, terms = in_cpp(operand.lines), in_cpp(operand.terms)
    head = f"blocks::computed({lines}, {terms}, [&](int {names.line}) {{"
    return Matrix(f"{head}\n{body.text()}\n    }})", tuple(body.reads.values()))
