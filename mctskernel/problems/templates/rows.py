"""Groups of reductions over the same axes with the element-wise operators around them: a template for rows.

Softmax, normalisations, norms, losses and plain reductions are such groups. `row_kernels` writes their kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch.fx import Node

from mctskernel.problems.plain_cuda.extents import product, same
from mctskernel.problems.plain_cuda.rules import Kind, behind, rule_of, tensors
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.row_kernels import RowGroup
from mctskernel.problems.templates.row_space import (
    ForbiddenError,
    Space,
    computing,
    element_index,
    extents_of,
    reduces,
    row_index,
    space_of,
    stripped,
    trial_body,
)


def row_groups(kept: Sequence[Node], outputs: Collection[Node], traced: Traced) -> Iterable[RowGroup]:
    """The groups among nodes that would each have a plain kernel, the later ones first."""
    readers = readers_of(kept, traced)
    taken: set[Node] = set()
    for last in reversed(kept):
        if last not in taken and (found := _group(last, kept, {*outputs, *taken}, readers, traced)):
            taken.update(found.nodes)
            yield found


def row_operands(kept: Sequence[Node], traced: Traced) -> set[Node]:
    """The kept nodes, and operands of reductions with an element for each row of others: those end these' group."""
    found = set(kept)
    for node in kept:
        if reduces(node):
            source = stripped(tensors(node)[0], found)
            if source not in found and source.op == "call_function":
                count = product(extents_of(source, traced))
                spaces = [space_of(each, traced) for each in _sources(source, found) if reduces(each)]
                fits = any(same(count, product(each.rows)) for each in spaces)
                if fits and rule_of(source).kind is Kind.ELEMENT:
                    found.add(source)
    return found


def readers_of(kept: Sequence[Node], traced: Traced) -> Mapping[Node, set[Node | None]]:
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
    return [each for each in behind(tensors(node), kept.__contains__) if each in kept]


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
        later = {*kept[kept.index(last) :], None} if reduces(last) else set()
        while waiting:
            for each in _sources(waiting.pop(), inside):
                if (
                    each not in fixed
                    and each not in nodes
                    and readers[each] <= nodes | (later if reduces(each) else set())
                    and _may_join(each, space, traced, _sources(each, inside))
                ):
                    nodes.add(each)
                    waiting.append(each)
        if not any(map(reduces, nodes)):
            continue
        # Other reductions of the same, which are needed later, and so may be stored beside the last one.
        operand = stripped(tensors(last)[0], inside)
        like = {
            each
            for each in kept[: kept.index(last)]
            if reduces(each) and each not in fixed and readers[each] <= later
            if space_of(each, traced) == space and stripped(tensors(each)[0], inside) is operand
        }
        for chosen in (nodes | like, nodes, {last}):
            leaves = _proved(RowGroup(tuple(n for n in kept if n in chosen), space, ()), kept, traced)
            beside = tuple(node for node in kept if node in chosen - {last} and not readers[node] <= chosen)
            if leaves is not None and any(map(reduces, chosen)):
                return RowGroup(tuple(n for n in kept if n in chosen), space, leaves, beside)
    return None


def _may_join(node: Node, space: Space, traced: Traced, sources: Sequence[Node]) -> bool:
    """Whether a node fits a space; one that leads from other reductions ends their group instead."""
    if reduces(node):
        return space_of(node, traced) == space
    if any(reduces(each) and space_of(each, traced) != space for each in sources):
        return False
    count = product(extents_of(node, traced))
    fits = any(same(count, product(extents)) for extents in (space.extents, space.rows))
    return rule_of(node).kind is Kind.ELEMENT and fits


def _proved(group: RowGroup, kept: Sequence[Node], traced: Traced) -> tuple[Node, ...] | None:
    """The leaves of a group each of whose elements depends on its own row alone, or None for others."""
    body = trial_body(group.nodes, kept, traced, computing(group.reductions))
    index = tuple(f"at{axis}" for axis in range(len(group.space.extents)))
    try:
        for node in group.nodes:
            if reduces(node):
                source = tensors(node)[0]
                body.read(source, element_index(body, group.space, index, source))
                body.know(node, row_index(body, group.space, index, node), "1")
            elif same(product(body.extents(node)), product(group.space.extents)):
                rule_of(node).compute(body, node, element_index(body, group.space, index, node))
            else:
                rule_of(node).compute(body, node, row_index(body, group.space, index, node))
    except ForbiddenError:
        return None
    whole = product(group.space.extents)
    return tuple({node: None for node, _ in body.loads if same(product(body.extents(node)), whole)})
