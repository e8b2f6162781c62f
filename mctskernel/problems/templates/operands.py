"""Operands of products: matrices as C++ expressions, and how they are packed for the tensor cores.

blocks.cuh says what a matrix is, and has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, count_in_plan, in_cpp, product

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

STEP, STRIP, LINES = 32, 256, 64
"""Terms of a step, and terms and lines of what a block packs, as the header has them."""


@dataclass(frozen=True)
class Names:
    """The variables of a kernel."""

    batch: str
    row: str
    column: str
    line: str
    term: str
    sum: str
    tile: str
    sums: str
    shared: str
    part: str
    matrix: str

    @staticmethod
    def of(body: Body) -> Names:
        """Names that a body doesn't use; the same for any empty one."""
        return Names(
            *map(body.fresh, "batch row column line term product tile sums shared part matrix".split())
        )


@dataclass(frozen=True)
class Matrix:
    """A matrix in C++: an expression over the batch, and the buffers that it reads."""

    text: str
    reads: tuple[Place, ...]


OfTerm = Callable[[], AbstractContextManager[None]]
"""Opens the function of a term within that of its line."""


@dataclass(frozen=True)
class Operand:
    """An operand: a batch of matrices, that of A by row and term or that of B by term and column."""

    name: str
    node: Any
    batch: sympy.Expr
    lines: sympy.Expr
    terms: sympy.Expr

    @property
    def steps(self) -> sympy.Expr:
        """Steps of a line."""
        return steps_of(self.terms)

    @property
    def packed(self) -> tuple[sympy.Expr, ...]:
        """The extents of the packed operand, of fp16."""
        return (self.batch, _ceiling(self.lines, LINES), self.steps, sympy.Integer(2 * STEP * LINES))

    @property
    def blocks(self) -> str:
        """The blocks that pack it, in a plan."""
        lines, terms, batch = (count_in_plan((each,)) for each in (self.lines, self.terms, self.batch))
        blocks = f"ceil_div({lines}, {LINES}) * ceil_div({terms}, {STRIP})"
        return blocks if self.batch == ONE else f"{blocks} * {batch}"

    @property
    def blocks_in_cpp(self) -> str:
        """The same in a kernel."""
        return count_in_cpp((_ceiling(self.lines, LINES), _ceiling(self.terms, STRIP), self.batch))

    def matrix(self, schedule: Schedule, target: Place, names: Names) -> Matrix:
        """The operand in a kernel that fills a buffer."""
        rank = len(schedule.body(target).extents(self.node))
        pair = (names.line, names.term) if self.name == "a" else (names.term, names.line)
        index = (*((names.batch,) if rank == 3 else ()), *pair)

        def value(body: Body, of_term: OfTerm) -> None:
            with of_term():
                body.line(f"return {body.read(self.node, index)};")

        described = ((names.line, names.term), self.lines, self.terms)
        return in_memory(schedule, target, self.node, index, described) or computed(
            schedule, target, names, (self.lines, self.terms), value
        )


def _ceiling(count: sympy.Expr, size: int) -> sympy.Expr:
    return count / size if (count / size).is_integer else sympy.floor((count + size - 1) / size)


def steps_of(terms: sympy.Expr) -> sympy.Expr:
    """So many steps of 32 terms."""
    return _ceiling(terms, STEP)


def in_memory(
    schedule: Schedule,
    target: Place,
    operand: Node,
    index: Index,
    described: tuple[tuple[str, str], sympy.Expr, sympy.Expr],
) -> Matrix | None:
    """An operand as a matrix in memory, if it is one: a buffer, seen through views that only move axes."""
    names, *extents = described
    body = schedule.body(target)
    value = body.read(operand, index)
    if len(body.loads) != 1 or numbers(operand) is not torch.float32:
        return None
    ((node, found),) = body.loads
    place = schedule.places[node]
    if value != body.load(place, found) or any(found.count(each) != 1 for each in names):
        return None
    strides = {each: product(place.extents[number + 1 :]) for number, each in enumerate(found)}
    others = [each for each in found if each not in names]
    if not all(each == "0" or each in index for each in others):
        return None
    line, term = (strides[each] for each in names)
    if ONE not in {line, term}:
        return None
    kind, stride = ("ByTerm", line) if term == ONE else ("ByLine", term)
    offset = "".join(
        f" + (long long){each} * {count_in_cpp(place.extents[number + 1 :])}"
        for number, each in enumerate(found)
        if each not in names and each != "0"
    )
    lines, terms = (in_cpp(each) for each in extents)
    text = f"blocks::{kind}{{{schedule.parameter(place.name)}{offset}, {lines}, {terms}, {in_cpp(stride)}}}"
    return Matrix(text, (place,))


def computed(
    schedule: Schedule,
    target: Place,
    names: Names,
    extents: tuple[sympy.Expr, sympy.Expr],
    value: Callable[[Body, OfTerm], None],
) -> Matrix:
    """An operand whose elements are computed where they are read.

    `value(body, of_term)` writes what depends on the line alone, and then in the context of `of_term` the rest.
    """
    lines, terms = extents

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
    head = f"blocks::computed({in_cpp(lines)}, {in_cpp(terms)}, [&](int {names.line}) {{"
    return Matrix(f"{head}\n{body.text()}\n    }})", tuple(body.reads.values()))
