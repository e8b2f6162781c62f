"""Groups of reductions over the same axes with the element-wise operators around them: a template for rows.

Softmax, normalisations, norms, losses and plain reductions are such groups. `row_kernels` writes their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import sympy
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import computed_type
from mctskernel.problems.plain_cuda.extents import ONE, product, same
from mctskernel.problems.plain_cuda.reductions import accumulated, reduced_axes, splits
from mctskernel.problems.plain_cuda.rules import (
    Kind,
    argument,
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
class RowGroup:
    """Reductions over one space and element-wise nodes over it or its rows, in order. Only the last is stored.

    `leaves` are stored tensors with an element for each one of the space.
    """

    nodes: tuple[Node, ...]
    space: Space
    leaves: tuple[Node, ...] = field(compare=False)

    @property
    def reductions(self) -> tuple[Node, ...]:
        """Its reductions, in order."""
        return tuple(node for node in self.nodes if reduces(node))

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The texts of the kernels that fill a buffer with the last node, and their launches."""
        from mctskernel.problems.templates.row_kernels import row_kernels  # noqa: PLC0415 - needs this module

        yield from row_kernels(self, schedule, place)


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


def row_groups(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterable[RowGroup]:
    """The groups among nodes that would each have a plain kernel, the later ones first."""
    readers = _readers(kept, traced)
    taken: set[Node] = set()
    for last in reversed(kept):
        if last not in taken and (found := _group(last, kept, {*outputs, *taken}, readers, traced)):
            taken.update(found.nodes)
            yield found


def row_operands(kept: Sequence[Node]) -> set[Node]:
    """Operands of reductions that other reductions lead to: those end a group of their own."""
    found = set(kept)
    for node in kept:
        if reduces(node):
            source = stripped(tensors(node)[0], found)
            if source not in found and source.op == "call_function":
                larger = any(reduces(each) for each in _sources(source, found))
                if larger and rule_of(source).kind is Kind.ELEMENT:
                    found.add(source)
    return found


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


def pair(first: Node, second: Node) -> str:
    """Which two reductions can be computed in one pass although the second needs the first; empty for others.

    `softmax` are a maximum and the sum of exponentials of the differences from it, `moments` a mean and a sum of
    squared differences from it.
    """
    if {base_name(first), base_name(second)} & PLACES:
        return ""
    if computed_type(accumulated(first)) != "float" or computed_type(accumulated(second)) != "float":
        return ""
    term = stripped(tensors(second)[0])
    names = base_name(first), base_name(second), base_name(term) if term.op == "call_function" else ""
    if names == ("amax", "sum", "exp"):
        kind, difference = "softmax", stripped(tensors(term)[0])
    elif names[0] == "mean" and names[1] in {"sum", "mean"} and _is_square(term):
        kind, difference = "moments", stripped(tensors(term)[0])
    else:
        return ""
    if difference.op != "call_function" or base_name(difference) != "sub" or len(tensors(difference)) != 2:
        return ""
    left, right = tensors(difference)
    center = stripped(right)
    if kind == "softmax" and center.op == "call_function" and base_name(center) == "where":
        center = stripped(argument(center, "other"))  # 0 in place of an infinite maximum
    return kind if stripped(left) is stripped(tensors(first)[0]) and center is first else ""


def _is_square(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if base_name(node) == "pow":
        return bool(argument(node, "exponent") == 2)
    return base_name(node) == "square" or (base_name(node) == "mul" and len(tensors(node)) == 1)


def _readers(kept: Sequence[Node], traced: Traced) -> Mapping[Node, set[Node | None]]:
    """The kept nodes that read each, and None where an output is a view of it."""
    found: dict[Node, set[Node | None]] = {node: set() for node in kept}
    inside = set(kept)
    for node in kept:
        for source in _sources(node, inside):
            found[source].add(node)
    for output in traced.outputs:
        for source in _sources(output, inside) if output not in inside else ():
            found[source].add(None)
    return found


def _sources(node: Node, kept: Collection[Node]) -> list[Node]:
    """The kept nodes that a node reads, also through others."""
    found: dict[Node, None] = {}
    waiting, seen = tensors(node), set()
    while waiting:
        each = waiting.pop()
        if each in kept:
            found[each] = None
        elif each not in seen:
            seen.add(each)
            waiting += tensors(each)
    return list(found)


def _group(
    last: Node,
    kept: Sequence[Node],
    fixed: Collection[Node],
    readers: Mapping[Node, set[Node | None]],
    traced: Traced,
) -> RowGroup | None:
    """The largest group that ends with a node. `fixed` nodes have to be stored, or are in other groups."""
    inside = set(kept)
    sources = _sources(last, inside)
    if reduces(last):
        spaces = [space_of(last, traced)]
    else:
        spaces = [space_of(each, traced) for each in sources if reduces(each) and each not in fixed]
    for space in spaces:
        if not any(space.reduced) or not _may_join(last, space, traced, ()):
            continue
        nodes, waiting = {last}, [last]
        while waiting:
            for each in _sources(waiting.pop(), inside):
                if (
                    each not in fixed
                    and each not in nodes
                    and readers[each] <= nodes
                    and _may_join(each, space, traced, _sources(each, inside))
                ):
                    nodes.add(each)
                    waiting.append(each)
        if not any(map(reduces, nodes)):
            continue
        for chosen in (nodes, {last}):
            leaves = _proved(RowGroup(tuple(n for n in kept if n in chosen), space, ()), kept, traced)
            if leaves is not None and any(map(reduces, chosen)):
                return RowGroup(tuple(n for n in kept if n in chosen), space, leaves)
    return None


def _may_join(node: Node, space: Space, traced: Traced, sources: Sequence[Node]) -> bool:
    """Whether a node fits a space; one that leads from other reductions ends their group instead."""
    if reduces(node):
        return space_of(node, traced) == space
    if any(reduces(each) and space_of(each, traced) != space for each in sources):
        return False
    count = product(extents_of(node, traced))
    return rule_of(node).kind is Kind.ELEMENT and any(
        same(count, product(extents)) for extents in (space.extents, space.rows)
    )


Compute = Callable[[Body, Node, Index], str]
"""Writes the code for an element of a node."""


class _OtherRowError(Exception):
    """An element depends on another row's."""


def _proved(group: RowGroup, kept: Sequence[Node], traced: Traced) -> tuple[Node, ...] | None:
    """The leaves of a group each of whose elements depends on its own row alone, or None for others."""
    inside = set(group.nodes)

    def compute(body: Body, node: Node, index: Index) -> str:
        if reduces(node) and node in inside:
            raise _OtherRowError
        return "1" if node.op == "get_attr" else rule_of(node).compute(body, node, index)

    body = trial_body(group.nodes, kept, traced, compute)
    index = tuple(f"at{axis}" for axis in range(len(group.space.extents)))
    try:
        for node in group.nodes:
            if reduces(node):
                source = tensors(node)[0]
                body.read(source, element_index(body, group.space, index, source))
                body.know(node, row_index(body, group.space, index, node), "1")
            elif same(product(body.extents(node)), product(group.space.extents)):
                compute(body, node, element_index(body, group.space, index, node))
            else:
                compute(body, node, row_index(body, group.space, index, node))
    except _OtherRowError:
        return None
    whole = product(group.space.extents)
    return tuple({node: None for node, _ in body.loads if same(product(body.extents(node)), whole)})


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
