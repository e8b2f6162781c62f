"""Reductions inside loops: put off until the loop is over, or merged where one pass over a row can do two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mctskernel.core.edit import Category
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py


@dataclass(frozen=True)
class Accumulation:
    """`total += tl.sum(lanes, axis=0)` in a loop, or `largest = tl.maximum(largest, tl.max(lanes, axis=0))`."""

    statement: ast.stmt
    name: str
    lanes: ast.expr
    largest: bool


@py.rule(Category.PARALLELISM, 1.0, "global_latency shared_throughput barriers instruction_issue")
def deferred_reductions(context: py.TritonContext) -> Iterator[Proposal]:
    """A sum or a maximum for each lane in the loop, and one over the lanes after it."""
    for launched in context.launched:
        function = launched.function
        block = _only_block(function)
        if block is None or block not in launched.constexprs:
            continue
        found = list(_accumulations(function))
        if not found:
            continue
        yield Proposal(
            f"reduce after the loop instead of in it{context.where(function.name)}",
            context.written(
                each
                for loop, init, accumulation in found
                for each in _deferred(context.module, loop, init, accumulation, block)
            ),
            rationale="Each turn of the loop waits for its threads to exchange their values; sums kept for each "
            "lane need one exchange in the end.",
            expected_effect="Fewer shuffles and barriers, loads of several turns at once.",
        )


def _deferred(
    module: py.Module, loop: ast.For, init: ast.stmt, found: Accumulation, block: str
) -> Iterator[py.Replacement]:
    lanes, blanks = f"{found.name}_lanes", module.indentation(loop)
    value = module.text_of(found.lanes)
    if found.largest:
        yield module.replace(init, f'{lanes} = tl.full([{block}], float("-inf"), tl.float32)')
        yield module.replace(found.statement, f"{lanes} = tl.maximum({lanes}, {value})")
    else:
        yield module.replace(init, f"{lanes} = tl.zeros([{block}], tl.float32)")
        yield module.replace(found.statement, f"{lanes} += {value}")
    _, end = module.lines_of([loop])
    reduce = "max" if found.largest else "sum"
    yield py.Replacement(end, end, f"{blanks}{found.name} = tl.{reduce}({lanes}, axis=0)\n")


def _accumulations(function: ast.FunctionDef) -> Iterator[tuple[ast.For, ast.stmt, Accumulation]]:
    """What can be put off, with its loop and the statement before the loop that begins it."""
    taken = py.names_assigned(function) | {each.arg for each in function.args.args}
    for index, loop in enumerate(function.body):
        if not isinstance(loop, ast.For) or any(isinstance(each, ast.For | ast.If) for each in loop.body):
            continue
        for statement in loop.body:
            found = _accumulation(statement)
            if found is None or f"{found.name}_lanes" in taken:
                continue
            others = [each for each in loop.body if each is not statement]
            if any(found.name in py.names_read(each) | py.names_assigned(each) for each in others):
                continue
            init = _init(function.body[:index], found)
            if init is not None:
                yield loop, init, found


def _accumulation(statement: ast.stmt) -> Accumulation | None:
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if py.called(value) == "sum":
            lanes = _over_lanes(value)
            if lanes is not None and name not in py.names_read(lanes):
                return Accumulation(statement, name, lanes, largest=False)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if py.called(value) == "maximum":
            match value:
                case ast.Call(args=[ast.Name(id=held), new], keywords=[]) if held == name:
                    lanes = _over_lanes(new) if py.called(new) == "max" else None
                    if lanes is not None and name not in py.names_read(lanes):
                        return Accumulation(statement, name, lanes, largest=True)
    return None


def _over_lanes(call: ast.expr) -> ast.expr | None:
    """What a reduction over axis 0, and nothing else, reduces."""
    match call:
        case ast.Call(args=[lanes], keywords=[ast.keyword(arg="axis", value=ast.Constant(value=0))]):
            return lanes
        case ast.Call(args=[lanes, ast.Constant(value=0)], keywords=[]):
            return lanes
    return None


def _init(before: list[ast.stmt], found: Accumulation) -> ast.stmt | None:
    """The statement that gives an accumulator its neutral value, if nothing touches it between that and the loop."""
    for statement in reversed(before):
        if found.name in py.names_assigned(statement):
            match statement:
                case ast.Assign(targets=[ast.Name()], value=ast.Constant(value=0.0)) if not found.largest:
                    return statement
                case ast.Assign(targets=[ast.Name()], value=value) if found.largest:
                    return statement if ast.unparse(value) in {"float('-inf')", "-float('inf')"} else None
            return None
        if found.name in py.names_read(statement):
            return None
    return None


def _only_block(function: ast.FunctionDef) -> str | None:
    """The one parameter that every range of lanes in a function is as long as."""
    ends = {ast.unparse(call.args[1]) for call in py.calls(function, "arange") if len(call.args) == 2}
    return ends.pop() if len(ends) == 1 else None


@py.rule(Category.ALGORITHM, 1.0, "dram_bandwidth l2_bandwidth global_latency")
def one_pass_softmax(context: py.TritonContext) -> Iterator[Proposal]:
    """The largest value and the sum of the exponentials in one loop, the sum scaled as the maximum grows."""
    for launched in context.launched:
        for index, (first, between, second) in enumerate(_neighbouring_loops(launched.function)):
            text = _merged(context, launched, first, between, second)
            if text is not None:
                yield Proposal(
                    f"online softmax: maximum and sum in one pass (loop {index + 1})"
                    f"{context.where(launched.function.name)}",
                    text,
                    rationale="The sum so far is scaled whenever a larger value turns up, so that the row is read "
                    "once for both (Milakov and Gimelshein, 2018).",
                    expected_effect="One pass over the data less.",
                )


def _neighbouring_loops(function: ast.FunctionDef) -> Iterator[tuple[ast.For, list[ast.stmt], ast.For]]:
    loops = [index for index, each in enumerate(function.body) if isinstance(each, ast.For)]
    for start, end in pairwise(loops):
        first, second = function.body[start], function.body[end]
        if isinstance(first, ast.For) and isinstance(second, ast.For):
            yield first, function.body[start + 1 : end], second


def _merged(
    context: py.TritonContext,
    launched: py.LaunchedFunction,
    first: ast.For,
    between: list[ast.stmt],
    second: ast.For,
) -> str | None:
    """The text with two loops as one; None unless both are what the rule knows, to the letter.

    The first loop is shared statements and `m = tl.maximum(m, tl.max(v, axis=0))`, the second the same shared
    statements and `s += tl.sum(tl.exp(v - m), axis=0)`; between them is `s = 0.0` and nothing else.
    """
    module = context.module
    shared, largest = first.body[:-1], _accumulation(first.body[-1])
    total = _accumulation(second.body[-1])
    if largest is None or total is None or not largest.largest or total.largest:
        return None
    if ast.dump(first.target) != ast.dump(second.target) or ast.dump(first.iter) != ast.dump(second.iter):
        return None
    if [ast.dump(each) for each in shared] != [ast.dump(each) for each in second.body[:-1]]:
        return None
    match between:
        case [ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=0.0))] if name == total.name:
            init = between[0]
        case _:
            return None
    value = ast.unparse(largest.lanes)
    if ast.unparse(total.lanes) != f"tl.exp({value} - {largest.name})" or "(" in value:
        return None
    known = py.names_assigned(launched.function) | {each.arg for each in launched.function.args.args}
    if "larger" in known or any({largest.name, total.name} & py.names_read(each) for each in shared):
        return None
    blanks = module.indentation(first)
    inner = module.indentation(first.body[0])
    start, end = module.lines_of([first.body[-1]])
    lines = (
        f"larger = {module.text_of(first.body[-1]).partition('=')[2].strip()}",
        f"{total.name} = {total.name} * tl.exp({largest.name} - larger)"
        f" + tl.sum(tl.exp({value} - larger), axis=0)",
        f"{largest.name} = larger",
    )
    begin = module.lines_of([first])[0]
    gone = module.lines_of([init])[0], module.lines_of([second])[1]
    return context.written(
        [
            py.Replacement(begin, begin, f"{blanks}{module.text_of(init)}\n"),
            py.Replacement(start, end, "".join(f"{inner}{line}\n" for line in lines)),
            py.Replacement(*gone, ""),
        ]
    )
