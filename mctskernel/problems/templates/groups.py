"""Groups of operators that one template computes, in place of a plain kernel for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from torch.fx import Node

from mctskernel.problems.plain_cuda.schedule import Group, Templates
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.attention import attentions, moved
from mctskernel.problems.templates.chains import chain_groups
from mctskernel.problems.templates.convolutions import convolutions, convolved, padded
from mctskernel.problems.templates.pools import pools
from mctskernel.problems.templates.rows import row_groups, row_operands
from mctskernel.problems.templates.scans import scan_groups, seen_scans
from mctskernel.problems.templates.tiles import followed, narrowed, products

Finder = Callable[[Sequence[Node], Collection[Node], Traced], Iterable[Group]]
"""Finds groups of one template among the nodes that would each have a plain kernel, given which are outputs."""

FINDERS: tuple[Finder, ...] = (
    attentions,
    convolutions,
    products,
    row_groups,
    scan_groups,
    pools,
    chain_groups,
)
"""In order: where two want the same node, the first gets it."""


def cut(order: Sequence[Node], kept: Sequence[Node], traced: Traced) -> list[Node]:
    """The kept nodes, and others that a template had better store, in order."""
    found = {*kept, *row_operands(kept, traced), *seen_scans(kept, traced.outputs), *convolved(kept)}
    found.update(moved(kept, traced.outputs))
    found.update([*followed(order, kept, traced), *narrowed(kept)])
    found -= padded(kept)
    return [node for node in order if node in found]


def found_groups(
    kept: Sequence[Node], outputs: Collection[Node], traced: Traced, *, separate: bool = False
) -> tuple[Group, ...]:
    """The groups of all templates, none of which share a node; reductions may be `separate` from what they reduce."""
    found: list[Group] = []
    free = set(kept)
    for finder in FINDERS:
        for group in finder(kept, {*outputs, *kept} - free | {*outputs}, traced):
            joint = getattr(group, "epilogue", None) or getattr(group, "pool", None)
            if free.issuperset(group.nodes) and not (separate and joint):
                free.difference_update(group.nodes)
                found.append(group)
    return tuple(found)


TEMPLATES = Templates(
    cut,
    found_groups,
    frozenset(
        """length tiles tiles_of_segment part parts first mine of_tile p
        merge load store across across_lanes scan larger smaller quotient inverse_of
        start whole tests inside edge shift aligned takes_whole ring stage lane full copy reduce
        write take leaves vectors
        pass_rows copy_tile Walk Packed Places places sizes state of_channels""".split()
    ),
)

SEPARATE = TEMPLATES._replace(groups=partial(found_groups, separate=True))
"""The same without reductions in epilogues."""
