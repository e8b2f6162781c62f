"""Operands of products: matrices as C++ expressions, and how they are packed for the tensor cores.

blocks.cuh says what a matrix is, and has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.problems.plain_cuda.extents import ONE, count_in_cpp, in_cpp, product

if TYPE_CHECKING:
    from mctskernel.problems.plain_cuda.schedule import Schedule

STEP, STRIP, LINES = 32, 256, 64
"""Terms of a step, of what a block packs, and lines of a packed tile, as the header has them."""


@dataclass(frozen=True)
class Names:
    """The variables of a kernel."""

    batch: str
    row: str
    column: str
    line: str
    term: str
    step: str
    sum: str
    tile: str
    sums: str
    shared: str
    tiles: str
    split: str
    split_steps: str
    a: str
    b: str
    part: str
    matrix: str

    @staticmethod
    def of(body: Body) -> Names:
        """Names that a body doesn't use; the same for any empty one."""
        words = (
            "batch row column line term step product tile sums shared tiles split split_steps a b part matrix"
        )
        return Names(*map(body.fresh, words.split()))


@dataclass(frozen=True)
class Matrix:
    """A matrix in C++: an expression over the batch, the buffers that it reads, and whether it lies in memory as it is."""

    text: str
    reads: tuple[Place, ...]
    is_stored: bool = False


OfTerm = Callable[[], AbstractContextManager[None]]
"""Opens the function of a term, or of a step, within that of its line."""

Written = Callable[["Schedule", Place, Names], Matrix]


@dataclass(frozen=True)
class Operand:
    """An operand: a batch of matrices. `number` is that of the matrix in the kernel of the product.

    An operand is packed in tiles, unless `gathered` says that steps of any lines are brought together.
    """

    name: str
    matrix: Written
    batch: sympy.Expr
    lines: sympy.Expr
    terms: sympy.Expr
    number: Callable[[Names], str]
    gathered: Gathered | None = None

    @property
    def steps(self) -> sympy.Expr:
        """Steps of a line."""
        return steps_of(self.terms)

    @property
    def packed(self) -> tuple[sympy.Expr, ...]:
        """The extents of the packed operand, of fp16."""
        if self.gathered:
            return (self.batch, self.lines, self.steps, sympy.Integer(2 * STEP))
        blocks = sympy.floor((self.lines + LINES - 1) / LINES)
        return (self.batch, blocks, self.steps, sympy.Integer(2 * STEP * LINES))


@dataclass(frozen=True)
class Gathered:
    """How lines of an operand are put together of steps of any packed lines.

    `at(names, line, body)` writes where a step of a line is in the packed operand, in steps, or -1; the rest of its
    index by the step in the context that it is given. `main_range` is a line's range, in C++, and `pack_range` that of
    a packed line, of `ranges` of them in all.
    """

    ranges: tuple[sympy.Expr, ...]
    pack_range: Callable[[Names], str]
    main_range: Callable[[Body, Names], str]
    at: Callable[[Body, Names, OfTerm], None]


def steps_of(terms: sympy.Expr) -> sympy.Expr:
    """So many steps of 32 terms."""
    return terms / STEP if (terms / STEP).is_integer else sympy.floor((terms + STEP - 1) / STEP)


class Operands(NamedTuple):
    """Both operands of a product, and the steps that it has."""

    a: Operand
    b: Operand
    steps: sympy.Expr


def matrix_operand(
    name: str,
    node: Any,
    batch: sympy.Expr,
    lines: sympy.Expr,
    terms: sympy.Expr,
    *,
    matrix: Written | None = None,
    in_product: Callable[[Names], str] = lambda names: names.batch,
) -> Operand:
    """A matrix as an operand; `matrix` writes it, or it is a node."""

    def written(schedule: Schedule, target: Place, names: Names) -> Matrix:
        rank = len(schedule.body(target).extents(node))
        pair = (names.line, names.term) if name == "a" else (names.term, names.line)
        index = (*((names.batch,) if rank == 3 else ()), *pair)

        def value(body: Body, of_term: OfTerm) -> None:
            with of_term():
                body.line(f"return {body.read(node, index)};")

        pair = (names.line, names.term)
        return in_memory(schedule, target, node, index, (pair, lines, terms)) or computed(
            schedule, target, names, (lines, terms), value
        )

    return Operand(name, matrix or written, batch, lines, terms, in_product)


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
    if not all(each == "0" or each.isidentifier() for each in others):
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
    return Matrix(text, (place,), is_stored=True)


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
