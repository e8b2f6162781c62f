"""Stencils in vectors: a thread computes neighbouring cells, and loads what they share of each line once.

Cells at the border are computed otherwise, so a thread takes vectors only where none of its cells is one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import ALIGNED, ELEMENT_BYTES, Vector, lanes_for, width_text
from mctskernel.edits.indexing import (
    always_happens,
    code,
    condition_of,
    distinct_arguments,
    guarded,
    inlined,
    replace_names,
)
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names, indented
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.coarsening import CoveredIndex, covered_indices
from mctskernel.edits.rules.vector_elements import (
    Lanes,
    bare,
    factor,
    for_lane,
    is_bound_only,
    with_fewer_blocks,
)
from mctskernel.edits.syntax import (
    Access,
    Function,
    Replacement,
    accesses,
    assigned_names,
    calls,
    fresh_name,
    has,
    identifiers,
    indentation,
    names_in_scope,
    swap,
    text_of,
    within,
)


@dataclass(frozen=True)
class Line:
    """Elements of an array around a cell: `index` is the text of the cell's own, `uses` are accesses with offsets."""

    array: str
    type: str
    index: str
    uses: tuple[tuple[Access, int], ...]

    @property
    def written(self) -> bool:
        """Whether the line is one of results."""
        return any(access.writes for access, _ in self.uses)

    def beyond(self, lanes: int) -> list[int]:
        """The places, counted from the first of so many cells, that are read beside those of the cells themselves."""
        places = {lane + offset for lane in range(lanes) for _, offset in self.uses}
        return sorted(place for place in places if not 0 <= place < lanes)


@dataclass(frozen=True)
class Stencil:
    """A kernel that computes a cell a thread: as `inner` says where `border` doesn't hold, and else otherwise."""

    cell: CoveredIndex
    statements: tuple[Node, ...]
    border: str
    inner: tuple[Node, ...]
    lines: tuple[Line, ...]


@rule(
    Category.VECTORIZATION,
    1.2,
    "dram_bandwidth l1_throughput global_latency instruction_issue integer_pipe",
)
def float4_stencils(context: Context) -> Iterable[Proposal]:
    for found in covered_indices(context):
        stencil = _stencil(found)
        if stencil is None:
            continue
        lanes = lanes_for(line.type for line in stencil.lines)
        kind = width_text(line.type for line in stencil.lines)
        arrays = ", ".join(dict.fromkeys(line.array for line in stencil.lines))
        yield Proposal(
            f"vectorize {arrays} ({kind}), {lanes} outputs per thread{context.where(found.function.name)}",
            _widened(context, stencil, lanes),
            rationale=(
                f"Neighbouring cells read mostly the same elements: {lanes} of them in one thread load each line as a "
                "16-byte vector and what lies beside it."
            ),
            expected_effect="Several times fewer loads for each cell, and more bytes in flight.",
        )


def _stencil(found: CoveredIndex) -> Stencil | None:
    function, name = found.function, found.index.name
    body = guarded(function)
    if found.axis != "x" or not distinct_arguments(found.launch):
        return None
    if body is None or not is_bound_only(found, body.prologue):
        return None
    *before, last = [node for node in body.statements if node.type != "preproc_call"]
    border, alternative = condition_of(last), last.child_by_field_name("alternative")
    if last.type != "if_statement" or border is None or alternative is None or not _is_pure(border):
        return None
    if any(node.type != "declaration" or accesses(node) or not _is_pure(node) for node in before):
        return None
    known = {
        n: v for n, v in definitions(function).items() if any(within(v, node) for node in body.statements)
    }
    kept = frozenset(identifiers(function.node) - known.keys())
    condition, consequence = inlined(border, known, kept), last.child_by_field_name("consequence")
    for holds, branch in (
        (condition, alternative.named_children[-1]),
        (f"!({condition})", consequence),
    ):
        inner = tuple(code(branch)) if branch is not None else ()
        lines = _lines(function, name, inner, known, kept)
        if condition is None or holds is None or not any(line.beyond(1) for line in lines):
            continue
        results = {line.array for line in lines if line.written}
        if len(results) == 1 and not any(a.reads for a in function.accesses if a.array in results):
            return Stencil(found, tuple(body.statements), holds, inner, lines)
    return None


def _is_pure(node: Node) -> bool:
    """Whether evaluating something reads no memory and changes nothing."""
    changes = "assignment_expression", "update_expression", "pointer_expression", "cast_expression"
    return not accesses(node) and not calls(node) and not has(node, *changes)


def _lines(
    function: Function, cell: str, inner: Sequence[Node], known: Mapping[str, Node], kept: frozenset[str]
) -> tuple[Line, ...]:
    """The lines that the inner cells read and write; none if an access is anything else."""
    found: dict[tuple[str, str], list[tuple[Access, int]]] = {}
    assigned = assigned_names(function.body)
    for access in (access for node in inner for access in accesses(node)):
        parameter = function.parameter(access.array)
        if parameter is None or parameter.type not in ELEMENT_BYTES or len(access.indices) != 1:
            return ()
        index = polynomial(access.indices[0], known)
        step, offset = index.coefficient(cell), index.terms.get((), 0)
        if step is None or step.constant != 1 or index.names & assigned.keys():
            return ()
        if not any(within(access.node, node) and always_happens(access.node, node) for node in inner):
            return ()
        line = str(dataclasses.replace(index, terms={m: f for m, f in index.terms.items() if m}))
        found.setdefault((access.array, line), []).append((access, offset))
    lines = []
    for (array, _), uses in found.items():
        own = [access for access, offset in uses if offset == 0]
        text = inlined(own[0].indices[0], known, kept) if own else None
        parameter = function.parameter(array)
        reads, writes = any(a.reads for a, _ in uses), any(a.writes for a, _ in uses)
        if text is None or parameter is None or (writes and (reads or len(own) != len(uses))):
            return ()
        lines.append(Line(array, parameter.type, bare(text), tuple(uses)))
    return tuple(lines)


def _widened(context: Context, stencil: Stencil, lanes: int) -> str:
    found, source = stencil.cell, context.source
    function, cell = found.function, found.index.name
    aligned = fresh_name(source, "is_aligned")
    lane, *names = fresh_names(
        names_in_scope(source, function), "lane", *(f"{line.array}_line" for line in stencil.lines)
    )
    left = f"{factor(text_of(found.bound))} - {cell}"
    conditions, loads, stores = [f"{left} >= {lanes}"], list[str](), list[str]()
    conditions += [
        f"!({replace_names(stencil.border, {cell: f'{cell} + {number}'} if number else {})})"
        for number in range(lanes)
    ]
    moved = []
    for line, name in zip(stencil.lines, names, strict=True):
        vector = Vector(line.type, lanes, f"{name} + {lanes}", f"&{line.array}[{line.index}]")
        conditions.append(f"{aligned}({vector.address})")
        loads.append(f"alignas(16) {line.type} {name}[3 * {lanes}];")
        if line.written:
            stores += vector.stores
        else:
            loads += vector.loads
            loads += [
                f"{name}[{lanes + place}] = {line.array}[{line.index} {'+' if place > 0 else '-'} {abs(place)}];"
                for place in line.beyond(lanes)
            ]
        moved += [swap(access.node, f"{name}[{lane} + {lanes + offset}]") for access, offset in line.uses]
    each = Lanes(lane, lanes, left)
    before = [node for node in stencil.statements[:-1] if node.type == "declaration"]
    lines = [
        *_joined("if (", conditions, ") {"),
        *indented(
            [
                *loads,
                *each.all_of(for_lane(context, cell, lane, [*before, *stencil.inner], moved)),
                *stores,
            ]
        ),
        "} else {",
        *indented(each.those_left(for_lane(context, cell, lane, stencil.statements, []))),
        "}",
    ]
    margin = indentation(source, stencil.statements[0])
    span = stencil.statements[0].start_byte, stencil.statements[-1].end_byte
    changes = [
        swap(found.value, f"{lanes} * ({text_of(found.value)})"),
        Replacement(*span, f"\n{margin}".join(lines)),
    ]
    plan = with_fewer_blocks(context, found, lanes)
    return apply(
        context, Rewrite(function, plan=plan, functions=[ALIGNED.format(name=aligned)], more=changes)
    )


def _joined(opening: str, conditions: Sequence[str], closing: str) -> list[str]:
    """Conditions that must all hold, a line each."""
    lines = [f"{opening}{conditions[0]}", *(f"    && {condition}" for condition in conditions[1:])]
    return [*lines[:-1], f"{lines[-1]}{closing}"]
