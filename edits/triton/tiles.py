"""How large a launch's tiles are, and which parameters choose that."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mctskernel.core.launch_plan import WARP_THREADS, LaunchPlan, LaunchPlanError, ResolvedOptions, resolve
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import calls

SMALLEST_DOT = 16
"""The least extent of a tile that `tl.dot` multiplies."""

ELEMENTS_PER_THREAD = 0.5, 128
"""Fewer leave most threads idle; more don't fit into the 255 registers that a thread may have."""

LARGEST_TILE = 1 << 16


@dataclass(frozen=True)
class Tiles:
    """What a function's blocks are made of.

    `sizes` are the parameters that are used as sizes of blocks and as nothing else; `shapes` the extents of its
    tiles, by name, as far as it makes them itself.
    """

    sizes: frozenset[str]
    shapes: frozenset[tuple[str, ...]]
    multiplied: bool

    def largest(self, values: Mapping[str, int]) -> int:
        """Elements of the largest tile; an extent that isn't known counts as 1."""
        return max((prod(values.get(name, 1) for name in shape) for shape in self.shapes), default=1)


@lru_cache(maxsize=64)
def tiles_of(function: ast.FunctionDef) -> Tiles:
    """The tiles of a function. Ranges along two axes are taken to meet in one tile where no new tensor says more."""
    uses, sizes = dict[str, int](), dict[str, int]()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            uses[node.id] = uses.get(node.id, 0) + 1
        for name in _sizes(node):
            sizes[name] = sizes.get(name, 0) + 1
    alone = frozenset(name for name, count in sizes.items() if uses[name] == count)
    return Tiles(alone, frozenset(_shapes(function)), any(True for _ in calls(function, "dot")))


def sane(
    context: TritonContext,
    launched: LaunchedFunction,
    constants: Mapping[str, int] | None = None,
    *,
    warps: int | None = None,
    plan: LaunchPlan | None = None,
    rows: int = 1,
) -> bool:
    """Whether a launch's threads get a sensible number of elements: with other constants or warps, or several rows.

    This is asked at the first search shape. What was odd before may stay odd, and not become worse.
    """
    options = _options(context, launched, constants or {}, plan or context.plan)
    before = _options(context, launched, {}, context.plan)
    if options is None or before is None:
        return False
    tiles = tiles_of(launched.function)
    values = _values(options)
    now = rows * tiles.largest(values) / (WARP_THREADS * (warps or options.num_warps))
    then = tiles.largest(_values(before)) / (WARP_THREADS * before.num_warps)
    least, most = ELEMENTS_PER_THREAD
    if (now > most and now > then) or (now < least and now < then):
        return False
    if tiles.multiplied and any(values.get(name, SMALLEST_DOT) < SMALLEST_DOT for name in tiles.sizes):
        return False
    return rows * tiles.largest(values) <= LARGEST_TILE


def _options(
    context: TritonContext, launched: LaunchedFunction, constants: Mapping[str, int], plan: LaunchPlan
) -> ResolvedOptions | None:
    names = {**context.kernel.macros, **constants, **context.task.scalars, **context.shapes[0]}
    try:
        return resolve(plan, names, context.task.buffer_names).launches[launched.index].triton
    except LaunchPlanError:
        return None


def _values(options: ResolvedOptions) -> dict[str, int]:
    return {name: int(value) for name, value in options.constexprs}


def _sizes(node: ast.AST) -> Iterator[str]:
    """The names that a node uses directly as sizes of blocks."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="arange" | "cdiv"), args=[_, size]):
            yield from _name(size)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="zeros" | "full"), args=[shape, *_]):
            yield from _listed(shape)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="broadcast_to"), args=[_, shape]):
            yield from _listed(shape)
        case ast.BinOp(op=ast.Mod(), right=right):
            yield from _name(right)  # whether blocks of this size fit
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=1)):
            yield from _name(left)  # the last of a block
        case ast.For(iter=ast.Call(args=[_, _, step])):
            yield from _name(step)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _name(left)
            yield from _name(right)


def _listed(shape: ast.expr) -> Iterator[str]:
    match shape:
        case ast.List(elts=extents) | ast.Tuple(elts=extents):
            for extent in extents:
                yield from _name(extent)


def _name(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id


def _shapes(function: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    ranges = {
        call.args[1].id
        for call in calls(function, "arange")
        if len(call.args) == 2 and isinstance(call.args[1], ast.Name)
    }
    yield from ((name,) for name in ranges)
    made = list(calls(function, "zeros", "full"))
    for call in made:
        match call.args:
            case [ast.List(elts=extents) | ast.Tuple(elts=extents), *_]:
                yield tuple(extent.id for extent in extents if isinstance(extent, ast.Name))
    if not made:
        subscripts = [node for node in ast.walk(function) if isinstance(node, ast.Subscript)]
        named = {name.id for each in subscripts for name in ast.walk(each) if isinstance(name, ast.Name)}
        yield tuple(sorted(named & ranges))
