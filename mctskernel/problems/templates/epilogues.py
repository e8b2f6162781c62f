"""Reductions in the epilogues of convolutions, whose states, and how two are merged, are those of kernels of rows.

A block that has all channels of its places reduces those. Of the places of an image, or of all, it has some: it stores
the states of their elements, and a second kernel merges them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import ROWS, Body, Given, Index, Place, numbers
from mctskernel.problems.plain_cuda.element_types import converted, stored, stored_type
from mctskernel.problems.plain_cuda.extents import ONE, in_cpp, product, same
from mctskernel.problems.plain_cuda.reductions import finished
from mctskernel.problems.plain_cuda.rules import is_tensor, tensors
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.plain_cuda.tracing import Traced
from mctskernel.problems.templates.row_geometry import power_of_two
from mctskernel.problems.templates.row_kernels import RowGroup, RowWriter
from mctskernel.problems.templates.row_space import element_index, extents_of, row_index, run_of, stripped
from mctskernel.problems.templates.row_steps import Step, add, pair, steps_of, with_parts
from mctskernel.problems.templates.tiles import follower_of

HEADER = "convolutions.cuh"

MANY = 256
"""Parts of a row up to which a warp merges them."""

_FUNCTION, _DIVISOR = re.compile(r"\b(exp|log|log1p|tanh|erf)f\("), re.compile(r"/ ([\d.]+f)\b")
_GELU = re.compile(r"0\.5f \* (\S+|\(.+?\)) \* \(1\.0f \+ erff\(\1 \* 0\.7071067811865476f\)\)")
_WORDS = ("number", "image", "channel", "depth", "row", "column", "value")

Written = tuple[str, list[Place]]
"""An argument of a kernel's call, and the buffers that it reads."""


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does with the elements of the `held` node: the group that is computed of them.

    Its rows are the channels of a place; or in `parts` the places of so many `channels` of an image, or of one channel
    of all images. What is held may be `stored` for others.
    """

    group: RowGroup
    held: Node
    parts: bool
    channels: sympy.Expr = ONE
    by_image: bool = False
    stored: bool = False
    next_held: tuple[Node, ...] = ()
    """Nodes that are held from when they are reduced on, as what was held before is needed no more."""

    @staticmethod
    def of(leaf: Node, held: Node, group: RowGroup, traced: Traced, *, shared: bool) -> Epilogue | None:
        """The epilogue of a group of a convolution's results, of which a leaf may be shared, if its rows are such."""
        extents = extents_of(held, traced)
        found = _reduced(group, extents, leaf)
        if found is None or leaf not in group.leaves or numbers(held) is not torch.float32:
            return None
        gone, channels = found
        if gone == {1}:
            next_held = tuple(_held(held, group, traced))
            return None if shared else Epilogue(group, held, parts=False, next_held=next_held)
        whole = same(product(extents), product(extents_of(group.nodes[-1], traced)))
        once = len(group.reductions) == 1 or (len(group.reductions) == 2 and pair(*group.reductions))
        spatial = {axis for axis, extent in enumerate(extents) if axis > 1 and extent != ONE}
        if not once or not spatial or gone - {0, 1} != spatial or gone >= {0, 1} or (whole and 0 not in gone):
            return None
        stored = whole or shared
        held = leaf if stored or channels not in {ONE, extents[1]} else held
        return Epilogue(group, held, parts=True, channels=channels, by_image=0 not in gone, stored=stored)

    def step(self, schedule: Schedule, count: sympy.Expr) -> Step:
        """The reductions of which blocks store so many states for each channel of an image."""
        (step,) = steps_of(self.group, schedule, merged=True, parts="")
        count *= self.channels
        return with_parts(step, schedule, self.group.space, count, f"({in_cpp(count)})")

    def of_channels(self, schedule: Schedule, place: Place, geometry: str) -> Written:
        """What reduces the channels of a place, and stores the last node."""
        functions, last, space = _Functions(self, schedule, place), self.group.nodes[-1], self.group.space
        passes, before, lines = 0, "0", []
        for passes, step in enumerate(steps_of(self.group, schedule, merged=False, parts=""), 1):
            schedule.define(step.definition())
            states = schedule.fresh("of_places")
            text = functions.adding(step, "state", f"{step.struct}& state, ", _WORDS, holds=True)
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
        kind = f"convolutions::PlacesOf<{geometry}, {stored_type(place.dtype)}>"
        return functions.text(f"reducing<{passes + whole}, {before}>", kind, lines)

    def of_places(self, schedule: Schedule, step: Step, geometry: str, sums: str, index: str) -> Written:
        """What reduces the places of a channel, and keeps the states, given how sums are computed and stored in C++."""
        assert step.buffer is not None  # noqa: S101 - of parts
        functions = _Functions(self, schedule, step.buffer)
        schedule.define(step.definition())
        pairs = [part for part in step.parts if len(part.nodes) > 1]
        head, each = f"{step.struct}& state, ", "for (auto& state : of_channels.of)"
        lines = [f"auto of_channels = places.begun({step.struct}{step.starts});"]
        lines.append(f"places.add(of_channels, {functions.adding(step, 'state', head, _WORDS[1:])});")
        for part in pairs:
            names = [f"state.{member.name}" for member in part.members]
            if part.kind == "moments":
                lines.append(f"{each} {{ {names[0]} /= fmaxf({names[2]}, 1.0f); }}")
            functions.give(part.nodes[0], names[0], finish=False)
        if pairs:
            seconds = functions.adding(step, "state", head, _WORDS[1:], seconds=True)
            lines.append(f"places.add(of_channels, {seconds});")
        for part in pairs:
            if part.kind == "softmax":
                top, total = (f"state.{member.name}" for member in part.members)
                lines.append(f"{each} {{ {total} = {top} == -CUDART_INF_F ? 0.0f : {total}; }}")
        count = f"{step.count} / ({in_cpp(self.channels)})"
        lines.append(f"places.keep(of_channels, {schedule.parameter(step.buffer.name)}, {count});")
        is_placed = functions.is_placed or _is_placed(sums, functions.names[1:])
        placed = str(is_placed).lower()
        kind = f"convolutions::RowSumsOf<{placed}, {geometry}>"
        return functions.text(f"in_parts<{placed}>", kind, lines, index if self.stored else "")

    def merged(self, schedule: Schedule, place: Place, step: Step) -> Iterator[tuple[str, str]]:
        """The kernel that merges the states of each row, and stores the last node or leaves that to another one."""
        assert step.buffer is not None  # noqa: S101 - of parts
        schedule.include(ROWS)
        self.group.store_beside(schedule)
        count = power_of_two(schedule.estimate(step.buffer.extents[-2:-1]))
        threads = min(count, 32) if count <= MANY else min(count // 8, 1024)
        values = {"THREADS": threads, "ROWS": max(256 // threads, 1)}
        names = {word: schedule.macro(word, value) for word, value in values.items()}
        schedule.require(f"{names['THREADS']} * {names['ROWS']} <= 1024 && 1024 % {names['THREADS']} == 0")
        names |= {"PARTS": step.count, "ITEMS": "1", "VECTOR": "1", "RESIDENT": "1"}
        name, own = schedule.fresh("merged_rows"), replace(step, count="parts")
        whole = self.group.is_whole(schedule)
        for index_type in ("int", "long long"):
            writer = _Merging(self.group, schedule, place, names, index_type=index_type, several=True)
            made = writer.merged(name, own) if whole else writer.last(name, [own], merged=False)
            if not any(map(schedule.is_large, (*writer.body.used, step.buffer))):
                break
        yield made
        if whole:
            yield self.group.of_merged(schedule, place, step)


def _reduced(
    group: RowGroup, extents: Sequence[sympy.Expr], leaf: Node
) -> tuple[set[int], sympy.Expr] | None:
    """The axes that a group reduces of a leaf, and how many channels each row has; None where rows are others.

    Channels, in groups or not, may share an axis of the group's space with others; its reductions are of the leaf then.
    """
    space = group.space
    axes = [axis for axis, extent in enumerate(extents) if extent != ONE]
    if space.extents == tuple(extents[axis] for axis in axes):
        gone = {axis for axis, reduced in zip(axes, space.reduced, strict=True) if reduced}
        return gone, extents[1] if 1 in gone else ONE
    if space.strided or run_of(space)[0] or stripped(tensors(group.reductions[0])[0]) is not leaf:
        return None
    count, first = product(extents[:2]), run_of(space)[1][0]
    channels = next((each for each in (ONE, first) if same(product(space.rows) * each, count)), None)
    return None if channels is None else ({axis for axis in axes if axis > 1}, channels)


def _is_placed(text: str, names: Sequence[str]) -> bool:
    """Whether C++ uses the names of where a value is, but for its channel, which is the second of them."""
    words = {*re.findall(r"\w+", text)}
    return not words.isdisjoint({names[0], *names[2:5]})


def by_header(text: str, schedule: Schedule, nodes: Iterable[Node]) -> str:
    """C++ with the header's functions in place of CUDA's, as a macro says, if a convolution is among the nodes."""
    is_slow = _FUNCTION.search(text) or _DIVISOR.search(text)
    if not is_slow or not any(each.target is torch.ops.aten.convolution.default for each in nodes):
        return text
    schedule.include(HEADER)
    math = schedule.macro("MATH", 1)
    text = _GELU.sub(rf"convolutions::gelu<{math}>(\1)", text)
    text = _FUNCTION.sub(rf"convolutions::\1<{math}>(", text)
    return _DIVISOR.sub(rf"/ convolutions::divisor<{math}>(\1)", text)


def _held(held: Node, group: RowGroup, traced: Traced) -> Iterator[Node]:
    for number, node in enumerate(group.reductions):
        source = tensors(node)[0]
        if follower_of(held, [source, group.nodes[-1]], traced, group.reductions[:number]) is source:
            yield source
            held = source


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
        self.is_placed = False
        """Whether any of them needs to know where a value is, but for its channel."""
        self._is_split = epilogue.group.space.extents != tuple(each for each in held.extents if each != ONE)
        if self._is_split:
            nodes = filter(is_tensor, epilogue.held.graph.nodes)
            views = (each for each in nodes if stripped(each) is epilogue.held)
            self._given |= dict.fromkeys(views, self._given[epilogue.held])

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
        at = tuple(each for each, e in zip(index, self._extents, strict=True) if e != ONE)
        # Where channels are in groups, only the elements themselves are reduced.
        write(body, ("0",) * len(self._epilogue.group.space.extents) if self._is_split else at)
        self._reads.update(body.reads)
        self.is_placed |= _is_placed(body.text(), self.names[1:])
        names = (self.names[_WORDS.index(word)] for word in words)
        kind = "float&" if before else "float"
        head = ", ".join(
            f"{kind if word == 'value' else 'int'} {name}" for word, name in zip(words, names, strict=True)
        )
        # Divide once for a place.
        text = re.sub(r" / (\(of_places\w*\.of\[\w+\]\.\w+\))", r" / Divisor\1", body.text())
        return f"[&]({before}{head}) {{\n{text}\n            }}"

    def adding(
        self,
        step: Step,
        state: str,
        before: str,
        words: Sequence[str],
        *,
        seconds: bool = False,
        holds: bool = False,
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

        text = self.written(write, before, words)
        if holds:
            del self._given[self._held]
            self._held = source
            self.give(source, self.names[-1], finish=False)
        return text

    def text(self, call: str, places: str, lines: Sequence[str], index: str = "") -> Written:
        """The argument of `convolve`, and what it reads."""
        body = "\n".join(f"            {each}" for each in lines)
        reads = {name: each for name, each in self._reads.items() if name != self._place.name}
        last = f",\n        {index})" if index else ")"
        return f"convolutions::{call}([&]({places}& places) {{\n{body}\n        }}{last}", list(
            reads.values()
        )
