"""Launches whose threads take a row each, or an element of a row, and have nothing to do with each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from mctskernel.core.launch_plan import Launch
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import Guarded, distinct_arguments, global_index_axis, guarded, plan_expression
from mctskernel.edits.rule import Context
from mctskernel.edits.rules.row_parallel import is_cooperative
from mctskernel.edits.syntax import (
    Declaration,
    Function,
    operands,
    squeezed,
    strip_parentheses,
    text_of,
    walk,
    within,
)


@dataclass(frozen=True)
class Part:
    """A launch whose threads take one `index` each below `extent`: a row, or an element of rows that are `length` long.

    `extent` and `length` are expressions of the launch plan; a row's `length` is None.
    """

    launch: Launch
    function: Function
    index: Declaration
    bound: Node
    extent: str
    statements: tuple[Node, ...]
    divisor: Node | None = None
    length: str | None = None

    def argument(self, parameter: str) -> str:
        """The plan's argument of a parameter."""
        position = [each.name for each in self.function.parameters].index(parameter)
        return str(self.launch.args[position])

    def is_row(self, node: Node) -> bool:
        """Whether an expression is the number of the thread's row."""
        return _bare(node) in self._rows

    def is_column(self, node: Node) -> bool:
        """Whether an expression is the number of the thread's element in its row."""
        return _bare(node) in self._columns

    @cached_property
    def _rows(self) -> frozenset[str]:
        if self.divisor is None:
            return frozenset({self.index.name})
        return self._spellings(f"{self.index.name}/{_bare(self.divisor)}")

    @cached_property
    def _columns(self) -> frozenset[str]:
        if self.divisor is None:
            return frozenset()
        return self._spellings(f"{self.index.name}%{_bare(self.divisor)}")

    def _spellings(self, number: str) -> frozenset[str]:
        """A number, and the names that are given to it."""
        names = (name for name, value in definitions(self.function).items() if _bare(value) == number)
        return frozenset({number, *names})


def part_of(context: Context, launch: Launch, function: Function) -> Part | None:
    """A launch as a row or an element for each thread, if its threads have nothing to do with each other."""
    body = guarded(function)
    one_axis = len(launch.grid) == len(launch.block) == 1 and launch.shared == 0
    if body is None or len(body.bounds) != 1 or len(body.prologue) != 1 or not one_axis:
        return None
    if not distinct_arguments(launch) or len(launch.args) != len(function.parameters):
        return None
    ((name, bound),) = body.bounds.items()
    index = next((each for each in function.declarations if each.name == name), None)
    known = definitions(function)
    extent = plan_expression(bound, function, launch, context.source)
    if index is None or name not in known or extent is None or index.node != body.prologue[0]:
        return None
    if global_index_axis(polynomial(known[name], known), launch, context.kernel.macros) != "x":
        return None
    if is_cooperative(function) or not _is_plain(function, body):
        return None
    part = Part(launch, function, index, bound, extent, body.statements)
    divisors = {_bare(node): node for node in _divisors(part)}
    if not divisors:
        return part
    (divisor, *others) = divisors.values()
    length = plan_expression(divisor, function, launch, context.source)
    simple = all(node.type in {"declaration", "expression_statement"} for node in body.statements)
    if length is None or others or not simple:
        return None
    return dataclasses.replace(part, divisor=divisor, length=length)


def _divisors(part: Part) -> Iterator[Node]:
    """What the index of a part is divided by, remainders included."""
    for node in part.statements:
        for found in walk(node, "binary_expression"):
            left, operator, right = operands(found) or (found, "", found)
            if operator in {"/", "%"} and text_of(strip_parentheses(left)) == part.index.name:
                yield right


def _is_plain(function: Function, body: Guarded) -> bool:
    """Whether it is a function by itself whose threads are numbered by the prologue alone, use pointers for nothing
    but elements, and all come to the end of what is guarded.
    """
    elsewhere = [n for n in walk(function.body, "field_expression") if not within(n, body.prologue[0])]
    early = [n for node in body.statements for n in walk(node, "return_statement", "goto_statement")]
    names = [text_of(node) for node in walk(function.body, "identifier")]
    arrays = [access.array for access in function.accesses]
    parent = function.node.parent
    return (
        not elsewhere
        and not early
        and (parent is None or parent.type != "declaration_list")
        and all(text_of(each.node).endswith(each.name) for each in function.parameters)
        and all(
            names.count(each.name) == arrays.count(each.name) for each in function.parameters if each.pointer
        )
    )


def _bare(node: Node) -> str:
    return squeezed(strip_parentheses(node))
