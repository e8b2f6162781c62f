"""Reductions in the epilogues of convolutions, whose states, and how two are merged, are those of kernels of rows.

A block that has all channels of its places reduces those. Of the places of an image it has some: it stores the states
of their elements, and a second kernel merges them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Body, Given, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, stored
from mctskernel.problems.plain_cuda.extents import ONE, in_cpp, product, same
from mctskernel.problems.plain_cuda.reductions import finished
from mctskernel.problems.plain_cuda.rules import tensors
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.row_geometry import power_of_two
from mctskernel.problems.templates.row_kernels import RowGroup, RowWriter
from mctskernel.problems.templates.row_space import element_index, extents_of, row_index
from mctskernel.problems.templates.row_steps import Step, add, pair, steps_of, with_parts
from mctskernel.problems.templates.tiles import follower_of

HEADER = "convolutions.cuh"

_SLOW = re.compile(r"\b(exp|log|log1p|tanh|erf)f\(")
_WORDS = ("number", "image", "channel", "depth", "row", "column", "value")

Written = tuple[str, list[Place]]
"""An argument of a kernel's call, and the buffers that it reads."""


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does with the elements of the `held` node: the group that is computed of them.

    Its rows are the channels of a place; or the places of an image, with its `channels` or without, in `parts`.
    """

    group: RowGroup
    held: Node
    parts: bool
    channels: bool
    next_held: tuple[Node, ...] = ()
    """Nodes that are held from when they are reduced on, as what was held before is needed no more."""

    @staticmethod
    def of(leaf: Node, held: Node, groups: Sequence[RowGroup], traced: Traced) -> Epilogue | None:
        """The epilogue of the one of some groups that has a leaf of a convolution's results, if its rows are such."""
        extents = extents_of(held, traced)
        axes = [axis for axis, extent in enumerate(extents) if extent != ONE]
        group = next((each for each in groups if leaf in each.leaves), None)
        if not group or numbers(held) is not torch.float32 or len(group.space.extents) != len(axes):
            return None
        gone = {axis for axis, reduced in zip(axes, group.space.reduced, strict=True) if reduced}
        if group.space.extents != tuple(extents[axis] for axis in axes):
            return None
        if gone == {1}:
            return Epilogue(
                group, held, parts=False, channels=True, next_held=tuple(_held(held, group, traced))
            )
        whole = same(product(extents), product(extents_of(group.nodes[-1], traced)))
        reductions = group.reductions
        once = len(reductions) == 1 or (len(reductions) == 2 and pair(*reductions))
        if whole or not once or gone - {1} != {axis for axis in axes if axis > 1} or not gone - {1}:
            return None
        return Epilogue(group, held, parts=True, channels=1 in gone)

    def step(self, schedule: Schedule, count: sympy.Expr) -> Step:
        """The reductions of which blocks store so many states for each channel of an image."""
        (step,) = steps_of(self.group, schedule, merged=True, parts="")
        count *= schedule.place("", self.held).extents[1] if self.channels else 1
        return with_parts(step, schedule, self.group.space, count, f"({in_cpp(count)})")

    def of_channels(self, schedule: Schedule, place: Place, places: str) -> Written:
        """What reduces the channels of a place, and stores the last node; `places` is the type of those in C++."""
        functions, last, space = _Functions(self, schedule, place), self.group.nodes[-1], self.group.space
        passes, before, lines = 0, "0", []
        for passes, step in enumerate(steps_of(self.group, schedule, merged=False, parts=""), 1):
            schedule.define(step.definition())
            states = schedule.fresh("of_places")
            text = functions.adding(step, "state", f"{step.struct}& state, ", holds=True)
            lines.append(
                f"const auto {states} = places.reduced<{passes - 1}, {before}>({step.struct}{step.starts}, {text});"
            )
            before += f" + sizeof({step.struct})"
            for part in step.parts:
                ((node,), name) = part.nodes, "place" if part.kind == "place" else part.members[0].name
                functions.give(node, f"{states}.of[{_WORDS[0]}].{name}", finish=part.kind != "place")
        whole = self.group.is_whole(schedule)
        at = element_index if whole else row_index

        def result(body: Body, index: Index) -> None:
            text = converted(body.read(last, at(body, space, index, last)), numbers(last), place.dtype)
            body.line(f"return {stored(place.dtype, text)};")

        def offset(body: Body, index: Index) -> None:
            body.line(f"return {body.flat(at(body, space, index, last), place.extents)};")

        texts = functions.written(result), functions.written(offset, words=_WORDS[1:-1])
        lines.append(f"places.{'store' if whole else 'store_once'}<{passes}>({', '.join(texts)});")
        return functions.text(f"reducing<{passes + whole}, {before}>", places, lines)

    def of_places(self, schedule: Schedule, step: Step, places: str) -> Written:
        """What reduces the places of a channel, and stores the states."""
        assert step.buffer is not None  # noqa: S101 - of parts
        functions = _Functions(self, schedule, step.buffer)
        schedule.define(step.definition())
        pairs = [part for part in step.parts if len(part.nodes) > 1]
        head = f"{step.struct}& state, "
        lines = [f"auto of_channels = places.begun({step.struct}{step.starts});"]
        lines.append(f"places.add(of_channels, {functions.adding(step, 'state', head)});")
        for part in pairs:
            names = [f"state.{member.name}" for member in part.members]
            if part.kind == "moments":
                lines.append(_for_each(f"{names[0]} /= fmaxf({names[2]}, 1.0f);"))
            functions.give(part.nodes[0], names[0], finish=False)
        if pairs:
            lines.append(f"places.add(of_channels, {functions.adding(step, 'state', head, seconds=True)});")
        for part in pairs:
            if part.kind == "softmax":
                top, total = (f"state.{member.name}" for member in part.members)
                lines.append(_for_each(f"{total} = {top} == -CUDART_INF_F ? 0.0f : {total};"))
        return functions.text("in_parts", places, [*lines, "places.keep(of_channels);"])

    def merged(self, schedule: Schedule, place: Place, step: Step) -> tuple[str, str]:
        """The kernel that merges the states of each row, and stores the last node."""
        assert step.buffer is not None  # noqa: S101 - of parts
        schedule.include(ROWS)
        threads = min(power_of_two(schedule.estimate(step.buffer.extents[-2:-1])), 32)
        values = {"THREADS": threads, "ROWS": 256 // threads}
        names = {word: schedule.macro(word, value) for word, value in values.items()}
        schedule.require(f"{names['THREADS']} * {names['ROWS']} <= 1024 && 32 % {names['THREADS']} == 0")
        names |= {"PARTS": step.count, "ITEMS": "1", "VECTOR": "1", "RESIDENT": "1"}
        name = schedule.fresh("merged_rows")
        last = partial(_Merging.last, name=name, steps=[replace(step, count="parts")], merged=False)
        return _Merging.made(self.group, schedule, place, names, last, several=True, counted=[step.buffer])


def by_header(text: str, schedule: Schedule, nodes: Iterable[Node]) -> str:
    """C++ with the header's functions in place of CUDA's, as a macro says, if a convolution is among the nodes."""
    if not _SLOW.search(text) or not any(each.target is torch.ops.aten.convolution.default for each in nodes):
        return text
    schedule.include(HEADER)
    return _SLOW.sub(rf"convolutions::\1<{schedule.macro('MATH', 1)}>(", text)


def _held(held: Node, group: RowGroup, traced: Traced) -> Iterator[Node]:
    for number, node in enumerate(group.reductions):
        source = tensors(node)[0]
        if follower_of(held, [source, group.nodes[-1]], traced, group.reductions[:number]) is source:
            yield source
            held = source


def _for_each(statement: str) -> str:
    return f"for (auto& state : of_channels.of) {{ {statement} }}"


class _Merging(RowWriter):
    """A kernel of rows that were reduced in parts elsewhere."""

    def _count_tiles(self) -> None:
        self.body.line(f"const int parts = {self._names['PARTS']};")


class _Functions:
    """The functions of an epilogue, which all have the same arguments."""

    def __init__(self, epilogue: Epilogue, schedule: Schedule, place: Place) -> None:
        schedule.include(ROWS)
        held = schedule.place("", epilogue.held)
        self._epilogue, self._schedule, self._place = epilogue, schedule, place
        self._kind = "long long" if any(map(schedule.is_large, (held, place))) else "int"
        self._extents = held.extents
        self._held = epilogue.held
        self.names = [schedule.body(place).fresh(each) for each in _WORDS]
        self._given: dict[Node, Given] = {epilogue.held: lambda _body, _index: self.names[-1]}
        self._reads: dict[str, Place] = {}

    def give(self, node: Node, text: str, *, finish: bool) -> None:
        """Say what a reduction is, before it is finished or as it is."""
        self._given[node] = lambda body, _index: finished(body, node, text) if finish else text

    def written(
        self, write: Callable[[Body, Index], None], before: str = "", words: Sequence[str] = _WORDS
    ) -> str:
        """A function, of which `write` writes the statements for an element's index in the group's space."""
        body = self._schedule.body(self._place, self._kind, self._given, depth=4)
        for each in _WORDS:
            body.fresh(each)
        index = (*self.names[1:3], *self.names[8 - len(self._extents) : 6])
        write(body, tuple(each for each, e in zip(index, self._extents, strict=True) if e != ONE))
        self._reads.update(body.reads)
        names = (self.names[_WORDS.index(word)] for word in words)
        kind = "float&" if before else "float"
        head = ", ".join(
            f"{kind if word == 'value' else 'int'} {name}" for word, name in zip(words, names, strict=True)
        )
        # Divide once for a place.
        text = re.sub(r" / (\(of_places\w*\.of\[\w+\]\.\w+\))", r" / Divisor\1", body.text())
        return f"[&]({before}{head}) {{\n{text}\n            }}"

    def adding(
        self, step: Step, state: str, before: str, *, seconds: bool = False, holds: bool = False
    ) -> str:
        """The function that adds an element to a state: to its reductions, or the second ones of pairs.

        If it `holds` what it adds, and nothing else will be needed, that becomes the element.
        """
        space = self._epilogue.group.space
        source = tensors(step.parts[0].nodes[0])[0]
        holds = holds and len(step.parts) == 1 and source in self._epilogue.next_held

        def write(body: Body, index: Index) -> None:
            if holds:
                value = body.read(source, element_index(body, space, index, source))
                body.line(f"{self.names[-1]} = {value};")
            for part in step.parts:
                if not seconds or len(part.nodes) > 1:
                    run = [each for each in zip(index, space.extents, space.reduced, strict=True) if each[2]]
                    place = body.flat(tuple(each[0] for each in run), tuple(each[1] for each in run))
                    found = f"{state}.{part.members[seconds].name}"
                    add(body, space, index, part.nodes[seconds], found, place=place, backwards=True)
                    if part.kind == "moments" and not seconds:
                        body.line(f"{state}.{part.members[2].name} += 1.0f;")

        text = self.written(write, before)
        if holds:
            del self._given[self._held]
            self._held = source
            self.give(source, self.names[-1], finish=False)
        return text

    def text(self, call: str, places: str, lines: Sequence[str]) -> Written:
        """The argument of `convolve`, and what it reads."""
        body = "\n".join(f"            {each}" for each in lines)
        reads = {name: each for name, each in self._reads.items() if name != self._place.name}
        return f"convolutions::{call}([&]({places}& places) {{\n{body}\n        }})", list(reads.values())
