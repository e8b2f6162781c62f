"""What indices, guards and statements of a kernel say about its threads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import Polynomial
from mctskernel.edits.rule import constant

AXES = ("x", "y", "z")
BUILT_INS = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"})
_BRANCHES = (
    "if_statement",
    "for_statement",
    "while_statement",
    "do_statement",
    "switch_statement",
    "conditional_expression",
    "lambda_expression",
    "binary_expression",
)


@dataclass(frozen=True)
class Guarded:
    """A body that works only inside `bounds` (the bound's node by variable), behind its `prologue` of declarations."""

    prologue: tuple[Node, ...]
    bounds: Mapping[str, Node]
    statements: tuple[Node, ...]
    guard: Node


def guarded(function: cu.Function) -> Guarded | None:
    """The body as declarations, one guard and the statements under it, if it has that form."""
    children = code(function.body)
    for position, node in enumerate(children):
        if node.type == "declaration":
            continue
        if node.type != "if_statement" or node.child_by_field_name("alternative") is not None:
            return None
        condition = cu.field(cu.field(node, "condition"), "value")
        inside, rest = code(cu.field(node, "consequence")), children[position + 1 :]
        if rest and [cu.squeezed(statement) for statement in inside] != ["return;"]:
            return None
        bounds = upper_bounds(condition, leaving=bool(rest))
        return Guarded(tuple(children[:position]), bounds, tuple(rest or inside), node) if bounds else None
    return None


def upper_bounds(condition: Node, *, leaving: bool = False) -> dict[str, Node]:
    """`i < n && j < m` as {i: n, j: m}; with `leaving`, `i >= n || j >= m`. Empty if it is anything else."""
    condition = cu.strip_parentheses(condition)
    left, operator, right = cu.operands(condition) or (condition, "", condition)
    if operator == ("||" if leaving else "&&"):
        first, second = upper_bounds(left, leaving=leaving), upper_bounds(right, leaving=leaving)
        return {**first, **second} if first and second and not first.keys() & second.keys() else {}
    below, above = (">=", "<=") if leaving else ("<", ">")
    if operator == above:
        left, right = right, left
    elif operator != below:
        return {}
    left = cu.strip_parentheses(left)
    return {cu.text_of(left): right} if left.type == "identifier" else {}


def global_index_axis(index: Polynomial, launch: Launch, macros: Mapping[str, int]) -> str | None:
    """The axis a for which an index is blockIdx.a * (block's extent along a) + threadIdx.a, if there is one."""
    for axis, extent in zip(AXES, (*launch.block, 1, 1), strict=False):
        thread = index.coefficient(f"threadIdx.{axis}")
        block = index.coefficient(f"blockIdx.{axis}")
        if thread is None or thread.constant != 1 or block is None or not block.terms:
            continue
        if index.without(f"threadIdx.{axis}").without(f"blockIdx.{axis}").terms:
            continue
        if is_block_extent(block, axis, extent, macros):
            return axis
    return None


def plan_expression(bound: Node, function: cu.Function, launch: Launch, source: cu.Source) -> str | None:
    """An expression over a kernel's parameters as an expression of the launch plan; None if it uses anything else."""
    names = cu.identifiers(bound)
    arguments = {p.name: a for p, a in zip(function.parameters, launch.args, strict=False)}
    replacements = {}
    for name in names:
        if name in arguments:
            replacements[name] = str(arguments[name])
        elif name not in source.macro_names:
            return None
    if any(child.type in {"call_expression", "subscript_expression"} for child in cu.walk(bound)):
        return None
    if cu.text_of(bound).strip() in replacements:
        return replacements[cu.text_of(bound).strip()]
    return replace_names(cu.text_of(bound), replacements).replace("/", "//")


def distinct_arguments(launch: Launch) -> bool:
    """Whether no two parameters get the same argument, so that no two pointers are the same."""
    return len(set(map(str, launch.args))) == len(launch.args)


def replace_names(text: str, replacements: Mapping[str, str]) -> str:
    """Replace whole identifiers all at once; what isn't a plain name or element is wrapped in parentheses."""

    def replacement(match: re.Match[str]) -> str:
        new = replacements[match[0]]
        return new if re.fullmatch(r"\w+(\[[^\[\]]*\])*", new) else f"({new})"

    if not replacements:
        return text
    names = "|".join(map(re.escape, replacements))
    return re.sub(rf"(?<![\w.])(?:{names})\b", replacement, text)


def inlined(node: Node, known: Mapping[str, Node], keep: frozenset[str], depth: int = 0) -> str | None:
    """A node's text in terms of the names to keep; None when a name is neither kept nor defined."""
    replacements = {}
    for name in cu.identifiers(node):
        if name in keep or "." in name or name in BUILT_INS:
            continue
        if name not in known or depth > 20:
            return None
        text = inlined(known[name], known, keep, depth + 1)
        if text is None:
            return None
        replacements[name] = text
    return replace_names(cu.text_of(node), replacements)


def always_happens(node: Node, outer: Node) -> bool:
    """Whether a thread that executes a statement, or the body of a loop, certainly executes a node inside it."""
    branch = cu.enclosing(node, *_BRANCHES)
    if branch is None or not cu.within(branch, outer):
        return True
    if branch.type == "binary_expression":
        operator = branch.child_by_field_name("operator")
        first = branch.child_by_field_name("left")
        shortened = operator is not None and cu.text_of(operator) in {"&&", "||"}
    else:
        first, shortened = branch.child_by_field_name("condition"), True
        if branch.type in {"for_statement", "lambda_expression"}:
            return False
    reached = not shortened or (first is not None and cu.within(node, first))
    return reached and always_happens(branch, outer)


def code(node: Node) -> list[Node]:
    """The statements of a compound statement without comments, or the statement itself."""
    if node.type != "compound_statement":
        return [node]
    return [child for child in node.named_children if child.type != "comment"]


def is_block_extent(extent: Polynomial, axis: str, planned: int | str, macros: Mapping[str, int]) -> bool:
    """Whether an expression is the extent of the block along an axis, by name or by value."""
    if str(extent) == f"blockDim.{axis}":
        return True
    value = extent.at(macros).constant
    return value is not None and value == constant(planned, macros)
