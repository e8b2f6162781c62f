"""A matmul that already stages tiles of its operands in shared memory, read back as the nest behind it.

What a thread reads from a tile is what some thread stored there: with the tile's indices of the read put in
place of the storing thread's, the staged element becomes an expression of row, column and summation index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tree_sitter import Node

from mctskernel.core.launch_plan import Launch
from mctskernel.edits.affine import Polynomial, definitions, polynomial
from mctskernel.edits.indexing import (
    code,
    condition_of,
    global_index_axis,
    inlined,
    plan_expression,
    replace_names,
    upper_bounds,
)
from mctskernel.edits.rewrite import dedented
from mctskernel.edits.rule import Context
from mctskernel.edits.rules.matmul.nest import FLOATS, MatmulNest, accumulated_product, output_axis
from mctskernel.edits.rules.matmul.operands import Axis, Operand, is_geometry
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
    squeezed,
    strip_parentheses,
    text_of,
    walk,
)


def staged_nest(context: Context, launch: Launch, function: Function) -> MatmulNest | None:
    """The nest of a kernel in which one thread sums one output over tiles in shared memory."""
    parts = _parts(function)
    if parts is None:
        return None
    prologue, loop, guard, epilogue = parts
    inner = _inner_loop(loop)
    total = _total(prologue, inner) if inner is not None else None
    if inner is None or total is None or len(calls(loop.body, "__syncthreads")) != 2:
        return None
    known = definitions(function)
    axes = _axes(context, launch, function, guard)
    product = accumulated_product(inner.body, total.name, known)
    if axes is None or product is None:
        return None
    operands = [
        _staged_operand(context, launch, function, node, loops=(loop, inner), axes=axes) for node in product
    ]
    left, right = operands
    if left is None or right is None or left.axis == right.axis or left.buffer == right.buffer:
        return None
    if output_axis(tuple(epilogue), axes, known) == left.axis:
        left, right = right, left
    parameters = frozenset(p.name for p in function.parameters)
    used = frozenset[str]().union(*(identifiers(node) for node in epilogue))
    free = used - parameters - context.source.macro_names - {total.name, *(axis.name for axis in axes)}
    if free & {d.name for d in function.declarations} or any(is_geometry(name) for name in used):
        return None
    written = {access.array for node in epilogue for access in accesses(node) if access.writes}
    if written & {left.buffer, right.buffer} or len(set(map(str, launch.args))) != len(launch.args):
        return None
    if not identifiers(loop.start) | identifiers(loop.bound) <= parameters | context.source.macro_names:
        return None
    (k,) = {inner.variable}
    return MatmulNest(
        row=left.axis,
        col=right.axis,
        k=k,
        k_start=text_of(loop.start),
        k_bound=text_of(loop.bound),
        left=left,
        right=right,
        accumulator=total.name,
        element=total.type,
        initial=text_of(total.value) if total.value is not None else "0",
        uniform=(),
        epilogue=dedented(context.source, epilogue),
        outer_grid=launch.grid[2:],
        parameters=parameters,
    )


def _parts(function: Function) -> tuple[list[Node], Loop, Node, list[Node]] | None:
    """Declarations, the loop over tiles, and the guarded statements after it."""
    children = [n for n in code(function.body) if n.type not in {"preproc_call", "static_assert_declaration"}]
    if len(children) < 3 or any(node.type != "declaration" for node in children[:-2]):
        return None
    loop, last = as_loop(children[-2]) if children[-2].type == "for_statement" else None, children[-1]
    if loop is None or loop.comparison != "<" or last.type != "if_statement":
        return None
    condition, then = condition_of(last), last.child_by_field_name("consequence")
    if condition is None or then is None or last.child_by_field_name("alternative") is not None:
        return None
    epilogue = code(then)
    if any(
        True for node in epilogue for _ in walk(node, "for_statement", "while_statement", "return_statement")
    ):
        return None
    return children[:-2], loop, condition, epilogue


def _inner_loop(loop: Loop) -> Loop | None:
    """The loop over one tile, between the two barriers."""
    statements = [node for node in code(loop.body) if node.type != "preproc_call"]
    if len(statements) < 4 or statements[-2].type != "for_statement":
        return None
    if any(squeezed(statements[i]) != "__syncthreads();" for i in (-1, -3)):
        return None
    inner = as_loop(statements[-2])
    if inner is None or text_of(inner.start) != "0" or inner.step != "1" or inner.comparison != "<":
        return None
    return inner if text_of(inner.bound) == loop.step else None


def _total(prologue: Sequence[Node], inner: Loop) -> Declaration | None:
    assigned = assigned_names(inner.body)
    function = _declarations(prologue)
    sums = [d for d in function if d.name in assigned and d.type in FLOATS and not d.extents]
    if len(sums) != 1 or len(assigned) != 1 or sums[0].value is None:
        return None
    return sums[0] if sums[0].value.type == "number_literal" else None


def _declarations(nodes: Sequence[Node]) -> list[Declaration]:
    text = "".join(f"{text_of(node)}\n" for node in nodes)
    return list(parse(f"void f() {{\n{text}}}").functions[0].declarations)


def _axes(context: Context, launch: Launch, function: Function, guard: Node) -> tuple[Axis, Axis] | None:
    known = definitions(function)
    bounds = upper_bounds(guard)
    if len(bounds) != 2:
        return None
    found, used = [], []
    for name, bound in bounds.items():
        extent = plan_expression(bound, function, launch, context.source)
        if name not in known or extent is None:
            return None
        used.append(global_index_axis(polynomial(known[name], known), launch, context.kernel.macros))
        found.append(Axis(name, text_of(bound), extent))
    return None if None in used or used[0] == used[1] or "z" in used else (found[0], found[1])


def _staged_operand(
    context: Context,
    launch: Launch,
    function: Function,
    read: Node,
    *,
    loops: tuple[Loop, Loop],
    axes: tuple[Axis, Axis],
) -> Operand | None:
    loop, inner = loops
    known = definitions(function)
    (access, *more) = accesses(read) or (None,)
    if access is None or more or access.node != read or len(access.indices) != 2:
        return None
    stores = [a for a in accesses(loop.body) if a.array == access.array and a.writes]
    if len(stores) != 1 or stores[0].reads or len(stores[0].indices) != 2:
        return None
    if not any(d.shared and d.name == access.array for d in function.declarations):
        return None
    source = _stored_element(stores[0].node)
    pointer = function.parameter(source[0]) if source is not None else None
    if source is None or pointer is None or pointer.type not in FLOATS:
        return None
    keep = frozenset(p.name for p in function.parameters) | context.source.macro_names
    keep |= {loop.variable, inner.variable}
    moved: dict[str, str] = {}
    for stored, wanted in zip(stores[0].indices, access.indices, strict=True):
        thread, text = str(polynomial(stored, known)), inlined(wanted, known, keep)
        if not thread.startswith("threadIdx.") or thread in moved or text is None:
            return None
        moved[thread] = text
    index = inlined(source[1], known, keep)
    if index is None:
        return None
    lines = {axis: inlined(known[axis.name], known, keep) for axis in axes}
    found = _unstaged(replace_names(index, moved), launch, lines, loops)
    if found is None:
        return None
    value, axis = found
    step = value.coefficient(inner.variable)
    text = str(value).replace("*", " * ")
    return Operand(source[0], f"{source[0]}[{text}]", axis, step is not None and step.constant == 1)


def _unstaged(
    index: str, launch: Launch, axes: Mapping[Axis, str | None], loops: tuple[Loop, Loop]
) -> tuple[Polynomial, Axis] | None:
    """An index in terms of row or column and summation index: both solved for what the threads were.

    `axes` maps row and column to their definitions over block and thread indices.
    """
    loop, inner = loops
    extents = {f"blockDim.{axis}": str(extent) for axis, extent in zip("xyz", launch.block, strict=False)}
    solved = {inner.variable: f"{inner.variable} - {loop.variable}"}
    for axis, text in axes.items():
        threads = {n for n in identifiers(_expression(text or "0")) if n.startswith("threadIdx.")}
        if text is None or len(threads) != 1:
            return None
        (thread,) = threads
        solved[thread] = f"{axis.name} - ({replace_names(text, {thread: '0', **extents})})"
    value = polynomial(_expression(replace_names(replace_names(index, extents), solved)))
    if any(is_geometry(name) for name in value.names) or loop.variable in value.names:
        return None
    used = [axis for axis in axes if axis.name in value.names]
    step = value.coefficient(inner.variable)
    if len(used) != 1 or step is None or not step.terms or value.coefficient(used[0].name) is None:
        return None
    return value, used[0]


def _stored_element(target: Node) -> tuple[str, Node] | None:
    """The global element in `tile[..] = inside ? a[index] : 0` or `tile[..] = a[index]`."""
    assignment = target.parent
    value = assignment.child_by_field_name("right") if assignment is not None else None
    if assignment is None or value is None or assignment.type != "assignment_expression":
        return None
    value = strip_parentheses(value)
    if value.type == "conditional_expression":
        otherwise = value.child_by_field_name("alternative")
        if otherwise is None or otherwise.type != "number_literal" or text_of(otherwise).strip("0.fF"):
            return None
        value = strip_parentheses(value.child_by_field_name("consequence") or value)
    (access, *more) = accesses(value) or (None,)
    if access is None or more or access.node != value or len(access.indices) != 1:
        return None
    return access.array, access.indices[0]


def _expression(text: str) -> Node:
    statement = parse(f"int _ = {text};").root.named_children[0]
    declarator = statement.child_by_field_name("declarator") or statement
    return declarator.child_by_field_name("value") or declarator
