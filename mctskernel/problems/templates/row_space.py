"""What rows consist of, and the indices of their elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import sympy
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.problems.plain_cuda.extents import ONE, product, same
from mctskernel.problems.plain_cuda.reductions import reduced_axes, splits
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    base_name,
    is_tensor,
    operator_name,
    rule_of,
    tensors,
)
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.plain_cuda.views import reshaped


@dataclass(frozen=True)
class Space:
    """The axes of what is reduced, without those of one element, and which of them are reduced."""

    extents: tuple[sympy.Expr, ...]
    reduced: tuple[bool, ...]

    @property
    def rows(self) -> tuple[sympy.Expr, ...]:
        """The extents of the results."""
        return tuple(each for each, gone in zip(self.extents, self.reduced, strict=True) if not gone)

    @property
    def strided(self) -> bool:
        """Whether neighbours in memory belong to different rows."""
        return not self.reduced[-1]


class Rows(Protocol):
    """Nodes over the rows of a space."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In order; only the last is stored."""

    @property
    def space(self) -> Space:
        """What the rows consist of."""


@dataclass(frozen=True)
class Reductions:
    """Reductions over one space and element-wise nodes over it or its rows, in order. Only the last is stored.

    `leaves` are stored tensors with an element for each one of the space. Beside the last node, which has one for each
    row then, others like it may be stored.
    """

    nodes: tuple[Node, ...]
    space: Space
    leaves: tuple[Node, ...] = field(compare=False)
    beside: tuple[Node, ...] = ()

    @property
    def reductions(self) -> tuple[Node, ...]:
        """Its reductions, in order."""
        return tuple(node for node in self.nodes if reduces(node))

    def store_beside(self, schedule: Schedule) -> None:
        """Give the nodes beside the last one memory."""
        for node in self.beside:
            schedule.places[node] = schedule.place(schedule.fresh(node.name), node)
            schedule.add_scratch(schedule.places[node])

    def is_whole(self, schedule: Schedule) -> bool:
        """Whether the last node has an element for each of the space, not for each row."""
        return same(product(self.space.extents), product(schedule.place("", self.nodes[-1]).extents))


PLACES = {"argmax", "argmin"}


def reduces(node: Node) -> bool:
    """Whether a node is a reduction that this template knows."""
    return splits(node) or (
        node.op == "call_function" and operator_name(node).removeprefix("aten.") in PLACES
    )


def space_of(node: Node, traced: Traced) -> Space:
    """The space of a reduction."""
    source, dims = tensors(node)[0], reduced_axes(node)
    axes = [(extent, dim in dims) for dim, extent in enumerate(extents_of(source, traced)) if extent != ONE]
    return Space(tuple(extent for extent, _ in axes), tuple(gone for _, gone in axes))


def extents_of(node: Node, traced: Traced) -> tuple[sympy.Expr, ...]:
    """The extents of a node's tensor."""
    return tuple(traced.expression(size) for size in node.meta["val"].shape)


def stripped(node: Node, kept: Collection[Node] = ()) -> Node:
    """The node behind views and conversions."""
    while node not in kept and node.op == "call_function":
        if rule_of(node).kind is not Kind.VIEW and base_name(node) != "_to_copy":
            break
        sources = tensors(node)
        if len(sources) != 1:
            break
        node = sources[0]
    return node


def run_of(space: Space) -> tuple[tuple[sympy.Expr, ...], tuple[sympy.Expr, ...]]:
    """The extents of a row's reduced axes: those of its segments, and those within a contiguous one."""
    gone = tuple(extent for extent, gone in zip(space.extents, space.reduced, strict=True) if gone)
    if space.strided:
        return (), gone
    count = len(list(itertools.takewhile(bool, reversed(space.reduced))))
    return gone[:-count], gone[-count:]


def lines_of(space: Space) -> tuple[tuple[sympy.Expr, ...], ...]:
    """The extents of a strided space before its reduced axes, those axes', and those after, if they are neighbours."""
    first, count = space.reduced.index(True), sum(space.reduced)
    extents = space.extents
    if not all(space.reduced[first : first + count]):
        return ()
    return extents[:first], extents[first : first + count], extents[first + count :]


Compute = Callable[[Body, Node, Index], str]
"""Writes the code for an element of a node."""


class ForbiddenError(Exception):
    """An element is needed that must not be."""


def computing(forbidden: Collection[Node] = ()) -> Compute:
    """By the rules. What is forbidden raises ForbiddenError where it is read and not known."""

    def compute(body: Body, node: Node, index: Index) -> str:
        if node in forbidden:
            raise ForbiddenError
        return "1" if node.op == "get_attr" else rule_of(node).compute(body, node, index)

    return compute


def trial_body(nodes: Sequence[Node], kept: Sequence[Node], traced: Traced, compute: Compute) -> Body:
    """A body in which the nodes can be tried before there are kernels; other kept nodes are in memory."""
    stored = [*traced.inputs, *(node for node in kept if node not in nodes)]
    return Body(
        places={
            node: Place(node.name, numbers(node), extents_of(node, traced))
            for node in stored
            if is_tensor(node)
        },
        compute=compute,
        expression=traced.expression,
        parameter=str,
        index_type="int",
        taken=set(),
        target=Place("out", numbers(nodes[-1]), extents_of(nodes[-1], traced)),
    )


def element_index(body: Body, space: Space, index: Index, node: Node) -> Index:
    """The index into a node with an element for each of the space."""
    return reshaped(body, index, space.extents, body.extents(node))


def row_index(body: Body, space: Space, index: Index, node: Node) -> Index:
    """The index into a node with an element for each row."""
    row = tuple(each for each, gone in zip(index, space.reduced, strict=True) if not gone)
    return reshaped(body, row, space.rows, body.extents(node))
