"""Which program does what: neighbours that share data, rows that programs stride over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import (
    Replacement,
    calls,
    names_assigned,
    parameters,
)
from mctskernel.edits.triton.tiles import tiles_of

GROUPS = (4, 8, 16)
PROGRAMS = (264, 528, 1056)
"""Multiples of the 132 multiprocessors of an H100; the grid is no longer than it was."""


def grouped(context: TritonContext) -> Iterator[Edit]:
    """Programs that start together work on tiles that share rows and columns.

    `tl.swizzle2d` maps the tiles, numbered row by row, to themselves in another order, whatever their number.
    """
    for launched in context.launched_once:
        ids = _program_ids(launched.function)
        if set(ids) < {0, 1} or len(launched.launch.grid) < 2 or not tiles_of(launched.function).multiplied:
            continue
        if any(True for _ in calls(launched.function, "swizzle2d", "num_programs")):
            continue
        if {"tile_x", "tile_y"} & (names_assigned(launched.function) | set(parameters(launched.function))):
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
            yield edit(
                Category.LAUNCH,
                f"{launched.function.name}: tiles in groups of {size} rows",
                context.written([*changes, context.module.insert_before(launched.function.body[0], line)]),
                rationale="Tiles that are computed at the same time then lie in a block, not in a line, and need fewer "
                "different rows and columns between them.",
                expected_effect="Fewer misses in the L2 cache.",
                prior=1.0 if size == 8 else 0.6,
            )


def striding(context: TritonContext) -> Iterator[Edit]:
    """As many programs as the device takes at once, each of which does several of the old ones' work in turn."""
    for launched in context.launched_once:
        function = launched.function
        first, *rest = function.body
        if len(launched.launch.grid) != 1 or not rest or not _is_program(first) or _returns(function):
            continue
        if any(True for _ in calls(ast.Module(rest, []), "program_id", "num_programs")):
            continue
        count = launched.launch.grid[0]
        taken = names_assigned(function) | {
            *parameters(function),
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
    context: TritonContext, launched: LaunchedFunction, count: int | str, size: int, stages: int
) -> Edit:
    function, module = launched.function, context.module
    first, *rest = function.body
    name = next(iter(names_assigned(first)))
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
        Replacement(*module.span(first), header),
        Replacement(start, end, body),
        Replacement(end_of_plain, end_of_plain, ", programs"),
        module.define("PROGRAMS", size),
    ]
    launch = replace(launched.launch, grid=(f"min(PROGRAMS, {count})",), args=(*launched.launch.args, count))
    staged = f", {stages} stages" if stages else ""
    return edit(
        Category.PARALLELISM,
        f"{function.name}: {size} programs stride over the work{staged}",
        context.written(changes, context.with_launch(launched.index, launch)),
        rationale="A grid that fills the device once starts no program late, and a program's next loads needn't wait "
        "for another to be launched.",
        expected_effect="No tail, less launching.",
        prior=(1.0 if size == PROGRAMS[1] else 0.6) * (1.0 if not stages else 0.6),
    )


def _is_program(statement: ast.stmt) -> bool:
    return ast.unparse(statement).endswith(" = tl.program_id(0)") and len(names_assigned(statement)) == 1


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Return) for node in ast.walk(function))


def _program_ids(function: ast.FunctionDef) -> dict[int, list[ast.Call]]:
    """The calls of `tl.program_id` by their axis."""
    found: dict[int, list[ast.Call]] = {}
    for call in calls(function, "program_id"):
        match call.args:
            case [ast.Constant(value=int() as axis)]:
                found.setdefault(axis, []).append(call)
            case _:
                return {}
    return found


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-grouped-tiles",
        Category.LAUNCH,
        frozenset({Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH, Bottleneck.GLOBAL_LATENCY}),
        grouped,
        prior=0.4,
    ),
    Rule(
        "triton-striding-programs",
        Category.PARALLELISM,
        frozenset({Bottleneck.TAIL, Bottleneck.LAUNCH_OVERHEAD, Bottleneck.GLOBAL_LATENCY}),
        striding,
        prior=0.5,
    ),
)
