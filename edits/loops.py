"""Loops of CUDA C++ that count up to a bound, and the pragmas that unroll them."""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.edits.declarations import declared
from mctskernel.edits.nodes import assigned_names, field, identifiers, text_of


@dataclass(frozen=True)
class Loop:
    """`for (type variable = start; variable < bound; variable += step)` whose body leaves the variable alone.

    `comparison` is one of < <= != (counting up; any other loop is not canonical); `step` is the step's text,
    "1" for an increment; `pragma` is an unroll pragma right before it.
    """

    variable: str
    type: str
    start: Node
    comparison: str
    bound: Node
    step: str
    body: Node
    pragma: Node | None
    node: Node


def as_loop(node: Node) -> Loop | None:
    """The canonical form of a `for_statement`, if it has it."""
    initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
    update, body = node.child_by_field_name("update"), node.child_by_field_name("body")
    if initializer is None or condition is None or update is None or body is None:
        return None
    variables = declared(initializer) if initializer.type == "declaration" else ()
    if len(variables) != 1 or variables[0].value is None or condition.type != "binary_expression":
        return None
    variable = variables[0]
    comparison = text_of(field(condition, "operator"))
    if text_of(field(condition, "left")) != variable.name or comparison not in {"<", "<=", "!="}:
        return None
    step = _step(update, variable.name)
    if step is None or variable.name in assigned_names(body):
        return None
    bound = field(condition, "right")
    if identifiers(bound) & assigned_names(body).keys():
        return None
    return Loop(
        variable=variable.name,
        type=variable.type,
        start=variable.value or node,
        comparison=comparison,
        bound=bound,
        step=step,
        body=body,
        pragma=unroll_pragma(node),
        node=node,
    )


def unroll_pragma(node: Node) -> Node | None:
    """The `#pragma unroll` right before a loop."""
    before = node.prev_named_sibling
    if before is None or before.type != "preproc_call":
        return None
    words = text_of(before).split()
    return before if words[:2] == ["#pragma", "unroll"] else None


def _step(update: Node, variable: str) -> str | None:
    if update.type == "update_expression" and text_of(field(update, "argument")) == variable:
        return "1" if text_of(field(update, "operator")) == "++" else None
    if update.type == "assignment_expression" and text_of(field(update, "left")) == variable:
        step = text_of(field(update, "right"))
        operator = text_of(field(update, "operator"))
        return step if operator == "+=" and not step.startswith("-") else None
    return None
