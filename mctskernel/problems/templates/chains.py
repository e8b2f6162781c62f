"""Element-wise chains: a template in which threads load, compute and store vectors of neighbours."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Place, numbers
from mctskernel.problems.plain_cuda.extents import ONE, product
from mctskernel.problems.plain_cuda.rules import Kind, operator_name, rule_of
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.row_geometry import Geometry, macros, power_of_two
from mctskernel.problems.templates.row_kernels import RowWriter
from mctskernel.problems.templates.row_space import (
    Space,
    computing,
    element_index,
    extents_of,
    reduces,
    run_of,
    trial_body,
)

SHORTEST = 32
"""Runs of fewer elements are not worth vectors."""

_K = "k"


@dataclass(frozen=True)
class ChainGroup:
    """An element-wise node. The run of its `space` is contiguous in what it loads, or the same element of that."""

    nodes: tuple[Node]
    space: Space
    vector: int

    def kernels(self, schedule: Schedule, place: Place) -> Iterator[tuple[str, str]]:
        """The text of the kernel, and its launch."""
        length = schedule.estimate(run_of(self.space)[1])
        vectors = -(-length // self.vector)
        split = vectors > 1024
        words = ("THREADS", "VECTOR", "ITEMS", "PARTS") if split else ("THREADS", "ROWS", "VECTOR", "ITEMS")
        threads = min(power_of_two(vectors), 256)
        items = 1 if split else min(-(-vectors // threads), 4)
        names = macros(
            schedule, words, Geometry(threads, 256 // threads, self.vector, items, 1 << 20, 32 + 8 * items)
        )
        schedule.include(ROWS)
        name = schedule.fresh(f"{operator_name(self.nodes[0]).split('.')[-1].strip('_')}_vectors")
        yield RowWriter.made(self, schedule, place, names, lambda writer: writer.whole(name, ()))


def chain_groups(kept: Sequence[Node], _: Collection[Node], traced: Traced) -> Iterable[ChainGroup]:
    """The element-wise nodes that can be computed in vectors."""
    for node in kept:
        if rule_of(node).kind is Kind.ELEMENT and not reduces(node):
            extents = tuple(each for each in extents_of(node, traced) if each != ONE)
            counts = (traced.estimate(product(extents[start:])) for start in range(len(extents)))
            starts = [start for start, count in enumerate(counts) if count >= SHORTEST]
            for start in starts:
                space = Space(extents, tuple(axis >= start for axis in range(len(extents))))
                widths = _widths(node, space, kept, traced)
                if widths is not None and (min(widths, default=0) > 0 or start == starts[-1]):
                    widths.append(numbers(node).itemsize)
                    yield ChainGroup((node,), space, max(16 // max(map(abs, widths)), 1))
                    break


def _widths(node: Node, space: Space, kept: Sequence[Node], traced: Traced) -> list[int] | None:
    """The bytes of an element of what is contiguous along the run.

    Of what is elsewhere, as an enlarged image's, they are negative; there runs are short, and the index of each is
    computed once. None if anything is loaded under a condition, or nothing at all.
    """
    body = trial_body((node,), kept, traced, computing())
    _, run = run_of(space)
    rows = tuple(f"at{axis}" for axis in range(len(space.rows)))
    before = body.names
    index = (*rows, *body.unflat(_K, run))
    with body.trial() as loads:
        rule_of(node).compute(body, node, element_index(body, space, index, node))
        own = {*(body.names - before), _K} - {line.declares for line in body.lines()}
        own, from_memory = body.depending(own), body.depending((), on_loads=True)
        all_of_it = set(body.reads)
    found = []
    for (each, _), offset in loads.items():
        all_of_it.discard(each.name)
        base = "0" if offset == _K else offset.removesuffix(f" + {_K}")
        if base != offset and own.isdisjoint(re.findall(r"\w+", base)):
            found.append(numbers(each).itemsize)
        varying = own.intersection(re.findall(r"\w+", base))
        if varying and varying.isdisjoint(from_memory):
            found.append(-numbers(each).itemsize)
    return None if all_of_it or not loads else found
