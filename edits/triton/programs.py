"""What each program of a Triton kernel does: several rows, tiles in another order, or many tiles in turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Extent
from mctskernel.edits.rule import Proposal
from mctskernel.edits.syntax import Replacement
from mctskernel.edits.triton import module as py
from mctskernel.edits.triton.tuning import is_sensible, tiles_of

ROWS = (2, 4, 8, 16)
LEAST_PROGRAMS = 264

REDUCTIONS = frozenset({"sum", "max", "min"})
ELEMENTWISE = frozenset(
    "abs cast cdiv cos erf exp exp2 fma log log2 maximum minimum rsqrt sigmoid sin sqrt where".split()
)
"""What works on tiles as it does on vectors."""


@dataclass(frozen=True)
class _Row:
    """`name = tl.program_id(axis)`, the number of the row, of which there are `count`."""

    call: ast.Call
    name: str
    axis: int
    count: Extent


@py.rule(Category.COARSENING, 0.7, "l2_bandwidth l1_throughput global_latency barriers launch_overhead")
def several_rows(context: py.TritonContext) -> Iterator[Proposal]:
    """A tile of rows in place of one row."""
    context = context.decided
    for launched in context.launched_once:
        function, row = launched.function, _row(launched)
        if row is None or not understood(context.module, function) or not context.unused("ROWS", "row_count"):
            continue
        loops = (node for node in ast.walk(function) if isinstance(node, ast.For))
        if any(py.names_read(loop.iter) & py.dependent(function, row.name) for loop in loops):
            continue
        for size in ROWS:
            # Enough programs must remain, and threads must be able to hold as many times their elements.
            enough = context.resolved[0].launches[launched.index].blocks >= LEAST_PROGRAMS * size
            if enough and is_sensible(context, launched, rows=size):
                yield Proposal(
                    f"{size} rows per program{context.where(function.name)}",
                    _source(context, launched, row, size),
                    rationale="Loads of several rows are in flight at once, and what all rows share is loaded once for "
                    f"{size} of them.",
                    expected_effect="Less traffic between the caches, fewer programs, more registers.",
                    prior=1.0 if size == 8 else 0.7,
                )


def _row(launched: py.LaunchedFunction) -> _Row | None:
    """The row that a program works on, if one statement reads it and no other uses the same axis."""
    for name, value in py.assigned_once(launched.function).items():
        call = value
        match value:
            case (
                ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr="cast"), args=[inner, kind])
                | ast.Call(func=ast.Attribute(value=inner, attr="to"), args=[kind])
            ):
                call = inner if ast.unparse(kind) == "tl.int64" else value
        if not isinstance(call, ast.Call) or py.called(call) != "program_id":
            continue
        axis = _axis(call)
        same = [each for each in py.calls(launched.function, "program_id") if _axis(each) == axis]
        if axis and len(same) == 1 and int(axis) < len(launched.launch.grid):
            return _Row(call, name, int(axis), launched.launch.grid[int(axis)])
    return None


def understood(module: py.Module, function: ast.FunctionDef) -> bool:
    """Whether a function works on vectors along one axis, with nothing but what is known."""
    nodes = list(ast.walk(function))
    odd = ast.Subscript | ast.If | ast.While | ast.IfExp | ast.Return
    return not any(isinstance(n, odd) for n in nodes) and all(
        _known(module, n) for n in nodes if isinstance(n, ast.Call)
    )


def _known(module: py.Module, call: ast.Call) -> bool:
    """Whether a call does to tiles what it does to vectors, once it is rewritten."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="tl"), attr=name):
            if name in REDUCTIONS | {"cumsum"}:
                where = [*map(ast.unparse, call.args[1:]), *map(ast.unparse, call.keywords)]
                return where in (["0"], ["axis=0"]) or (name in REDUCTIONS and not where)
            if name in {"zeros", "full"}:
                return isinstance(call.args[0], ast.List | ast.Tuple) and len(call.args[0].elts) == 1
            return name in ELEMENTWISE | {"arange", "load", "program_id", "range", "store"}
        case ast.Attribute(attr="to" | "cast") | ast.Name(id="range" | "float"):
            return True
        case ast.Attribute(value=ast.Name(id="libdevice") | ast.Attribute(attr="math")):
            return True
        case ast.Name(id=name) if name in module.functions:
            return {py.called(each) for each in py.calls(module.functions[name])} <= ELEMENTWISE | {""}
    return False


def _source(context: py.TritonContext, launched: py.LaunchedFunction, row: _Row, size: int) -> str:
    module, function = context.module, launched.function
    count = next((name for name, bound in launched.bound.items() if bound == row.count), "row_count")
    plain = [each for each in function.args.args if each.arg in launched.bound]
    added = "" if count in launched.bound else ", row_count"
    end = module.span(plain[-1])[1]
    changes = [
        module.replace(row.call, f"(tl.program_id({row.axis}) * ROWS + tl.arange(0, ROWS))[:, None]"),
        *_code(module, function, row, count),
        module.define("ROWS", size),
    ]
    changes += [Replacement(end, end, added), module.parameter(function, "ROWS: tl.constexpr")]
    grid = list(launched.launch.grid)
    grid[row.axis] = f"ceil_div({row.count}, ROWS)"
    args = launched.launch.args if count in launched.bound else (*launched.launch.args, row.count)
    options = replace(launched.options, constexprs=(*launched.options.constexprs, ("ROWS", "ROWS")))
    launch = replace(launched.launch, grid=tuple(grid), args=args, triton=options)
    return context.written(changes, context.with_launch(launched.index, launch))


def _code(module: py.Module, function: ast.FunctionDef, row: _Row, count: str) -> Iterator[Replacement]:
    """The changes of the code but for the statement that says which row it is."""
    dependent = py.dependent(function, row.name)
    inside = f"({row.name} < {count})"
    for call in py.calls(function):
        name, (_, end) = py.called(call), module.span(call)
        if name == "arange":
            yield Replacement(end, end, "[None, :]")
        elif name in REDUCTIONS | {"cumsum"}:
            after = module.span(call.args[0])[1]
            yield Replacement(after, end - 1, f", axis=1{', keep_dims=True' if name in REDUCTIONS else ''}")
        elif name in {"zeros", "full"} and isinstance(shape := call.args[0], ast.List | ast.Tuple):
            yield module.replace(shape, f"[ROWS, {module.text_of(shape.elts[0])}]")
        elif name in {"load", "store"} and py.names_read(call.args[0]) & dependent:
            mask = py.argument(call, 1 if name == "load" else 2, "mask")
            if mask is None:
                after = module.span(call.args[-1])[1]
                yield Replacement(after, after, f", mask={inside[1:-1]}")
            else:
                start, end = module.span(mask)
                bare = isinstance(mask, ast.Name)
                yield Replacement(start, start, "" if bare else "(")
                yield Replacement(end, end, f" & {inside}" if bare else f") & {inside}")
    carried = frozenset[str]().union(
        *(py.names_assigned(each) for each in function.body if isinstance(each, ast.For))
    )
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in carried:
                if isinstance(value, ast.Constant) or ast.unparse(value) == "float('-inf')":
                    yield module.replace(value, f"tl.full([ROWS, 1], {module.text_of(value)}, tl.float32)")


TILE, TILES = ("tile_x", "tile_y", "tile_z"), ("tiles_x", "tiles_y", "tiles_z")


@py.rule(Category.LAUNCH, 0.4, "dram_bandwidth l2_bandwidth global_latency")
def grouped_tiles(context: py.TritonContext) -> Iterator[Proposal]:
    """Programs that start together share rows and columns of tiles: `tl.swizzle2d` reorders the tiles."""
    for launched in context.launched_once:
        function, module = launched.function, context.module
        ids = {call: _axis(call) for call in py.calls(function, "program_id")}
        if (
            not {"0", "1"} <= {*ids.values()}
            or not tiles_of(function).multiplied
            or not context.unused(*TILE)
        ):
            continue
        if not any(py.calls(function, "swizzle2d", "num_programs")) and "" not in ids.values():
            asked = ", ".join(
                f"tl.{what}({axis})" for what in ("program_id", "num_programs") for axis in (1, 0)
            )
            line = f"tile_y, tile_x = tl.swizzle2d({asked}, 8)"
            changes = [module.replace(call, TILE[int(axis)]) for call, axis in ids.items() if axis != "2"]
            yield Proposal(
                f"order tiles in groups of 8 rows for L2 reuse{context.where(function.name)}",
                context.written([*changes, module.insert_before(function.body[0], line)]),
                rationale="Tiles that are computed at the same time then lie in a block, not in a line, and need fewer "
                "different rows and columns between them.",
                expected_effect="Fewer misses in the L2 cache.",
            )


def _axis(call: ast.Call) -> str:
    """The axis that a call asks about, as it is written."""
    axis = py.argument(call, 0, "axis")
    return str(axis.value) if isinstance(axis, ast.Constant) and axis.value in {0, 1, 2} else ""


def striding(
    context: py.TritonContext, launched: py.LaunchedFunction, size: int, *, flatten: bool
) -> str | None:
    """A source with at most `size` programs that do the work of several in turn; None where that can't be done.

    `flatten` makes one loop of that over a program's tiles and the one in it, so that tiles are loaded across its ends.
    """
    function, module, grid = launched.function, context.module, launched.launch.grid
    asked = list(py.calls(function, "program_id", "num_programs"))
    every = sum(1 for _ in py.calls(module.tree, "program_id", "num_programs"))
    first = min((call.lineno for call in asked), default=0)
    rest = [each for each in function.body if (each.end_lineno or 0) >= first]
    axes = [_axis(call) or "3" for call in asked]
    if not asked or len(asked) < every or not launched.bound or int(max(axes)) >= len(grid):
        return None
    if any(isinstance(node, ast.Return) for each in rest for node in ast.walk(each)):
        return None
    if not context.unused(*TILE, *TILES, "tile", "tiles", "PROGRAMS"):
        return None
    outer = [each for each in function.body if each not in rest]
    before = frozenset(py.parameters(function)).union(*map(py.names_assigned, outer))
    changed = before & frozenset[str]().union(*map(py.names_assigned, rest))
    option = ", flatten=True" if flatten else ""
    lines = [f"for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0){option}):"]
    lines += [f"    {name}_here = {name}" for name in sorted(changed)]
    if len(grid) > 1:
        lines += ["    tile_x = tile % tiles_x", "    tile_y = tile // tiles_x % tiles_y"]
        lines += ["    tile_z = tile // (tiles_x * tiles_y)"] if len(grid) > 2 else []
        if not any(py.calls(function, "swizzle2d")):
            lines.append("    tile_y, tile_x = tl.swizzle2d(tile_y, tile_x, tiles_y, tiles_x, 8)")
    one = len(grid) == 1
    # A number that is 1 at some shape is a constant there, without the methods of what `num_programs` gives.
    counts = [f"tl.cast({each}, tl.int32)" for each in (["tiles"] if one else TILES)]
    names = {"program_id": ["tile"] if one else TILE, "num_programs": counts}
    start, end = module.lines_of(rest)
    extents = {} if one else dict(zip(TILES, grid, strict=False))
    extents["tiles"] = " * ".join(f"({each})" for each in grid)
    after = max(module.span(each)[1] for each in function.args.args if each.arg in launched.bound)
    changes = [
        module.insert_before(rest[0], "\n".join(lines)),
        *(Replacement(at, at, "    ") for at in module.line_starts(start, end)),
        *(
            module.replace(call, names[py.called(call)][int(axis)])
            for call, axis in zip(asked, axes, strict=True)
        ),
        *(
            module.replace(node, f"{node.id}_here")
            for each in rest
            for node in ast.walk(each)
            if isinstance(node, ast.Name) and node.id in changed
        ),
        Replacement(after, after, "".join(f", {name}" for name in extents)),
        module.define("PROGRAMS", size),
    ]
    args = (*launched.launch.args, *extents.values())
    launch = replace(launched.launch, grid=(f"min(PROGRAMS, {extents['tiles']})",), args=args)
    return context.written(changes, context.with_launch(launched.index, launch))
