"""Loops of Triton kernels: pipelined and unrolled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.edit import Category, Factor
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py
from mctskernel.edits.triton.tuning import tiles_of

STAGES = (2, 3, 4)
FACTORS = (2, 4)


@py.rule(Category.ASYNC_COPY, 0.5, "global_latency barriers")
def prefetched_loops(context: py.TritonContext) -> Iterator[Proposal]:
    """Loads of later turns copied to shared memory ahead, in loops that multiply no tiles.

    Those that do are pipelined anyway, with the launch's number of stages.
    """
    for function, loop, number in _plain_loops(context):
        if tiles_of(function).multiplied:
            continue
        for stages in STAGES:
            yield Proposal(
                f"software-pipeline loop {number} (num_stages={stages}){context.where(function.name)}",
                _with(context, loop, f"num_stages={stages}"),
                rationale=f"While one turn computes, the data of the next {stages - 1} is on its way.",
                expected_effect="Latency of loads hidden, for shared memory.",
                prior=1.0 if stages == 3 else 0.6,
                factors=(Factor(f"stages of loop {number}{context.where(function.name)}", stages),),
            )


@py.rule(Category.UNROLLING, 0.4, "global_latency instruction_issue integer_pipe")
def unrolled_loops(context: py.TritonContext) -> Iterator[Proposal]:
    for function, loop, number in _plain_loops(context):
        for factor in FACTORS:
            yield Proposal(
                f"unroll loop {number} by {factor}{context.where(function.name)}",
                _with(context, loop, f"loop_unroll_factor={factor}"),
                rationale="Loads of unrolled turns don't wait for each other, and the loop's own work is shared.",
                expected_effect="More loads in flight, fewer instructions.",
                prior=1.0 if factor == 4 else 0.6,
                factors=(Factor(f"unroll loop {number}{context.where(function.name)}", factor),),
            )


def _plain_loops(context: py.TritonContext) -> Iterator[tuple[ast.FunctionDef, ast.For, int]]:
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
                    if not inner and any(True for _ in py.calls(loop, "load")):
                        yield function, loop, number


def _with(context: py.TritonContext, loop: ast.For, option: str) -> str:
    text = context.module.text_of(loop.iter)
    return context.written([context.module.replace(loop.iter, f"tl.{text[:-1]}, {option})")])
