"""Several rows in each program: what was a vector becomes a tile, and what the rows share is loaded once for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.launch_plan import Extent
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import (
    Module,
    Replacement,
    argument,
    called,
    calls,
    names_assigned,
    names_read,
    parameters,
)
from mctskernel.edits.triton.tiles import sane

ROWS = (2, 4, 8)
LEAST_PROGRAMS = 264

REDUCTIONS = frozenset({"sum", "max", "min"})
ELEMENTWISE = frozenset(
    {
        "abs",
        "cos",
        "erf",
        "exp",
        "exp2",
        "fma",
        "log",
        "log2",
        "maximum",
        "minimum",
        "rsqrt",
        "sigmoid",
        "sin",
        "sqrt",
        "where",
    }
)
"""What works on tiles as it does on vectors."""

KNOWN = (
    REDUCTIONS | ELEMENTWISE | {"arange", "cumsum", "full", "load", "program_id", "range", "store", "zeros"}
)


@dataclass(frozen=True)
class _Row:
    """`name = tl.program_id(axis)`, the number of the row, of which there are `count`."""

    statement: ast.stmt
    name: str
    axis: int
    count: Extent


def several_rows(context: TritonContext) -> Iterator[Edit]:
    """A tile of rows in place of one row."""
    for launched in context.launched_once:
        taken = {each.name for each in context.module.constants} | set(parameters(launched.function))
        if {"ROWS", "row_count"} & (taken | names_assigned(launched.function)):
            continue
        row = _row(launched)
        if row is None or not _understood(launched.function, row):
            continue
        for size in ROWS:
            if _fits(context, launched, size):
                yield edit(
                    Category.COARSENING,
                    f"{launched.function.name}: {size} rows per program",
                    _source(context, launched, row, size),
                    rationale="Loads of several rows are under way at once, and what all rows share is loaded once for "
                    f"{size} of them.",
                    expected_effect="Less traffic between the caches, fewer programs, more registers.",
                    prior=1.0 if size == 4 else 0.7,
                )


def _fits(context: TritonContext, launched: LaunchedFunction, size: int) -> bool:
    """Whether the threads can hold as many times their elements, and enough programs remain for every device."""
    enough = context.resolved[0].launches[launched.index].blocks >= LEAST_PROGRAMS * size
    return enough and sane(context, launched, rows=size)


def _row(launched: LaunchedFunction) -> _Row | None:
    """The row that a program works on, if one statement says so and no other asks for the same axis."""
    for statement in launched.function.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Constant(value=int() as axis)]) as call
            ) if called(call) == "program_id" and axis < len(launched.launch.grid):
                same = [
                    each
                    for each in calls(launched.function, "program_id")
                    if ast.dump(each) == ast.dump(call)
                ]
                stores = [
                    node
                    for node in ast.walk(launched.function)
                    if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
                ]
                if len(same) == len(stores) == 1:
                    return _Row(statement, name, axis, launched.launch.grid[axis])
    return None


def _understood(function: ast.FunctionDef, row: _Row) -> bool:
    """Whether a function works on vectors along one axis, each row for itself, with nothing but what is known."""
    dependent = _dependent(function, row.name)
    for node in ast.walk(function):
        match node:
            case ast.Subscript() | ast.If() | ast.While() | ast.IfExp() | ast.Return():
                return False
            case ast.For(iter=over):
                if names_read(over) & dependent:
                    return False
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr=name)):
                if name not in KNOWN or not _plain(node, name):
                    return False
            case ast.Call(func=ast.Attribute(attr="to")):
                pass
            case ast.Call(func=ast.Name(id="range" | "float")):
                pass
            case ast.Call():
                return False
    return True


def _plain(call: ast.Call, name: str) -> bool:
    """Whether a call has the form that is rewritten."""
    if name in REDUCTIONS | {"cumsum"}:
        axis = argument(call, 1, "axis")
        return isinstance(axis, ast.Constant) and axis.value == 0 and len(call.args) + len(call.keywords) == 2
    if name in {"load", "store"}:
        return len(call.args) == (1 if name == "load" else 2)
    if name in {"zeros", "full"}:
        return isinstance(call.args[0], ast.List | ast.Tuple) and len(call.args[0].elts) == 1
    return True


def _dependent(function: ast.FunctionDef, row: str) -> frozenset[str]:
    """The names whose values differ from row to row."""
    found, before = {row}, 0
    while len(found) > before:
        before = len(found)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign) and names_read(node.value) & found:
                found |= names_assigned(node)
    return frozenset(found)


def _source(context: TritonContext, launched: LaunchedFunction, row: _Row, size: int) -> str:
    module, function = context.module, launched.function
    count = next((name for name, bound in launched.bound.items() if bound == row.count), "row_count")
    plain = [each for each in function.args.args if each.arg in launched.bound]
    added = "" if count in launched.bound else ", row_count"
    end = module.span(plain[-1])[1]
    last = module.span(function.args.args[-1])[1]
    changes = [
        module.replace(
            row.statement, f"{row.name} = (tl.program_id({row.axis}) * ROWS + tl.arange(0, ROWS))[:, None]"
        ),
        *_code(module, function, row, count),
        module.define("ROWS", size),
    ]
    if end == last:
        changes.append(Replacement(end, end, f"{added}, ROWS: tl.constexpr"))
    else:
        changes += [Replacement(end, end, added), Replacement(last, last, ", ROWS: tl.constexpr")]
    grid = list(launched.launch.grid)
    grid[row.axis] = f"ceil_div({row.count}, ROWS)"
    args = launched.launch.args if count in launched.bound else (*launched.launch.args, row.count)
    options = replace(launched.options, constexprs=(*launched.options.constexprs, ("ROWS", "ROWS")))
    launch = replace(launched.launch, grid=tuple(grid), args=args, triton=options)
    return context.written(changes, context.with_launch(launched.index, launch))


def _code(module: Module, function: ast.FunctionDef, row: _Row, count: str) -> Iterator[Replacement]:
    """The changes of the code but for the statement that says which row it is."""
    dependent = _dependent(function, row.name)
    inside = f"({row.name} < {count})"
    for call in calls(function):
        name, (_, end) = called(call), module.span(call)
        if name == "arange":
            yield Replacement(end, end, "[None, :]")
        elif name in REDUCTIONS | {"cumsum"}:
            axis = argument(call, 1, "axis")
            assert axis is not None  # noqa: S101 - as _plain has seen
            named = "" if axis in [keyword.value for keyword in call.keywords] else "axis="
            keep = "" if name == "cumsum" else ", keep_dims=True"
            yield module.replace(axis, f"{named}1{keep}")
        elif name in {"zeros", "full"}:
            shape = call.args[0]
            assert isinstance(shape, ast.List | ast.Tuple)  # noqa: S101 - as _plain has seen
            yield module.replace(shape, f"[ROWS, {module.text_of(shape.elts[0])}]")
        elif name in {"load", "store"} and names_read(call.args[0]) & dependent:
            mask = argument(call, 9, "mask")
            if mask is None:
                after = module.span(call.args[-1])[1]
                yield Replacement(after, after, f", mask={inside[1:-1]}")
            else:
                start, end = module.span(mask)
                bare = isinstance(mask, ast.Name)
                yield Replacement(start, start, "" if bare else "(")
                yield Replacement(end, end, f" & {inside}" if bare else f") & {inside}")
    carried = frozenset[str]().union(
        *(names_assigned(each) for each in function.body if isinstance(each, ast.For))
    )
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in carried:
                if isinstance(value, ast.Constant) or ast.unparse(value) == "float('-inf')":
                    yield module.replace(value, f"tl.full([ROWS, 1], {module.text_of(value)}, tl.float32)")


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-several-rows",
        Category.COARSENING,
        frozenset(
            {
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.LAUNCH_OVERHEAD,
                Bottleneck.BARRIERS,
            }
        ),
        several_rows,
        prior=0.7,
    ),
)
