"""A matmul-shaped loop nest, however it was written: what all forms of a matmul kernel have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.launch_plan import Extent, Launch
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import (
    Guarded,
    code,
    global_index_axis,
    guarded,
    plan_expression,
)
from mctskernel.edits.rewrite import dedented
from mctskernel.edits.rule import Context
from mctskernel.edits.rules.matmul.operands import Axis, Operand, is_geometry, read_operand
from mctskernel.edits.syntax import (
    Declaration,
    Function,
    Loop,
    accesses,
    as_loop,
    assigned_names,
    calls,
    identifiers,
    parse,
    strip_parentheses,
    text_of,
    walk,
)

FLOATS = ("float", "double")


@dataclass(frozen=True)
class MatmulNest:
    """out(row, col) = epilogue(initial + sum over k of left(row, k) * right(k, col)); `col` runs along the output.

    `uniform` are declarations that all threads of a block evaluate alike; `epilogue` are the statements that
    use the sum; both as source lines at the left margin. `outer_grid` is the grid's extent along z.
    """

    row: Axis
    col: Axis
    k: str
    k_start: str
    k_bound: str
    left: Operand
    right: Operand
    accumulator: str
    element: str
    initial: str
    uniform: tuple[str, ...]
    epilogue: tuple[str, ...]
    outer_grid: tuple[Extent, ...]
    parameters: frozenset[str]

    @property
    def inside(self) -> str:
        """The condition under which an output exists."""
        return f"{self.row.name} < {self.row.bound} && {self.col.name} < {self.col.bound}"

    @property
    def names(self) -> frozenset[str]:
        """Names that a rewritten kernel still uses, so that it must not declare them anew."""
        kept = "\n".join(
            (*self.uniform, *self.epilogue, f"{self.left.text}; {self.right.text}; {self.inside};")
        )
        return identifiers(parse(kept).root) | {self.k, self.k_bound, self.accumulator} | self.parameters

    @property
    def zero(self) -> str:
        """A literal zero of the element type."""
        return "0.0f" if self.element == "float" else "0.0"


def naive_nest(context: Context, launch: Launch, function: Function) -> MatmulNest | None:
    """The nest of a kernel in which one thread sums one output straight from global memory."""
    body = guarded(function)
    if body is None or len(body.bounds) != 2 or _synchronises(function):
        return None
    found = _loop_and_sum(body, function)
    if found is None:
        return None
    total, loop, epilogue = found
    known = definitions(function)
    product = accumulated_product(loop.body, total.name, known)
    if product is None:
        return None
    axes = _axes(context, launch, function, body)
    if axes is None or loop.comparison != "<" or loop.step != "1":
        return None
    parameters = frozenset(p.name for p in function.parameters) | context.source.macro_names
    reads = [
        read_operand(node, axes, loop.variable, known, parameters=parameters, function=function)
        for node in product
    ]
    left, right = reads
    if left is None or right is None or left.axis == right.axis:
        return None
    written = {access.array for access in function.accesses if access.writes}
    if written & {left.buffer, right.buffer} or not _distinct(
        launch, function, written, {left.buffer, right.buffer}
    ):
        return None
    col = output_axis(epilogue, axes, known) or right.axis
    if left.axis == col:
        left, right = right, left
    uniform = _uniform(body, axes, known)
    if uniform is None or not _self_contained(
        epilogue, function, body, kept=uniform, renamed={total.name, *(a.name for a in axes)}
    ):
        return None
    if not identifiers(loop.start) | identifiers(loop.bound) <= parameters:
        return None
    return MatmulNest(
        row=left.axis,
        col=right.axis,
        k=loop.variable,
        k_start=text_of(loop.start),
        k_bound=text_of(loop.bound),
        left=left,
        right=right,
        accumulator=total.name,
        element=total.type,
        initial=text_of(total.value) if total.value is not None else "0",
        uniform=tuple(line for node in uniform for line in dedented(context.source, [node])),
        epilogue=dedented(context.source, epilogue),
        outer_grid=launch.grid[2:],
        parameters=frozenset(p.name for p in function.parameters),
    )


def accumulated_product(body: Node, total: str, known: Mapping[str, Node]) -> tuple[Node, Node] | None:
    """The two factors of `total += a * b` (or `total = total + a * b`, `total = fmaf(a, b, total)`)."""
    statements = [node for node in code(body) if node.type != "declaration"]
    if len(statements) != 1 or statements[0].type != "expression_statement":
        return None
    assignment = statements[0].named_children[0]
    if assignment.type != "assignment_expression":
        return None
    target, value = assignment.child_by_field_name("left"), assignment.child_by_field_name("right")
    operator = assignment.child_by_field_name("operator")
    if target is None or value is None or operator is None or text_of(target) != total:
        return None
    value = strip_parentheses(value)
    if text_of(operator) == "=":
        fused = calls(value, "fmaf", "fma")
        if value.type == "call_expression" and fused and fused[0] == value:
            return _fused_factors(value, total, known)
        rest = _without_addend(value, total)
        if rest is None:
            return None
        value = rest
    elif text_of(operator) != "+=":
        return None
    value = _definition(value, known)
    if value.type != "binary_expression" or _operator(value) != "*":
        return None
    a, b = value.child_by_field_name("left"), value.child_by_field_name("right")
    return None if a is None or b is None else (_definition(a, known), _definition(b, known))


def _loop_and_sum(body: Guarded, function: Function) -> tuple[Declaration, Loop, tuple[Node, ...]] | None:
    statements = [node for node in body.statements if node.type != "preproc_call"]
    position = next((i for i, node in enumerate(statements) if node.type == "for_statement"), None)
    if position is None or any(node.type != "declaration" for node in statements[:position]):
        return None
    loop = as_loop(statements[position])
    epilogue = tuple(statements[position + 1 :])
    if loop is None or not epilogue:
        return None
    if any(
        True for node in epilogue for _ in walk(node, "for_statement", "while_statement", "return_statement")
    ):
        return None
    assigned = assigned_names(loop.body)
    sums = [d for d in function.declarations if d.name in assigned and d.type in FLOATS and not d.extents]
    if len(sums) != 1 or len(assigned) != 1:
        return None
    total = sums[0]
    if total.value is None or total.value.type != "number_literal" or total.pointer:
        return None
    before = [node for node in statements[:position] if node != total.node]
    if (
        total.node not in (*body.prologue, *statements[:position])
        or len(total.node.children_by_field_name("declarator")) != 1
    ):
        return None
    return total, loop, (*before, *epilogue)


def _axes(context: Context, launch: Launch, function: Function, body: Guarded) -> tuple[Axis, Axis] | None:
    known = definitions(function)
    found, used = [], []
    for name, bound in body.bounds.items():
        extent = plan_expression(bound, function, launch, context.source)
        if name not in known or extent is None:
            return None
        used.append(global_index_axis(polynomial(known[name], known), launch, context.kernel.macros))
        found.append(Axis(name, text_of(bound), extent))
    if None in used or used[0] == used[1] or "z" in used:
        return None
    return found[0], found[1]


def output_axis(
    epilogue: tuple[Node, ...], axes: tuple[Axis, Axis], known: Mapping[str, Node]
) -> Axis | None:
    """The axis along which consecutive outputs are consecutive elements, if a store shows one."""
    names = {axis.name for axis in axes}
    stable = {name: value for name, value in known.items() if name not in names}
    for statement in epilogue:
        for access in accesses(statement):
            if access.writes and len(access.indices) == 1:
                index = polynomial(access.indices[0], stable)
                for axis in axes:
                    step = index.coefficient(axis.name)
                    if step is not None and step.constant == 1:
                        return axis
    return None


def _uniform(body: Guarded, axes: tuple[Axis, Axis], known: Mapping[str, Node]) -> tuple[Node, ...] | None:
    """Declarations of the prologue besides the two indices that don't depend on the thread."""
    names = {axis.name for axis in axes}
    kept = []
    for node in body.prologue:
        declared = {
            text_of(d) for init in node.children_by_field_name("declarator") for d in walk(init, "identifier")
        }
        value_names: set[str] = set()
        for init in node.children_by_field_name("declarator"):
            value = init.child_by_field_name("value")
            if value is not None:
                value_names |= polynomial(value, known).names
        if declared & names:
            if len(node.children_by_field_name("declarator")) != 1:
                continue
            continue
        if not any(is_geometry(name) for name in value_names):
            kept.append(node)
    return tuple(kept)


def _self_contained(
    epilogue: tuple[Node, ...],
    function: Function,
    body: Guarded,
    *,
    kept: tuple[Node, ...],
    renamed: set[str],
) -> bool:
    """Whether the epilogue uses only what the rewritten kernel still declares."""
    lost = {d.name for d in function.declarations if d.node in body.prologue and d.node not in kept} - renamed
    used = frozenset[str]().union(*(identifiers(node) for node in epilogue))
    return not used & lost and not any(is_geometry(name) for name in used)


def _distinct(launch: Launch, function: Function, first: set[str], second: set[str]) -> bool:
    arguments = {p.name: a for p, a in zip(function.parameters, launch.args, strict=False)}
    return not {arguments.get(name) for name in first} & {arguments.get(name) for name in second}


def _synchronises(function: Function) -> bool:
    return bool(calls(function.body, "__syncthreads", "__syncwarp")) or any(
        d.shared for d in function.declarations
    )


def _definition(node: Node, known: Mapping[str, Node]) -> Node:
    node = strip_parentheses(node)
    while node.type == "identifier" and text_of(node) in known:
        node = strip_parentheses(known[text_of(node)])
    return node


def _without_addend(value: Node, total: str) -> Node | None:
    if value.type != "binary_expression" or _operator(value) != "+":
        return None
    a, b = value.child_by_field_name("left"), value.child_by_field_name("right")
    if a is None or b is None:
        return None
    if text_of(a) == total:
        return strip_parentheses(b)
    return strip_parentheses(a) if text_of(b) == total else None


def _fused_factors(call: Node, total: str, known: Mapping[str, Node]) -> tuple[Node, Node] | None:
    arguments = call.child_by_field_name("arguments")
    values = arguments.named_children if arguments is not None else []
    if len(values) != 3 or text_of(values[2]) != total:
        return None
    return _definition(values[0], known), _definition(values[1], known)


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return text_of(operator) if operator is not None else ""
