"""How large a launch's tiles are, and which parameters choose that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import prod

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import WARP_THREADS, LaunchPlanError, ResolvedOptions, plan_of
from mctskernel.edits.rule import resolve_at
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import calls

SMALLEST_DOT = 16
"""The least extent of a tile that `tl.dot` multiplies."""

ELEMENTS_PER_THREAD = 0.5, 128
"""Fewer leave most threads idle; more don't fit into the 255 registers that a thread may have."""

LARGEST_TILE = 1 << 16


def sane(
    context: TritonContext, launched: LaunchedFunction, kernel: Kernel | None = None, warps: int | None = None
) -> bool:
    """Whether another kernel, or number of warps, gives a launch's threads a sensible number of elements.

    This is asked at the first search shape. What was odd before may stay odd, and not become worse.
    """
    options = _options(context, launched, kernel or context.kernel)
    if options is None:
        return False
    before = elements_per_thread(context, launched, context.kernel)
    after = elements_per_thread(context, launched, kernel or context.kernel, warps)
    least, most = ELEMENTS_PER_THREAD
    if (after > most and after > before) or (after < least and after < before):
        return False
    sizes = _sizes_at(launched, options)
    if multiplies(launched.function) and any(size < SMALLEST_DOT for size in sizes.values()):
        return False
    return _largest(launched, options) <= LARGEST_TILE


def elements_per_thread(
    context: TritonContext, launched: LaunchedFunction, kernel: Kernel, warps: int | None = None
) -> float:
    """Elements of a launch's largest tile for each of its threads; 0 where the plan doesn't resolve."""
    options = _options(context, launched, kernel)
    if options is None:
        return 0.0
    return _largest(launched, options) / (WARP_THREADS * (warps or options.num_warps))


def multiplies(function: ast.FunctionDef) -> bool:
    """Whether a function multiplies tiles, which bounds their extents from below."""
    return any(True for _ in calls(function, "dot"))


def is_size_alone(function: ast.FunctionDef, name: str) -> bool:
    """Whether a parameter is used as the size of a block and as nothing else."""
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))
    return 0 < uses == sum(_sizes(node, name) for node in ast.walk(function))


def _sizes(node: ast.AST, name: str) -> int:
    """How many uses of a name as a size a node holds directly."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="arange"), args=[_, end]):
            return int(_is_name(end, name))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="cdiv"), args=[_, size]):
            return int(_is_name(size, name))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="zeros" | "full"), args=[shape, *_]):
            match shape:
                case ast.List(elts=extents) | ast.Tuple(elts=extents):
                    return sum(_is_name(extent, name) for extent in extents)
        case ast.For(iter=ast.Call(args=[_, _, step])):
            return int(_is_name(step, name))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return int(_is_name(left, name)) + int(_is_name(right, name))
    return 0


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _options(context: TritonContext, launched: LaunchedFunction, kernel: Kernel) -> ResolvedOptions | None:
    try:
        plan = resolve_at(context.task, kernel, plan_of(kernel), context.shapes[0])
    except LaunchPlanError:
        return None
    return plan.launches[launched.index].triton


def _sizes_at(launched: LaunchedFunction, options: ResolvedOptions) -> dict[str, int]:
    return {name: int(value) for name, value in options.constexprs if is_size_alone(launched.function, name)}


def _largest(launched: LaunchedFunction, options: ResolvedOptions) -> int:
    sizes = _sizes_at(launched, options)
    return max((prod(sizes.get(name, 1) for name in names) for names in _tiles(launched.function)), default=1)


def _tiles(function: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    """The names of the extents of the tiles in a function, as far as it makes them itself.

    Ranges along two axes are taken to meet in one tile: too large a guess where three of them do not all meet.
    """
    for call in calls(function, "zeros", "full"):
        match call.args:
            case [ast.List(elts=extents) | ast.Tuple(elts=extents), *_]:
                yield tuple(extent.id for extent in extents if isinstance(extent, ast.Name))
    for call in calls(function, "arange"):
        match call.args:
            case [_, ast.Name(id=name)]:
                yield (name,)
    if not any(True for _ in calls(function, "zeros", "full")):
        across = sorted(
            {
                name.id
                for node in ast.walk(function)
                if isinstance(node, ast.Subscript)
                for name in ast.walk(node)
                if isinstance(name, ast.Name) and name.id in _range_names(function)
            }
        )
        yield tuple(across)


def _range_names(function: ast.FunctionDef) -> frozenset[str]:
    return frozenset(
        call.args[1].id
        for call in calls(function, "arange")
        if len(call.args) == 2 and isinstance(call.args[1], ast.Name)
    )
