"""Loops over blocks of a row, taken whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from mctskernel.core.edit import Category
from mctskernel.core.expression import names_in
from mctskernel.core.launch_plan import WARP_THREADS
from mctskernel.edits.rule import Proposal
from mctskernel.edits.syntax import Replacement
from mctskernel.edits.triton import module as py
from mctskernel.edits.triton.tuning import tiles_of

LONGEST_ROW = 1 << 16
ELEMENTS_PER_THREAD = (32, 16, 8)
"""The numbers of elements that a thread is given, best first; as many warps as that takes, from 1 to 32."""


@py.rule(
    Category.ALGORITHM,
    2.0,
    "dram_bandwidth l2_bandwidth l1_throughput global_latency barriers instruction_issue low_occupancy",
)
def whole_rows(context: py.TritonContext) -> Iterator[Proposal]:
    """One block as long as the row, a constant, for a loop over blocks, so that loops share their loads."""
    context = context.decided
    for launched in context.launched_once:
        function, tiles = launched.function, tiles_of(launched.function)
        for block in (each for each in launched.constexprs if each in tiles.sizes and not tiles.multiplied):
            loops = [
                n for n in ast.walk(function) if isinstance(n, ast.For) and block in py.names_read(n.iter)
            ]
            lengths = {_length(loop, block) for loop in loops}
            length = lengths.pop() if len(lengths) == 1 else ""
            row = {**launched.bound, **launched.constexprs}.get(length)
            values = context.values(row) if isinstance(row, str) else None
            whole = values is not None and all(isinstance(each, int) and each > 0 for each in values)
            changed = _touched(context, launched, "load") & _touched(context, launched, "store")
            if whole and not changed and not launched.grid_names & names_in(launched.constexprs[block]):
                yield from _whole(context, launched, length, block)


def _length(loop: ast.For, block: str) -> str:
    """The name of the end of a loop from 0 by blocks; empty where not all that it touches is before that end."""
    match loop.iter:
        case ast.Call(args=[ast.Constant(value=0), ast.Name(id=length), ast.Name(id=step)]) if step == block:
            calls = {call: 1 if py.called(call) == "load" else 2 for call in py.calls(loop, "load", "store")}
            ends = [
                each
                for each in ast.walk(loop)
                if isinstance(each, ast.Compare) and length in py.names_read(each)
            ]
            masked = all(py.argument(call, place, "mask") is not None for call, place in calls.items())
            return (
                length if masked and all(ast.unparse(each).endswith(f"< {length}") for each in ends) else ""
            )
    return ""


def _whole(
    context: py.TritonContext, launched: py.LaunchedFunction, length: str, block: str
) -> Iterator[Proposal]:
    function, launch, changes = launched.function, launched.launch, []
    constexprs = {
        **launched.constexprs,
        length: launched.bound.get(length, launched.constexprs.get(length, 0)),
    }
    constexprs[block] = f"next_pow2({constexprs[length]})"
    used = (n for n in ast.walk(function) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == length)
    alike = constexprs[block] == launched.constexprs[block] and length not in launched.bound
    if alike or length in py.names_assigned(function) or any(used):
        return
    if length in launched.bound:
        place = list(launched.bound).index(length)
        launch = replace(launch, args=(*launch.args[:place], *launch.args[place + 1 :]))
        parameter = next(each for each in function.args.args if each.arg == length)
        changes = [Replacement(*context.module.span(parameter), f"{length}: tl.constexpr")]
    known = {name: each[0] for name, bound in constexprs.items() if (each := context.values(bound))}
    elements = tiles_of(function).largest({name: int(value) for name, value in known.items()})
    found = [min(max(elements // (WARP_THREADS * each), 1), 32) for each in ELEMENTS_PER_THREAD]
    for warps in dict.fromkeys(found) if elements <= LONGEST_ROW else ():
        options = replace(launched.options, constexprs=tuple(constexprs.items()), num_warps=warps)
        yield Proposal(
            f"keep whole rows in registers, num_warps={warps}{context.where(launch.kernel)}",
            context.written(changes, context.with_launch(launched.index, replace(launch, triton=options))),
            rationale=f"{elements} elements fit into the registers of {warps} warps, so that a row has to be read "
            "once only, and nothing is looped over.",
            expected_effect="The row is read once, all of it at once.",
            prior=1.0 - 0.3 * found.index(warps),
        )


def _touched(context: py.TritonContext, launched: py.LaunchedFunction, what: str) -> frozenset[str]:
    """The buffers that a function loads or stores."""
    names = frozenset[str]().union(
        *(py.names_read(c.args[0]) for c in py.calls(launched.function, what) if c.args)
    )
    bound = {name: str(each) for name, each in launched.bound.items() if context.is_buffer(each)}
    return frozenset(bound[name] for name in bound if names & py.dependent(launched.function, name))
