"""Sixteen bytes per access in kernels without a loop: neighbouring elements, or cells of a stencil, in one thread.

Cells at the border of a stencil are computed otherwise, so a thread takes vectors only where none of its cells is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import LaunchPlan
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
from mctskernel.edits.rewrite import (
    Rewrite,
    apply,
    changed,
    each,
    fresh_names,
    indented,
    with_launch,
)
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.coarsening import MULTIPROCESSORS, CoveredIndex, covered_indices
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
    operands,
    strip_parentheses,
    swap,
    text_of,
    walk,
    within,
)


@dataclass(frozen=True)
class Neighbours:
    """Accesses of one array at one index, which moves with the thread's; `index` is its text before the body.

    With a `modulus` the index is a remainder, and they are neighbours where that is a multiple of the lanes.
    """

    array: str
    type: str
    index: str
    reads: bool
    writes: bool
    nodes: tuple[Node, ...]
    modulus: str | None


@rule(
    Category.VECTORIZATION,
    1.2,
    "dram_bandwidth l1_throughput global_latency instruction_issue integer_pipe",
)
def float4_elements(context: Context) -> Iterable[Proposal]:
    for found in covered_indices(context):
        launch, function = found.launch, found.function
        if found.axis != "x" or not distinct_arguments(launch):
            continue
        body = guarded(function)
        if body is None or not is_bound_only(found, body.prologue):
            continue
        groups = _neighbours(found, body.statements)
        if not any(group.writes for group in groups):
            continue
        lanes = lanes_for(group.type for group in groups)
        if context.fewest_blocks(launch) < lanes * MULTIPROCESSORS:
            continue
        arrays = ", ".join(dict.fromkeys(group.array for group in groups))
        yield Proposal(
            f"vectorize {arrays} ({width_text(group.type for group in groups)}){context.where(function.name)}",
            _widened(context, found, body.statements, groups),
            rationale=(
                f"Consecutive threads touch consecutive elements; {lanes} of them in one thread take 16-byte "
                "accesses and share the arithmetic on indices."
            ),
            expected_effect=f"Up to {lanes} times fewer loads and stores, and as many times the bytes in flight "
            "for each warp.",
        )


def is_bound_only(found: CoveredIndex, prologue: Sequence[Node]) -> bool:
    """Whether nothing before the guarded statements depends on the index but the guard."""
    name = found.index.name
    return not any(node != found.index.node and name in identifiers(node) for node in prologue)


def _neighbours(found: CoveredIndex, statements: Sequence[Node]) -> tuple[Neighbours, ...]:
    """The vectors of the body; none if an access would be neither whole nor independent of the lane."""
    function, index = found.function, found.index.name
    known = {name: value for name, value in definitions(function).items() if name != index}
    groups: dict[tuple[str, str, str | None], list[Access]] = {}
    for access in (access for node in statements for access in accesses(node)):
        parameter = function.parameter(access.array)
        if parameter is None or not parameter.pointer or len(access.indices) != 1:
            return ()
        value = polynomial(access.indices[0], known)
        step = value.coefficient(index)
        movable = parameter.type in ELEMENT_BYTES and _certain(access.node, statements)
        modulus = _modulus(access.indices[0], found, known)
        if step is not None and step.constant == 1 and parameter.type in ELEMENT_BYTES:
            groups.setdefault((access.array, str(value), None), []).append(access)
        elif modulus is not None and movable and not access.writes:
            groups.setdefault((access.array, str(value), modulus), []).append(access)
        elif access.writes or (step is not None and step.terms):
            return ()
    local = {d.name for d in function.declarations if any(within(d.node, node) for node in statements)}
    keep = frozenset(identifiers(function.node) - local)
    vectors = []
    for (array, _, modulus), group in groups.items():
        text = inlined(group[0].indices[0], {n: v for n, v in known.items() if n in local}, keep)
        parameter = function.parameter(array)
        if text is None or parameter is None or not any(_certain(a.node, statements) for a in group):
            return ()
        writes = [access for access in group if access.writes]
        if writes and not _is_whole(function, group, writes, statements):
            return ()
        reads = any(access.reads for access in group)
        nodes = tuple(access.node for access in group)
        vectors.append(Neighbours(array, parameter.type, bare(text), reads, bool(writes), nodes, modulus))
    return tuple(vectors)


def _modulus(node: Node, found: CoveredIndex, known: Mapping[str, Node]) -> str | None:
    """The name m where an index is the thread's index modulo m."""
    node = strip_parentheses(node)
    while node.type == "identifier" and text_of(node) in known:
        node = strip_parentheses(known[text_of(node)])
    left, operator, right = operands(node) or (node, "", node)
    if operator != "%":
        return None
    name = text_of(right)
    whole = found.function.parameter(name)
    constant = whole is not None and not whole.pointer and name not in assigned_names(found.function.body)
    return name if constant and str(polynomial(left, known)) == found.index.name else None


def _is_whole(
    function: Function, group: Sequence[Access], writes: Sequence[Access], statements: Sequence[Node]
) -> bool:
    """Whether an array is written at each lane's index, and touched nowhere else."""
    everywhere = sum(access.array == group[0].array for access in function.accesses)
    return everywhere == len(group) and any(_certain(access.node, statements) for access in writes)


def _certain(node: Node, statements: Sequence[Node]) -> bool:
    """Whether nothing decides at run time if an access takes place."""
    return any(within(node, statement) and always_happens(node, statement) for statement in statements)


def _widened(
    context: Context, found: CoveredIndex, statements: Sequence[Node], groups: Sequence[Neighbours]
) -> str:
    source, function, index = context.source, found.function, found.index.name
    lanes = lanes_for(group.type for group in groups)
    aligned = fresh_name(source, "is_aligned")
    names = [f"{group.array}_lanes" for group in groups]
    lane, *names = fresh_names(names_in_scope(source, function), "lane", *names)
    left = f"{factor(text_of(found.bound))} - {index}"
    conditions, loads, stores = [f"{left} >= {lanes}"], list[str](), list[str]()
    moved: dict[int, Replacement] = {}
    for group, name in zip(groups, names, strict=True):
        vector = Vector(group.type, lanes, name, f"&{group.array}[{group.index}]")
        if group.modulus is not None:
            conditions.append(f"{group.modulus} % {lanes} == 0")
        conditions.append(f"{aligned}({vector.address})")
        loads += [vector.declaration, *(vector.loads if group.reads else ())]
        stores += vector.stores if group.writes else ()
        moved |= {node.start_byte: swap(node, f"{name}[{lane}]") for node in group.nodes}
    whole = " && ".join(conditions)
    each = Lanes(lane, lanes, left)
    lines = [
        f"if ({whole}) {{",
        *indented(
            [*loads, *each.all_of(for_lane(context, index, lane, statements, list(moved.values()))), *stores]
        ),
        "} else {",
        *indented(each.those_left(for_lane(context, index, lane, statements, []))),
        "}",
    ]
    margin = indentation(source, statements[0])
    changes = [
        swap(found.value, f"{lanes} * ({text_of(found.value)})"),
        Replacement(statements[0].start_byte, statements[-1].end_byte, f"\n{margin}".join(lines)),
    ]
    plan = with_fewer_blocks(context, found, lanes)
    return apply(
        context,
        Rewrite(function, plan=plan, functions=[ALIGNED.format(name=aligned)], more=changes),
    )


@dataclass(frozen=True)
class Lanes:
    """Neighbours that one thread computes: the variable that counts them, how many, and in code how many are left."""

    variable: str
    count: int
    left: str

    def all_of(self, body: Sequence[str]) -> list[str]:
        """A loop over all of them."""
        return each(self.variable, str(self.count), *body)

    def those_left(self, body: Sequence[str]) -> list[str]:
        """A loop over those that there are."""
        condition = f"{self.variable} < {self.count} && {self.variable} < {self.left}"
        return [f"for (int {self.variable} = 0; {condition}; ++{self.variable}) {{", *indented(body), "}"]


def with_fewer_blocks(context: Context, found: CoveredIndex, lanes: int) -> LaunchPlan:
    """The plan of a kernel whose threads compute so many neighbours along x."""
    blocks = f"ceil_div({found.count}, {found.planned_block} * {lanes})"
    return with_launch(context.plan, found.launch, (blocks, *found.launch.grid[1:]), found.launch.block)


def for_lane(
    context: Context, index: str, lane: str, statements: Sequence[Node], moved: Sequence[Replacement]
) -> list[str]:
    """The statements for one lane: vector accesses through the lanes, other uses of the index moved by it."""
    lines = []
    for statement in statements:
        changes = [change for change in moved if statement.start_byte <= change.start < statement.end_byte]
        changes += [
            swap(node, f"({index} + {lane})")
            for node in walk(statement, "identifier")
            if text_of(node) == index and not any(c.start <= node.start_byte < c.end for c in changes)
        ]
        moved_index = f"{index} + {lane}"
        lines += [
            line.replace(f"[({moved_index})]", f"[{moved_index}]")
            for line in changed(context.source, statement, changes)
        ]
    return lines


def bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    inner = text[1:-1]
    depth = 0
    for character in inner:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return text
    return inner if text.startswith("(") and text.endswith(")") else text


def factor(text: str) -> str:
    """A text as a factor: in parentheses unless it is a name, a number or `blockDim.x` and its kin."""
    return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"


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
            _widened_stencil(context, stencil, lanes),
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


def _widened_stencil(context: Context, stencil: Stencil, lanes: int) -> str:
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
