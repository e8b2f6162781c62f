"""Reductions: loop-carried sums and extrema recognised, and the device functions that do them in parallel."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.edits import syntax as cu
from mctskernel.edits.device_code import filled
from mctskernel.edits.indexing import code

COMBINED = {
    "sum": "{0} + {1}",
    "max": "fmaxf({0}, {1})",
    "min": "fminf({0}, {1})",
    "nan_max": "nan_max({0}, {1})",
    "nan_min": "nan_min({0}, {1})",
}
_SMALLEST, _LARGEST = "__int_as_float(0xff800000)", "__int_as_float(0x7f800000)"
NEUTRAL = {"sum": "0.0f", "max": _SMALLEST, "min": _LARGEST, "nan_max": _SMALLEST, "nan_min": _LARGEST}
"""What changes no result; NVRTC has no INFINITY without a header."""
WORDS = {
    "sum": "sum",
    "max": "maximum",
    "min": "minimum",
    "nan_max": "maximum, or NaN,",
    "nan_min": "minimum, or NaN,",
}
EXTREMA = {
    "max": ("fmaxf", "fmax", "max"),
    "min": ("fminf", "fmin", "min"),
    "nan_max": ("nan_max",),
    "nan_min": ("nan_min",),
}
_OPERATIONS = {function: operation for operation, functions in EXTREMA.items() for function in functions}


@dataclass(frozen=True)
class Reduction:
    """`variable` gathers the `operation`, a key of `COMBINED`, of a value over a loop's iterations."""

    variable: str
    operation: str


def reductions_of(body: Node) -> tuple[Reduction, ...] | None:
    """What a loop body carries from one iteration to the next; None if that isn't only reductions."""
    local = {
        cu.text_of(name)
        for declaration in cu.walk(body, "declaration")
        for declarator in declaration.children_by_field_name("declarator")
        for name in [next(cu.walk(declarator, "identifier"), declarator)]
    }
    found = []
    for variable in cu.assigned_names(body):
        if variable in local:
            continue
        reduction = _reduction(body, variable)
        if reduction is None:
            return None
        found.append(reduction)
    return tuple(found)


def reduced_value(statement: Node, variable: str) -> Node | None:
    """What one iteration adds to a reduction written as a function of two values, such as `fmaxf(variable, value)`."""
    found = cu.calls(statement, *_OPERATIONS)
    arguments = cu.field(found[0], "arguments").named_children if found else []
    operands = [node for node in arguments if cu.text_of(node) != variable]
    return operands[0] if len(operands) == 1 else None


def is_zero(node: Node | None) -> bool:
    return node is not None and re.fullmatch(r"0+(\.0*)?f?|\.0+f?", cu.text_of(node)) is not None


def combining_functions(source: cu.Source, operations: Iterable[str]) -> list[str]:
    """Device functions that `COMBINED` needs for some operations and a source doesn't have yet."""
    there = {function.name for function in source.functions}
    comparisons = {"nan_max": ("larger", ">"), "nan_min": ("smaller", "<")}
    return [
        _of_two(operation, *comparisons[operation])
        for operation in operations
        if operation in comparisons and operation not in there
    ]


def block_reduction(name: str, operation: str, threads: str) -> str:
    """A device function that reduces over a block of `threads` threads by a tree in shared memory."""
    combined = COMBINED[operation].format("partial[threadIdx.x]", "partial[threadIdx.x + stride]")
    holes = {"name": name, "words": WORDS[operation], "threads": threads, "combined": combined}
    return filled("block_reduction", **holes)


def warp_reduction(name: str, operation: str) -> str:
    """A device function that reduces over the 32 lanes of a warp with shuffles."""
    combined = COMBINED[operation].format("value", "__shfl_xor_sync(0xffffffff, value, offset)")
    return filled("warp_reduction", name=name, words=WORDS[operation], combined=combined)


def _of_two(name: str, which: str, sign: str) -> str:
    return f"""
// The {which} of two numbers, NaN if one is.
__device__ float {name}(float a, float b) {{
    return a {sign} b || a != a ? a : b;
}}
"""


def _reduction(body: Node, variable: str) -> Reduction | None:
    uses = [n for n in cu.walk(body, "identifier") if cu.text_of(n) == variable]
    for statement in code(body):
        operation = _operation(statement, variable)
        if operation is not None:
            inside = [n for n in cu.walk(statement, "identifier") if cu.text_of(n) == variable]
            return Reduction(variable, operation) if len(inside) == len(uses) else None
    return None


def _operation(statement: Node, variable: str) -> str | None:
    if statement.type == "if_statement":
        return _conditional_extremum(statement, variable)
    target, operator, value = cu.assignment(statement) or (statement, "", statement)
    if cu.text_of(target) != variable:
        return None
    if operator == "+=":
        return None if variable in cu.identifiers(value) else "sum"
    return _folded(cu.strip_parentheses(value), variable) if operator == "=" else None


def _folded(value: Node, variable: str) -> str | None:
    """The operation of `variable + e`, `fmaxf(variable, e)` or `e > variable ? e : variable`."""
    parts = cu.operands(value)
    if parts is not None and parts[1] == "+":
        return "sum" if _one_is(parts[0], parts[2], variable) else None
    if value.type == "call_expression":
        given = cu.field(value, "arguments").named_children
        name = cu.text_of(value.children[0])
        if name in _OPERATIONS and len(given) == 2 and _one_is(given[0], given[1], variable):
            return _OPERATIONS[name]
    if value.type == "conditional_expression":
        condition = cu.strip_parentheses(cu.field(value, "condition"))
        if cu.text_of(cu.field(value, "alternative")) == variable:
            return _comparison(condition, cu.text_of(cu.field(value, "consequence")), variable)
    return None


def _conditional_extremum(statement: Node, variable: str) -> str | None:
    """The operation of `if (e > variable) variable = e;`."""
    then = code(cu.field(statement, "consequence"))
    assigned = cu.assignment(then[0]) if len(then) == 1 else None
    if assigned is None or statement.child_by_field_name("alternative") is not None:
        return None
    if cu.text_of(assigned[0]) != variable:
        return None
    condition = cu.field(cu.field(statement, "condition"), "value")
    return _comparison(condition, cu.text_of(assigned[2]), variable)


def _comparison(condition: Node, chosen: str, variable: str) -> str | None:
    parts = cu.operands(condition)
    if parts is None:
        return None
    left, sign, right = parts
    texts = cu.text_of(left), cu.text_of(right)
    if sign == "||" and texts[1] == f"{chosen} != {chosen}":
        extremum = _comparison(cu.strip_parentheses(left), chosen, variable)
        return {"max": "nan_max", "min": "nan_min"}.get(extremum or "")
    if texts == (variable, chosen):
        texts, sign = (chosen, variable), {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, "")
    if texts != (chosen, variable) or cu.calls(condition):
        return None
    return {">": "max", ">=": "max", "<": "min", "<=": "min"}.get(sign)


def _one_is(left: Node, right: Node, variable: str) -> bool:
    names = (cu.text_of(left), cu.text_of(right))
    if names[0] == variable:
        return variable not in cu.identifiers(right)
    return names[1] == variable and variable not in cu.identifiers(left)
