"""Scalar replacement: an element of memory that a loop adds to becomes a register, stored once after the loop.

Nobody may see the difference. So the element is the same in every iteration, the loop touches its array nowhere
else and under no other name, waits for no other thread, and the thread stores to the element anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import code, inlined
from mctskernel.edits.limits import TYPE_BYTES
from mctskernel.edits.rewrite import changed, fresh_names, indented
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import (
    Access,
    Function,
    Loop,
    Replacement,
    Source,
    accesses,
    assigned_names,
    calls,
    identifiers,
    indentation,
    names_in_scope,
    replace,
    text_of,
    walk,
    within,
)

_JUMPS = ("break_statement", "continue_statement")
_EXITS = ("return_statement", "goto_statement", "asm_statement", "gnu_asm_expression")


@dataclass(frozen=True)
class Accumulator:
    """An element that a loop reads and writes. `element` is its text outside the loop, `type` its type.

    `first` is the statement before the loop that gives it its first value, if there is one.
    """

    loop: Loop
    element: str
    type: str
    uses: tuple[Node, ...]
    first: Node | None


def _propose(context: Context) -> Iterator[Edit]:
    for function in dict.fromkeys(function for _, function in context.launched):
        done: list[Accumulator] = []
        for loop in function.loops:
            for array in dict.fromkeys(access.array for access in accesses(loop.node)):
                if any(within(loop.node, found.loop.node) and _array(found) == array for found in done):
                    continue
                found = _accumulator(context, function, loop, array)
                if found is None:
                    continue
                done.append(found)
                yield edit(
                    Category.REGISTER_BLOCKING,
                    f"keep {found.element} of {function.name} in a register",
                    _replaced(context.source, function, found),
                    rationale=(
                        "Each iteration loads and stores the same element; the compiler can't keep it in a register "
                        "while another pointer might see it."
                    ),
                    expected_effect="One load and one store instead of one each in every iteration.",
                )


def _accumulator(context: Context, function: Function, loop: Loop, array: str) -> Accumulator | None:
    element_type = _element_type(context, function, array)
    if element_type is None or not _works_alone(context.source, loop, array):
        return None
    used = [access for access in accesses(loop.node) if access.array == array]
    elements = {_element(function, loop, access) for access in used}
    if len(elements) != 1 or not any(a.writes for a in used) or not any(a.reads for a in used):
        return None
    (element,) = elements
    if element is None:
        return None
    first = _first_value(function, loop, used[0])
    if first is None and not _always_writes(loop, used):
        return None
    return Accumulator(loop, element, element_type, tuple(access.node for access in used), first)


def _element_type(context: Context, function: Function, array: str) -> str | None:
    """The type of the elements of an array that the function knows by one name; None if it may have others."""
    for launch, other in context.launched:
        if other is function and len(set(map(str, launch.args))) != len(launch.args):
            return None
    parameter = function.parameter(array)
    shared = [d for d in function.declarations if d.name == array]
    if (
        parameter is not None
        and parameter.pointer
        and not shared
        and "volatile" not in text_of(parameter.node)
    ):
        element_type = parameter.type
    elif len(shared) == 1 and shared[0].shared and not shared[0].extern and shared[0].extents:
        element_type = shared[0].type
        if "volatile" in text_of(shared[0].node):
            return None
    else:
        return None
    return element_type if element_type in TYPE_BYTES and _one_name(function, array) else None


def _one_name(function: Function, array: str) -> bool:
    """Whether the array is only indexed, so that nothing else can point into it."""
    named = sum(text_of(node) == array for node in walk(function.body, "identifier"))
    declared = sum(declaration.name == array for declaration in function.declarations)
    indexed = [access for access in function.accesses if access.array == array]
    addressed = any(
        access.node.parent is not None and access.node.parent.type == "pointer_expression"
        for access in indexed
    )
    extents = [d.extents for d in function.declarations if d.name == array]
    whole = all(len(access.indices) == len(extents[0]) for access in indexed) if extents else True
    return whole and named == declared + len(indexed) and not addressed


def _works_alone(source: Source, loop: Loop, array: str) -> bool:
    """Whether no iteration waits for other threads, leaves the kernel, or hides an access of the array."""
    if any(True for _ in walk(loop.node, *_EXITS)) or array in source.macro_words:
        return False
    own = {function.name: function for function in source.functions}
    for call in calls(loop.node):
        name = text_of(call.children[0])
        if "sync" in name or name.startswith(("atomic", "__nanosleep", "__threadfence")):
            return False
        if name in source.macro_names:
            return False
        if name in own and ("sync" in text_of(own[name].node) or "asm" in text_of(own[name].node)):
            return False
    return not any(text_of(node) in _function_macros(source) for node in walk(loop.node, "identifier"))


def _function_macros(source: Source) -> frozenset[str]:
    """Macros that may stand for anything, barriers included."""
    return source.macro_names - {macro.name for macro in source.integer_macros}


def _element(function: Function, loop: Loop, access: Access) -> str | None:
    """The element that an access touches, in names that the loop doesn't change; None if it changes."""
    local = {d.name for d in function.declarations if within(d.node, loop.node)}
    moving = local | assigned_names(loop.node).keys() | {loop.variable}
    known = {name: value for name, value in definitions(function).items() if name in local}
    indices = []
    for index in access.indices:
        if any(True for _ in walk(index, "call_expression", "subscript_expression", "update_expression")):
            return None
        text = inlined(index, known, identifiers(function.node) - moving)
        if text is None:
            return None
        indices.append(f"[{text}]")
    return access.array + "".join(indices)


def _first_value(function: Function, loop: Loop, use: Access) -> Node | None:
    """`array[index] = value;` before the loop, with nothing but declarations between them."""
    known = definitions(function)
    before = loop.node.prev_named_sibling
    while before is not None and before.type in {"declaration", "comment", "preproc_call"}:
        if assigned_names(before) or calls(before) or use.array in identifiers(before):
            return None
        before = before.prev_named_sibling
    if before is None or before.type != "expression_statement" or not before.named_children:
        return None
    if loop.node.parent is None or loop.node.parent.type != "compound_statement":
        return None
    assignment = before.named_children[0]
    stores = [access for access in accesses(before) if access.array == use.array]
    if assignment.type != "assignment_expression" or len(stores) != 1 or stores[0].reads:
        return None
    if assignment.child_by_field_name("left") != stores[0].node or assigned_names(before):
        return None
    now = [str(polynomial(index, known)) for index in stores[0].indices]
    return before if now == [str(polynomial(index, known)) for index in use.indices] else None


def _always_writes(loop: Loop, used: list[Access]) -> bool:
    """Whether each iteration writes the element, and the loop's header can be asked whether there is one."""
    if any(True for _ in walk(loop.body, *_JUMPS)) or calls(loop.bound) or calls(loop.start):
        return False
    if not all(within(access.node, loop.body) for access in used):
        return False
    statements = code(loop.body)
    return any(
        access.writes
        and node.type == "expression_statement"
        and within(access.node, node)
        and not any(True for _ in walk(node, "conditional_expression", "lambda_expression"))
        and not any("&&" in text_of(n) or "||" in text_of(n) for n in walk(node, "binary_expression"))
        for access in used
        for node in statements
    )


def _replaced(source: Source, function: Function, found: Accumulator) -> str:
    (total,) = fresh_names(names_in_scope(source, function), "total")
    loop, node = found.loop, found.loop.node
    changes = [Replacement(use.start_byte, use.end_byte, total) for use in found.uses]
    store = f"{found.element} = {total};"
    if found.first is not None:
        value = found.first.named_children[0].child_by_field_name("right") or found.first
        margin = indentation(source, node)
        declared = f"{found.type} {total} = {text_of(value)};"
        changes.append(Replacement(found.first.start_byte, found.first.end_byte, declared))
        changes.append(Replacement(node.end_byte, node.end_byte, f"\n{margin}{store}"))
        return replace(source, changes)
    lead = loop.pragma if loop.pragma is not None else node
    margin = indentation(source, lead)
    condition = f"{text_of(loop.start)} {loop.comparison} {text_of(loop.bound)}"
    inside = changed(source, node, changes)
    pragma = [text_of(loop.pragma).strip()] if loop.pragma is not None else []
    lines = [
        f"if ({condition}) {{",
        *indented([f"{found.type} {total} = {found.element};", *pragma, *inside, store]),
        "}",
    ]
    return replace(source, [Replacement(lead.start_byte, node.end_byte, f"\n{margin}".join(lines))])


def _array(found: Accumulator) -> str:
    return found.element.partition("[")[0]


RULES = (
    Rule(
        "scalar-replacement",
        Category.REGISTER_BLOCKING,
        frozenset(
            {
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.SHARED_THROUGHPUT,
                Bottleneck.INSTRUCTION_ISSUE,
            }
        ),
        _propose,
        prior=2.0,
    ),
)
