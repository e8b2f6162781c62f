"""How the compiler is to treat a loop: loads of later turns issued ahead, several turns unrolled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import TritonContext
from mctskernel.edits.triton.module import calls
from mctskernel.edits.triton.tiles import tiles_of

STAGES = (2, 3, 4)
FACTORS = (2, 4)


def prefetched(context: TritonContext) -> Iterator[Edit]:
    """Loads of later turns copied to shared memory ahead, in loops that multiply no tiles.

    Those that do are pipelined anyway, with the launch's number of stages.
    """
    for function, loop, number in _plain_loops(context):
        if tiles_of(function).multiplied:
            continue
        for stages in STAGES:
            yield edit(
                Category.ASYNC_COPY,
                f"{function.name}: loop {number} in {stages} stages",
                _with(context, loop, f"num_stages={stages}"),
                rationale=f"While one turn computes, the data of the next {stages - 1} is on its way.",
                expected_effect="Latency of loads hidden, for shared memory.",
                prior=1.0 if stages == 3 else 0.6,
            )


def unrolled(context: TritonContext) -> Iterator[Edit]:
    """Several turns of a loop at once."""
    for function, loop, number in _plain_loops(context):
        for factor in FACTORS:
            yield edit(
                Category.UNROLLING,
                f"{function.name}: loop {number} unrolled {factor} times",
                _with(context, loop, f"loop_unroll_factor={factor}"),
                rationale="Loads of unrolled turns don't wait for each other, and the loop's own work is shared.",
                expected_effect="More loads in flight, fewer instructions.",
                prior=1.0 if factor == 4 else 0.6,
            )


def _plain_loops(context: TritonContext) -> Iterator[tuple[ast.FunctionDef, ast.For, int]]:
    """Innermost loops over a plain `range` that load something, numbered within their function."""
    functions = {launched.function.name: launched.function for launched in context.launched}
    for function in functions.values():
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        for number, loop in enumerate(sorted(loops, key=lambda node: node.lineno), 1):
            inner = any(
                isinstance(node, ast.For | ast.While) for each in loop.body for node in ast.walk(each)
            )
            match loop.iter:
                case ast.Call(func=ast.Name(id="range"), keywords=[]):
                    if not inner and any(True for _ in calls(loop, "load")):
                        yield function, loop, number


def _with(context: TritonContext, loop: ast.For, option: str) -> str:
    text = context.module.text_of(loop.iter)
    return context.written([context.module.replace(loop.iter, f"tl.{text[:-1]}, {option})")])


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-prefetched-loops",
        Category.ASYNC_COPY,
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.BARRIERS}),
        prefetched,
        prior=0.5,
    ),
    Rule(
        "triton-unrolled-loops",
        Category.UNROLLING,
        frozenset({Bottleneck.GLOBAL_LATENCY, Bottleneck.INSTRUCTION_ISSUE, Bottleneck.INTEGER_PIPE}),
        unrolled,
        prior=0.4,
    ),
)
