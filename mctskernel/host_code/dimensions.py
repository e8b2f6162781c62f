"""How dimensions follow from the shapes of tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.task import Tensor


@dataclass(frozen=True)
class Extent:
    """An extent of a tensor: an expression over the dimensions, at an axis."""

    tensor: str
    axis: int
    text: str | int


@dataclass(frozen=True)
class Solved:
    """A dimension, and the expression that gives it: of an extent, which is called `SIZE` in it, and of dimensions.

    `divides` is set where the extent has to divide something without a rest, lest several dimensions fit: what it
    divides, as an expression.
    """

    name: str
    extent: Extent
    expression: str
    divides: str = ""


SIZE = "__size__"
"""What an extent's size is called in the expression of a dimension that follows from it."""


def solve(tensors: Sequence[Tensor], dimensions: Iterable[str]) -> tuple[Solved, ...]:
    """The dimensions that follow from the shapes of tensors, in an order in which each needs earlier ones alone.

    Extents that are a dimension come first; then those in which one that is still unknown occurs once, under additions,
    subtractions, multiplications and as a divisor. What isn't among the result doesn't follow.
    """
    wanted = list(dict.fromkeys(dimensions))
    extents = [Extent(t.name, axis, text) for t in tensors for axis, text in enumerate(t.shape)]
    found: dict[str, Solved] = {}
    for extent in extents:
        if isinstance(extent.text, str) and (name := extent.text.strip()) in wanted and name not in found:
            found[name] = Solved(name, extent, SIZE)
    while len(found) < len(wanted):
        more = next((each for e in extents if (each := _solved(e, wanted, found)) is not None), None)
        if more is None:
            break
        found[more.name] = more
    return tuple(found.values())


def _solved(extent: Extent, wanted: Sequence[str], known: Mapping[str, Solved]) -> Solved | None:
    if not isinstance(extent.text, str):
        return None
    tree = ast.parse(extent.text.strip(), mode="eval").body
    unknown = [
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in wanted and n.id not in known
    ]
    if len(unknown) != 1:
        return None
    solution: ast.expr = ast.Name(SIZE)
    divides = ""
    while not isinstance(tree, ast.Name):
        step = _undone(tree, unknown[0], solution)
        if step is None or divides:
            return None
        tree, solution, divides = step
    return Solved(unknown[0], extent, ast.unparse(solution), divides)


def _undone(tree: ast.expr, unknown: str, value: ast.expr) -> tuple[ast.expr, ast.expr, str] | None:
    """An equation `tree == value` without the tree's outermost operation: what is left of the tree, and its value."""
    match tree:
        case ast.BinOp(left=left, op=op, right=right):
            inner, other = (left, right) if _mentions(left, unknown) else (right, left)
        case _:
            return None
    match op:
        case ast.Add():
            return inner, ast.BinOp(value, ast.Sub(), other), ""
        case ast.Sub() if inner is left:
            return inner, ast.BinOp(value, ast.Add(), other), ""
        case ast.Sub():
            return inner, ast.BinOp(other, ast.Sub(), value), ""
        case ast.Mult():
            return inner, ast.BinOp(value, ast.FloorDiv(), other), ""
        case ast.Div() if inner is left:
            return inner, ast.BinOp(value, ast.Mult(), other), ""
        case ast.Div() | ast.FloorDiv() if inner is right:
            return inner, ast.BinOp(other, ast.FloorDiv(), value), ast.unparse(other)
    return None


def _mentions(tree: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
