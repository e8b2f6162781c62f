"""Sixteen bytes per access in kernels without a loop: neighbouring elements in one thread.

Cells at the border of a stencil are computed otherwise, so a thread takes vectors only where none of its cells is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import ALIGNED, ELEMENT_BYTES, Vector, lanes_for, width_text
from mctskernel.edits.indexing import always_happens, distinct_arguments, guarded
from mctskernel.edits.rewrite import Rewrite, apply, changed, each, indented, with_launch
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.along import Along, along, step_along
from mctskernel.edits.rules.coarsening import MULTIPROCESSORS, CoveredIndex, covered_indices


@rule(
    Category.VECTORIZATION, 1.2, "dram_bandwidth l1_throughput global_latency instruction_issue integer_pipe"
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
    return not any(node != found.index.node and name in cu.identifiers(node) for node in prologue)


def _neighbours(found: CoveredIndex, statements: Sequence[Node]) -> tuple[Along, ...]:
    """The vectors of the body; none if an access would be neither whole nor independent of the lane."""
    function, index = found.function, found.index.name
    known = {name: value for name, value in definitions(function).items() if name != index}
    groups: dict[tuple[str, str, str | None], list[cu.Access]] = {}
    for access in (access for node in statements for access in cu.accesses(node)):
        parameter = function.parameter(access.array)
        if parameter is None or not parameter.pointer or len(access.indices) != 1:
            return ()
        value = polynomial(access.indices[0], known)
        step = value.coefficient(index)
        movable = parameter.type in ELEMENT_BYTES and _certain(access.node, statements)
        modulus = _modulus(access.indices[0], found, known)
        if step_along(function, access, index, known) is not None:
            groups.setdefault((access.array, str(value), None), []).append(access)
        elif modulus is not None and movable and not access.writes:
            groups.setdefault((access.array, str(value), modulus), []).append(access)
        elif access.writes or (step is not None and step.terms):
            return ()
    local = {d.name for d in function.declarations if any(cu.within(d.node, node) for node in statements)}
    vectors = []
    for (_, _, modulus), group in groups.items():
        found_along = along(function, group, known, local, modulus)
        if found_along is None or not any(_certain(a.node, statements) for a in group):
            return ()
        if found_along.writes and not _is_whole(function, group, statements):
            return ()
        vectors.append(dataclasses.replace(found_along, index=bare(found_along.index)))
    return tuple(vectors)


def _modulus(node: Node, found: CoveredIndex, known: Mapping[str, Node]) -> str | None:
    """The name m where an index is the thread's index modulo m."""
    node = cu.strip_parentheses(node)
    while node.type == "identifier" and cu.text_of(node) in known:
        node = cu.strip_parentheses(known[cu.text_of(node)])
    left, operator, right = cu.operands(node) or (node, "", node)
    if operator != "%":
        return None
    name = cu.text_of(right)
    whole = found.function.parameter(name)
    constant = whole is not None and not whole.pointer and name not in cu.assigned_names(found.function.body)
    return name if constant and str(polynomial(left, known)) == found.index.name else None


def _is_whole(function: cu.Function, group: Sequence[cu.Access], statements: Sequence[Node]) -> bool:
    """Whether an array is written at each lane's index, and touched nowhere else."""
    everywhere = sum(access.array == group[0].array for access in function.accesses)
    return everywhere == len(group) and any(_certain(a.node, statements) for a in group if a.writes)


def _certain(node: Node, statements: Sequence[Node]) -> bool:
    """Whether nothing decides at run time if an access takes place."""
    return any(cu.within(node, statement) and always_happens(node, statement) for statement in statements)


def _widened(
    context: Context, found: CoveredIndex, statements: Sequence[Node], groups: Sequence[Along]
) -> str:
    source, function, index = context.source, found.function, found.index.name
    lanes = lanes_for(group.type for group in groups)
    aligned = cu.fresh_name(source, "is_aligned")
    names = [f"{group.array}_lanes" for group in groups]
    lane, *names = cu.fresh_names(cu.names_in_scope(source, function), "lane", *names)
    left = f"{factor(cu.text_of(found.bound))} - {index}"
    conditions, loads, stores = [f"{left} >= {lanes}"], list[str](), list[str]()
    moved: dict[int, cu.Replacement] = {}
    for group, name in zip(groups, names, strict=True):
        vector = Vector(group.type, lanes, name, f"&{group.array}[{group.index}]")
        if group.modulus is not None:
            conditions.append(f"{group.modulus} % {lanes} == 0")
        conditions.append(f"{aligned}({vector.address})")
        loads += [vector.declaration, *(vector.loads if group.reads else ())]
        stores += vector.stores if group.writes else ()
        moved |= {node.start_byte: cu.swap(node, f"{name}[{lane}]") for node in group.nodes}
    computed = for_lane(context, index, lane, statements, list(moved.values()))
    body = [*loads, *each(lane, str(lanes), *computed), *stores]
    opening = [f"if ({' && '.join(conditions)}) {{"]
    return _split(context, found, statements, (lane, lanes, aligned), opening=opening, body=body)


def _split(
    context: Context,
    found: CoveredIndex,
    statements: Sequence[Node],
    names: tuple[str, int, str],
    *,
    opening: Sequence[str],
    body: Sequence[str],
) -> str:
    """The text with a body for all lanes of a thread under a condition, and else with the statements for those left.

    `names` are that of the lane's number, how many there are, and the function that tells what is aligned.
    """
    lane, lanes, aligned = names
    left = f"{factor(cu.text_of(found.bound))} - {found.index.name}"
    lines = [
        *opening,
        *indented(body),
        "} else {",
        f"    for (int {lane} = 0; {lane} < {lanes} && {lane} < {left}; ++{lane}) {{",
        *indented(for_lane(context, found.index.name, lane, statements, []), 2),
        "    }",
        "}",
    ]
    margin = cu.indentation(context.source, statements[0])
    changes = [
        cu.swap(found.value, f"{lanes} * ({cu.text_of(found.value)})"),
        cu.Replacement(statements[0].start_byte, statements[-1].end_byte, f"\n{margin}".join(lines)),
    ]
    blocks = f"ceil_div({found.count}, {found.planned_block} * {lanes})"
    plan = with_launch(context.plan, found.launch, (blocks, *found.launch.grid[1:]), found.launch.block)
    functions = [ALIGNED.format(name=aligned)]
    return apply(context, Rewrite(found.function, plan=plan, functions=functions, more=changes))


def for_lane(
    context: Context, index: str, lane: str, statements: Sequence[Node], moved: Sequence[cu.Replacement]
) -> list[str]:
    """The statements for one lane: vector accesses through the lanes, other uses of the index moved by it."""
    lines = []
    for statement in statements:
        changes = [change for change in moved if statement.start_byte <= change.start < statement.end_byte]
        changes += [
            cu.swap(node, f"({index} + {lane})")
            for node in cu.walk(statement, "identifier")
            if cu.text_of(node) == index and not any(c.start <= node.start_byte < c.end for c in changes)
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
