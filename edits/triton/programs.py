"""What each program of a Triton kernel does: several rows, tiles in another order, or many tiles in turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Extent
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py
from mctskernel.edits.triton.tuning import sane, tiles_of

ROWS = (2, 4, 8)
LEAST_PROGRAMS = 264

REDUCTIONS = frozenset({"sum", "max", "min"})
ELEMENTWISE = frozenset(
    "abs cos erf exp exp2 fma log log2 maximum minimum rsqrt sigmoid sin sqrt where".split()
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


@py.rule(Category.COARSENING, 0.7, "l2_bandwidth l1_throughput global_latency barriers launch_overhead")
def several_rows(context: py.TritonContext) -> Iterator[Proposal]:
    for launched in context.launched_once:
        taken = {each.name for each in context.module.constants} | set(py.parameters(launched.function))
        if {"ROWS", "row_count"} & (taken | py.names_assigned(launched.function)):
            continue
        row = _row(launched)
        if row is None or not _understood(launched.function, row):
            continue
        for size in ROWS:
            if _fits(context, launched, size):
                yield Proposal(
                    f"{size} rows per program{context.where(launched.function.name)}",
                    _source(context, launched, row, size),
                    rationale="Loads of several rows are in flight at once, and what all rows share is loaded once for "
                    f"{size} of them.",
                    expected_effect="Less traffic between the caches, fewer programs, more registers.",
                    prior=1.0 if size == 4 else 0.7,
                )


def _fits(context: py.TritonContext, launched: py.LaunchedFunction, size: int) -> bool:
    """Whether the threads can hold as many times their elements, and enough programs remain for every device."""
    enough = context.resolved[0].launches[launched.index].blocks >= LEAST_PROGRAMS * size
    return enough and sane(context, launched, rows=size)


def _row(launched: py.LaunchedFunction) -> _Row | None:
    """The row that a program works on, if one statement reads it and no other uses the same axis."""
    for statement in launched.function.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Constant(value=int() as axis)]) as call
            ) if py.called(call) == "program_id" and axis < len(launched.launch.grid):
                same = [
                    each
                    for each in py.calls(launched.function, "program_id")
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
                if py.names_read(over) & dependent:
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
        axis = py.argument(call, 1, "axis")
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
            if isinstance(node, ast.Assign | ast.AugAssign) and py.names_read(node.value) & found:
                found |= py.names_assigned(node)
    return frozenset(found)


def _source(context: py.TritonContext, launched: py.LaunchedFunction, row: _Row, size: int) -> str:
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
        changes.append(py.Replacement(end, end, f"{added}, ROWS: tl.constexpr"))
    else:
        changes += [py.Replacement(end, end, added), py.Replacement(last, last, ", ROWS: tl.constexpr")]
    grid = list(launched.launch.grid)
    grid[row.axis] = f"ceil_div({row.count}, ROWS)"
    args = launched.launch.args if count in launched.bound else (*launched.launch.args, row.count)
    options = replace(launched.options, constexprs=(*launched.options.constexprs, ("ROWS", "ROWS")))
    launch = replace(launched.launch, grid=tuple(grid), args=args, triton=options)
    return context.written(changes, context.with_launch(launched.index, launch))


def _code(module: py.Module, function: ast.FunctionDef, row: _Row, count: str) -> Iterator[py.Replacement]:
    """The changes of the code but for the statement that says which row it is."""
    dependent = _dependent(function, row.name)
    inside = f"({row.name} < {count})"
    for call in py.calls(function):
        name, (_, end) = py.called(call), module.span(call)
        if name == "arange":
            yield py.Replacement(end, end, "[None, :]")
        elif name in REDUCTIONS | {"cumsum"} and (axis := py.argument(call, 1, "axis")) is not None:
            named = "" if axis in [keyword.value for keyword in call.keywords] else "axis="
            keep = "" if name == "cumsum" else ", keep_dims=True"
            yield module.replace(axis, f"{named}1{keep}")
        elif name in {"zeros", "full"} and isinstance(shape := call.args[0], ast.List | ast.Tuple):
            yield module.replace(shape, f"[ROWS, {module.text_of(shape.elts[0])}]")
        elif name in {"load", "store"} and py.names_read(call.args[0]) & dependent:
            mask = py.argument(call, 9, "mask")
            if mask is None:
                after = module.span(call.args[-1])[1]
                yield py.Replacement(after, after, f", mask={inside[1:-1]}")
            else:
                start, end = module.span(mask)
                bare = isinstance(mask, ast.Name)
                yield py.Replacement(start, start, "" if bare else "(")
                yield py.Replacement(end, end, f" & {inside}" if bare else f") & {inside}")
    carried = frozenset[str]().union(
        *(py.names_assigned(each) for each in function.body if isinstance(each, ast.For))
    )
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in carried:
                if isinstance(value, ast.Constant) or ast.unparse(value) == "float('-inf')":
                    yield module.replace(value, f"tl.full([ROWS, 1], {module.text_of(value)}, tl.float32)")


GROUPS = (4, 8, 16)
PROGRAMS = (264, 528, 1056)
"""Multiples of the 132 multiprocessors of an H100; the grid is no longer than it was."""


@py.rule(Category.LAUNCH, 0.4, "dram_bandwidth l2_bandwidth global_latency")
def grouped_tiles(context: py.TritonContext) -> Iterator[Proposal]:
    """Programs that start together work on tiles that share rows and columns.

    `tl.swizzle2d` maps the tiles, numbered row by row, to themselves in another order, whatever their number.
    """
    for launched in context.launched_once:
        ids = _program_ids(launched.function)
        if set(ids) < {0, 1} or len(launched.launch.grid) < 2 or not tiles_of(launched.function).multiplied:
            continue
        if any(True for _ in py.calls(launched.function, "swizzle2d", "num_programs")):
            continue
        if {"tile_x", "tile_y"} & (
            py.names_assigned(launched.function) | set(py.parameters(launched.function))
        ):
            continue
        for size in GROUPS:
            line = (
                "tile_y, tile_x = tl.swizzle2d(tl.program_id(1), tl.program_id(0), "
                f"tl.num_programs(1), tl.num_programs(0), {size})"
            )
            changes = [
                context.module.replace(call, name)
                for axis, name in ((0, "tile_x"), (1, "tile_y"))
                for call in ids.get(axis, [])
            ]
            yield Proposal(
                f"order tiles in groups of {size} rows for L2 reuse{context.where(launched.function.name)}",
                context.written([*changes, context.module.insert_before(launched.function.body[0], line)]),
                rationale="Tiles that are computed at the same time then lie in a block, not in a line, and need fewer "
                "different rows and columns between them.",
                expected_effect="Fewer misses in the L2 cache.",
                prior=1.0 if size == 8 else 0.6,
            )


@py.rule(Category.PARALLELISM, 0.5, "global_latency tail launch_overhead")
def striding_programs(context: py.TritonContext) -> Iterator[Proposal]:
    """As many programs as the device takes at once, each of which does several of the old ones' work in turn."""
    for launched in context.launched_once:
        function = launched.function
        first, *rest = function.body
        if len(launched.launch.grid) != 1 or not rest or not _is_program(first):
            continue
        if any(isinstance(node, ast.Return) for node in ast.walk(function)):
            continue
        if any(True for _ in py.calls(ast.Module(rest, []), "program_id", "num_programs")):
            continue
        count = launched.launch.grid[0]
        taken = py.names_assigned(function) | {
            *py.parameters(function),
            *(each.name for each in context.module.constants),
        }
        if {"programs", "PROGRAMS"} & taken or not launched.bound:
            continue
        blocks = context.resolved[0].launches[launched.index].blocks
        for size in PROGRAMS:
            if blocks >= 2 * size:
                # The compiler pipelines innermost loops only.
                for stages in (0,) if any(isinstance(each, ast.For) for each in rest) else (0, 2, 3):
                    yield _striding(context, launched, count, size, stages)


def _striding(
    context: py.TritonContext, launched: py.LaunchedFunction, count: int | str, size: int, stages: int
) -> Proposal:
    function, module = launched.function, context.module
    first, *rest = function.body
    name = next(iter(py.names_assigned(first)))
    option = f", num_stages={stages}" if stages else ""
    loop = "tl.range" if stages else "range"
    header = f"for {name} in {loop}(tl.program_id(0), programs, tl.num_programs(0){option}):"
    start, end = module.lines_of(rest)
    body = "".join(
        f"    {line}" if line.strip() else line for line in module.text[start:end].splitlines(keepends=True)
    )
    plain = [each for each in function.args.args if each.arg in launched.bound]
    _, end_of_plain = module.span(plain[-1])
    changes = [
        py.Replacement(*module.span(first), header),
        py.Replacement(start, end, body),
        py.Replacement(end_of_plain, end_of_plain, ", programs"),
        module.define("PROGRAMS", size),
    ]
    launch = replace(launched.launch, grid=(f"min(PROGRAMS, {count})",), args=(*launched.launch.args, count))
    staged = f", {stages} stages" if stages else ""
    return Proposal(
        f"persistent kernel with {size} programs{staged}{context.where(function.name)}",
        context.written(changes, context.with_launch(launched.index, launch)),
        rationale="A grid that fills the device once starts no program late, and a program's next loads needn't wait "
        "for another to be launched.",
        expected_effect="No tail, less launching.",
        prior=(1.0 if size == PROGRAMS[1] else 0.6) * (1.0 if not stages else 0.6),
    )


def _is_program(statement: ast.stmt) -> bool:
    return ast.unparse(statement).endswith(" = tl.program_id(0)") and len(py.names_assigned(statement)) == 1


def _program_ids(function: ast.FunctionDef) -> dict[int, list[ast.Call]]:
    found: dict[int, list[ast.Call]] = {}
    for call in py.calls(function, "program_id"):
        match call.args:
            case [ast.Constant(value=int() as axis)]:
                found.setdefault(axis, []).append(call)
            case _:
                return {}
    return found
