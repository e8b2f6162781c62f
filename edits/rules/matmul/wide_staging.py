"""Float4 accesses where a block fills tiles from global memory and where a thread stores its outputs.

Recognised are cooperative loops that split a flat index (`r = i / W; q = i % W`) and copy one guarded element,
and loops that store consecutive registers. Each keeps its scalar form for sizes that aren't multiples of 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.affine import Polynomial, definitions, polynomial
from mctskernel.edits.indexing import code, condition_of, replace_names
from mctskernel.edits.rewrite import dedented, fresh_names, indented, only_launches
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.matmul.wide_forms import Wide, with_wide_loops
from mctskernel.edits.syntax import (
    Access,
    Function,
    Loop,
    accesses,
    enclosing,
    identifiers,
    names_in_scope,
    strip_parentheses,
    text_of,
    walk,
)


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        if len(set(map(str, launch.args))) != len(launch.args):
            continue
        known = definitions(function)
        found = [
            wide
            for loop in function.loops
            for wide in [_fill(context, function, loop, known) or _drain(context, function, loop, known)]
            if wide is not None
            and enclosing(loop.node, "else_clause") is None  # the scalar form of a wide one
        ]
        if not found:
            continue
        buffers = " and ".join(dict.fromkeys(wide.buffer for wide in found))
        yield edit(
            Category.VECTORIZATION,
            f"move {buffers} of {function.name} as float4",
            with_wide_loops(context, launch, function, found),
            rationale=(
                "A block moves whole tiles of consecutive elements; 16 bytes an access take a quarter of the "
                "instructions."
            ),
            expected_effect="4 times fewer global loads and stores.",
        )


def _fill(context: Context, function: Function, loop: Loop, known: Mapping[str, Node]) -> Wide | None:
    """The wide form of a loop in which a block copies a tile from global to shared memory."""
    statements = code(loop.body)
    if len(statements) != 3 or text_of(loop.start) != "threadIdx.x" or loop.comparison != "<":
        return None
    split = _split(statements[:2], loop)
    copy = _guarded_copy(statements[2], function)
    if split is None or copy is None:
        return None
    row, along, width = split
    target, inside, buffer, index = copy
    outer = {n: v for n, v in known.items() if n not in {row, along}}
    if not any(d.shared and d.name == accesses(target)[0].array for d in function.declarations):
        return None
    needs = _alignment(context, function, polynomial(index, outer), along)
    limits = _guard_alignment(context, function, inside, along, outer)
    if needs is None or limits is None:
        return None
    needs |= limits
    step = loop.step
    lane, lanes = fresh_names(names_in_scope(context.source, function), "lane", f"{buffer}_lanes")
    lines = [
        f"for ({loop.type} {loop.variable} = threadIdx.x; {loop.variable} < {text_of(loop.bound)} / 4; "
        f"{loop.variable} += {step}) {{",
        f"    const int {row} = {loop.variable} / ({width} / 4);",
        f"    const int {along} = {loop.variable} % ({width} / 4) * 4;",
        f"    alignas(16) float {lanes}[4] = {{0.0f, 0.0f, 0.0f, 0.0f}};",
        f"    if ({text_of(inside)}) {{",
        f"        *reinterpret_cast<float4*>({lanes}) = *reinterpret_cast<const float4*>(&{buffer}[{text_of(index)}]);",
        "    }",
        "    #pragma unroll",
        f"    for (int {lane} = 0; {lane} < 4; ++{lane}) {{",
        f"        {_moved(text_of(target), along, lane)} = {lanes}[{lane}];",
        "    }",
        "}",
    ]
    conditions = (*(f"{name} % 4 == 0" for name in sorted({*needs, width})),)
    return Wide(loop, buffer, conditions, tuple(lines), fills=True)


def _drain(context: Context, function: Function, loop: Loop, known: Mapping[str, Node]) -> Wide | None:
    """The wide form of a loop in which a thread stores consecutive registers under a guard."""
    if (
        text_of(loop.start) != "0"
        or loop.step != "1"
        or loop.comparison != "<"
        or loop.bound.type != "identifier"
    ):
        return None
    statements = code(loop.body)
    store = _guarded_store(statements, function)
    if store is None:
        return None
    condition, target, value, access = store
    local = {
        text_of(next(walk(d, "identifier")))
        for n in statements[:-1]
        for d in n.children_by_field_name("declarator")
    }
    if local & identifiers(value):
        return None
    reads = accesses(value)
    if any(function.parameter(read.array) is not None for read in reads) or not reads:
        return None
    needs = _alignment(context, function, polynomial(access.indices[0], known), loop.variable)
    limits = _guard_alignment(context, function, condition, loop.variable, known)
    if needs is None or limits is None:
        return None
    needs |= limits
    variable = loop.variable
    lane, lanes = fresh_names(names_in_scope(context.source, function), "lane", f"{access.array}_lanes")
    moved = replace_names(text_of(value), {variable: f"{variable} + {lane}"}).replace(
        f"[({variable} + {lane})]", f"[{variable} + {lane}]"
    )
    lines = [
        f"for ({loop.type} {variable} = 0; {variable} < {text_of(loop.bound)}; {variable} += 4) {{",
        *indented(line for node in statements[:-1] for line in dedented(context.source, [node])),
        f"    alignas(16) float {lanes}[4];",
        "    #pragma unroll",
        f"    for (int {lane} = 0; {lane} < 4; ++{lane}) {{",
        f"        {lanes}[{lane}] = {moved};",
        "    }",
        f"    if ({text_of(condition)}) {{",
        f"        *reinterpret_cast<float4*>(&{text_of(target)}) = *reinterpret_cast<const float4*>({lanes});",
        "    }",
        "}",
    ]
    needs |= {text_of(loop.bound)}
    return Wide(
        loop, access.array, tuple(f"{name} % 4 == 0" for name in sorted(needs)), tuple(lines), fills=False
    )


def _guarded_store(statements: list[Node], function: Function) -> tuple[Node, Node, Node, Access] | None:
    """Condition, target, value and access of declarations followed by `if (inside) { buffer[index] = value; }`."""
    guard = statements[-1]
    condition = condition_of(guard) if guard.type == "if_statement" else None
    then = guard.child_by_field_name("consequence")
    if condition is None or then is None or guard.child_by_field_name("alternative") is not None:
        return None
    if any(node.type != "declaration" for node in statements[:-1]) or len(code(then)) != 1:
        return None
    assignment = next(iter(code(then)[0].named_children), guard)
    target, value = assignment.child_by_field_name("left"), assignment.child_by_field_name("right")
    if assignment.type != "assignment_expression" or target is None or value is None:
        return None
    (access, *more) = accesses(target) or (None,)
    parameter = function.parameter(access.array) if access is not None else None
    if access is None or more or parameter is None or access.reads or len(access.indices) != 1:
        return None
    return (condition, target, value, access) if parameter.type == "float" else None


def _guard_alignment(
    context: Context, function: Function, guard: Node, along: str, known: Mapping[str, Node]
) -> set[str] | None:
    """Names that must be multiples of 4 for a guard to say the same of four elements; None if none suffice."""
    bounds = upper_bounds_of_sums(guard)
    if bounds is None:
        return None
    needs: set[str] = set()
    for left, bound in bounds:
        value = polynomial(left, known)
        if along not in value.names:
            continue
        start = _alignment(context, function, value, along)
        limit = _alignment(context, function, polynomial(bound, known), None)
        if start is None or limit is None:
            return None
        needs |= start | limit
    return needs


def upper_bounds_of_sums(condition: Node) -> list[tuple[Node, Node]] | None:
    """The pairs (left, bound) of `a < m && b < n`, whatever the left sides are."""
    condition = strip_parentheses(condition)
    if condition.type != "binary_expression":
        return None
    left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    operator = condition.child_by_field_name("operator")
    if left is None or right is None or operator is None:
        return None
    if text_of(operator) == "&&":
        first, second = upper_bounds_of_sums(left), upper_bounds_of_sums(right)
        return None if first is None or second is None else [*first, *second]
    return [(left, right)] if text_of(operator) == "<" else None


def _split(declarations: list[Node], loop: Loop) -> tuple[str, str, str] | None:
    """Names and width of `row = i / W; along = i % W`, in either order."""
    found: dict[str, tuple[str, str]] = {}
    for node in declarations:
        match = re.fullmatch(
            rf"(?:const )?int (\w+) = {loop.variable} ([/%]) (\w+);", " ".join(text_of(node).split())
        )
        if match is None:
            return None
        found[match[2]] = (match[1], match[3])
    if found.keys() != {"/", "%"} or found["/"][1] != found["%"][1]:
        return None
    return found["/"][0], found["%"][0], found["%"][1]


def _guarded_copy(statement: Node, function: Function) -> tuple[Node, Node, str, Node] | None:
    """Target, condition, buffer and index of `tile[..] = inside ? buffer[index] : 0`."""
    assignment = statement.named_children[0] if statement.named_children else statement
    target, value = assignment.child_by_field_name("left"), assignment.child_by_field_name("right")
    if assignment.type != "assignment_expression" or target is None or value is None:
        return None
    if (
        text_of(assignment.child_by_field_name("operator") or value) != "="
        or value.type != "conditional_expression"
    ):
        return None
    inside, element = value.child_by_field_name("condition"), value.child_by_field_name("consequence")
    otherwise = value.child_by_field_name("alternative")
    if (
        inside is None
        or element is None
        or otherwise is None
        or text_of(otherwise) not in {"0", "0.0f", "0.f"}
    ):
        return None
    (access, *more) = accesses(element) or (None,)
    if access is None or more or access.node != strip_parentheses(element) or len(access.indices) != 1:
        return None
    parameter = function.parameter(access.array)
    if parameter is None or parameter.type != "float":
        return None
    return target, inside, access.array, access.indices[0]


def _alignment(context: Context, function: Function, value: Polynomial, along: str | None) -> set[str] | None:
    """Names that must be multiples of 4 for `value` to be one where `along` is; None if none suffice."""
    if along is not None:
        step = value.coefficient(along)
        if step is None or step.constant != 1:
            return None
        value = value.without(along)
    parameters = {p.name for p in function.parameters if not p.pointer}
    steps = {loop.variable: loop.step for loop in function.loops if text_of(loop.start) == "0"}
    needs: set[str] = set()
    for monomial, factor in value.terms.items():
        names = [steps.get(atom.text, atom.text) for atom in monomial]
        usable = [n for n in names if n in parameters] + [n for n in names if n in context.source.macro_names]
        if factor % 4 == 0 or needs.intersection(usable):
            continue
        if not usable:
            return None
        needs.add(usable[0])
    return needs


def _moved(target: str, along: str, lane: str) -> str:
    return re.sub(rf"\[{along}\]", f"[{along} + {lane}]", target)


RULES = (
    Rule(
        "float4-tiles",
        Category.VECTORIZATION,
        frozenset(
            {
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.INTEGER_PIPE,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.SHARED_THROUGHPUT,
            }
        ),
        _propose,
        prior=1.5,
    ),
)
