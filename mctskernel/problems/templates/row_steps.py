"""The reductions of rows in passes: their states, and how two of those are merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy
import torch
from torch.fx import Node

from mctskernel.problems.plain_cuda.body import Body, Index, Place, node_type, numbers
from mctskernel.problems.plain_cuda.element_types import computed_type, converted, highest, literal, lowest
from mctskernel.problems.plain_cuda.reductions import REDUCTIONS, accumulated, start_of
from mctskernel.problems.plain_cuda.rules import argument, base_name, behind, tensors
from mctskernel.problems.plain_cuda.schedule import Schedule
from mctskernel.problems.templates.row_loops import LARGE
from mctskernel.problems.templates.row_space import PLACES, Reductions, Space, element_index, run_of, stripped


@dataclass(frozen=True)
class Member:
    """A number in the state of a reduction."""

    kind: str
    name: str
    start: str


@dataclass(frozen=True)
class Part:
    """One reduction, or a pair of reductions in one pass (`rows.pair`), and its members of the state."""

    nodes: tuple[Node, ...]
    kind: str
    members: tuple[Member, ...]

    def merge(self) -> str:
        """The statement that adds the state `other` to `into`."""
        names = [member.name for member in self.members]
        if not self.kind:
            return added(self.nodes[0], f"into.{names[0]}", f"other.{names[0]}")
        order = f"<{_is_largest(self.nodes[0])}>" if self.kind == "place" else ""
        both = ", ".join(f"{state}.{name}" for state in ("into", "other") for name in names)
        return f"merge_{self.kind}{order}({both});"


def added(node: Node, into: str, value: str) -> str:
    """The statement that adds a value to an accumulator of a reduction."""
    statement = REDUCTIONS[base_name(node)][0]
    function = {"ma": "larger", "mi": "smaller"}.get(base_name(node).removeprefix("a")[:2], "")
    if function and computed_type(accumulated(node)) == "float":
        return f"{into} = {function}({into}, {value});"
    return statement.format(into, value)


def add(
    body: Body, space: Space, index: Index, node: Node, found: str, *, place: str, backwards: bool
) -> None:
    """Add the element at an index of a space, and at a `place` of its row, to a reduction's first member `found`."""
    source = tensors(node)[0]
    value = body.read(source, element_index(body, space, index, source))
    if base_name(node) in PLACES:
        value = body.let(node_type(source), "value", value)
        best = found, found.removesuffix("best") + "place"
        body.line(
            f"add_place<{_is_largest(node)}, {str(backwards).lower()}>({', '.join(best)}, {value}, {place});"
        )
        return
    dtype = accumulated(node)
    value = body.let(computed_type(dtype), "value", converted(value, numbers(source), dtype))
    body.line(added(node, found, value))


@dataclass(frozen=True)
class Step:
    """Reductions that one pass computes, with the struct of their states, and the buffer of its parts if split."""

    struct: str
    parts: tuple[Part, ...]
    buffer: Place | None = None
    count: str = ""
    """The macro that says how many parts a row has at most."""

    @property
    def members(self) -> tuple[Member, ...]:
        """All members of the state."""
        return tuple(member for part in self.parts for member in part.members)

    @property
    def starts(self) -> str:
        """The initial values of the state."""
        return "{" + ", ".join(member.start for member in self.members) + "}"

    def definition(self) -> str:
        """The struct, and the function that merges two."""
        members = "".join(f"    {each.kind} {each.name};\n" for each in self.members)
        lines = "".join(f"    {part.merge()}\n" for part in self.parts)
        return (
            f"struct {self.struct} {{\n{members}}};\n\n"
            f"__device__ __forceinline__ void merge({self.struct}& into, const {self.struct}& other) {{\n{lines}}}"
        )


def steps_of(group: Reductions, schedule: Schedule, *, merged: bool, parts: str) -> Iterator[Step]:
    """The reductions in passes: each needs only those before it, except for pairs where `merged`."""
    levels: dict[Node, int] = {}
    for node in group.reductions:
        levels[node] = 1 + max((levels[each] for each in levels if depends_on(node, each)), default=-1)
    ranks = [[n for n in levels if levels[n] == rank] for rank in range(max(levels.values()) + 1)]
    while ranks:
        now, after = ranks[0], ranks[1] if len(ranks) > 1 else []
        pairs = {second: next((f for f in now if pair(f, second)), None) for second in after}
        if not merged or not after or None in pairs.values() or len(set(pairs.values())) < len(after):
            chosen: list[tuple[Node, ...]] = [(node,) for node in now]
            ranks = ranks[1:]
        else:
            seconds = {first: second for second, first in pairs.items()}
            chosen = [(node, seconds[node]) if node in seconds else (node,) for node in now]
            ranks = ranks[2:]
        taken: set[str] = set()
        large = schedule.estimate(run_of(group.space)[1]) >= LARGE
        made = tuple(_part(nodes, taken, "long long" if large else "int") for nodes in chosen)
        step = Step(
            schedule.fresh("".join(base_name(n).capitalize() for nodes in chosen for n in nodes)), made
        )
        yield with_parts(step, schedule, group.space, sympy.Symbol(parts), parts) if parts else step


def with_parts(
    step: Step, schedule: Schedule, space: Space, count: sympy.Expr, parts: str, *, packets: bool = False
) -> Step:
    """A step with a buffer for so many states of each row, a number that is `parts` in C++.

    In `packets`, each word has a mark beside it, zero at first.
    """
    words = sum(2 if m.kind in {"double", "long long"} else 1 for m in step.members)
    if any(m.kind in {"double", "long long"} for m in step.members):
        words += words % 2
    extents = (*space.rows, count, sympy.Integer(words * (1 + packets)))
    buffer = Place(schedule.fresh(f"{step.parts[0].nodes[0].name}_parts"), torch.int32, extents)
    schedule.add_scratch(buffer, zero=packets)
    return Step(step.struct, step.parts, buffer, parts)


def _part(nodes: tuple[Node, ...], taken: set[str], place_type: str) -> Part:
    kind = pair(*nodes) if len(nodes) > 1 else ""

    def member(node: Node, name: str = "", start: str = "") -> Member:
        name = found = name or base_name(node)
        number = 1
        while found in taken:
            number += 1
            found = f"{name}{number}"
        taken.add(found)
        type_ = computed_type(accumulated(node))
        return Member("int" if type_ == "bool" else type_, found, start or start_of(node))

    if base_name(nodes[0]) in PLACES:
        (node,) = nodes
        dtype = numbers(tensors(node)[0])
        ends = lowest(dtype) if base_name(node) == "argmax" else highest(dtype)
        return Part(
            nodes,
            "place",
            (Member(computed_type(dtype), "best", literal(ends, dtype)), Member(place_type, "place", "-1")),
        )
    members = [member(node, "squares" if kind == "moments" and node is nodes[1] else "") for node in nodes]
    if kind == "moments":
        members.append(member(nodes[0], "count", "0.0f"))
    return Part(nodes, kind, tuple(members))


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


def depends_on(node: Node, on: Node) -> bool:
    return on in behind(tensors(node))


def _is_largest(node: Node) -> str:
    """Whether a reduction to a place looks for the largest element, in C++."""
    return "true" if base_name(node) == "argmax" else "false"


def is_exact(part: Part) -> bool:
    """Whether a sum of exponentials is NaN where the maximum is infinite, as exp(inf - inf)."""
    first, second = part.nodes
    return not any(
        node.op == "call_function" and base_name(node) == "where" and depends_on(node, first)
        for node in behind(tensors(second), lambda node: node is first)
    )
