"""What a source asserts of its macros, looked at before a compiler is asked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from tree_sitter import Node

from mctskernel.core.expression import ExpressionError, Number, evaluate_int
from mctskernel.edits.syntax import Source, strip_parentheses, text_of, walk

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def asserts_hold(source: Source, macros: Mapping[str, Number]) -> bool:
    """Whether no `static_assert` certainly fails; one that isn't arithmetic over the macros may hold."""
    return all(
        _may_hold(node.named_children[0], macros) for node in walk(source.root, "static_assert_declaration")
    )


def _may_hold(condition: Node, macros: Mapping[str, Number]) -> bool:
    condition = strip_parentheses(condition)
    left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    sign = condition.child_by_field_name("operator")
    if condition.type != "binary_expression" or left is None or right is None or sign is None:
        return True
    if text_of(sign) == "&&":
        return _may_hold(left, macros) and _may_hold(right, macros)
    compare = _COMPARISONS.get(text_of(sign))
    if compare is None:
        return True
    try:
        return compare(_value(left, macros), _value(right, macros))
    except ExpressionError:
        return True


def _value(node: Node, macros: Mapping[str, Number]) -> int:
    return evaluate_int(text_of(node).replace("/", "//"), macros)
