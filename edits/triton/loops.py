"""Loops of Triton kernels: pipelined, unrolled, and stopped at the causal diagonal."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

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
    """Several turns of a loop at once."""
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


@dataclass(frozen=True)
class _Online:
    """The names in a loop of online softmax over keys."""

    score: str
    largest: str
    larger: str
    weight: str
    shrink: str


@py.rule(Category.ALGORITHM, 3.0, "l2_bandwidth global_latency barriers tensor_pipe")
def causal_bound(context: py.TritonContext) -> Iterator[Proposal]:
    """A loop over keys that stops at the diagonal, beyond which a causal mask hides every score.

    Hidden scores of a whole block change nothing: the largest score stays, so that what was added up is scaled by
    exp(0), and what would be added has the weight exp(-inf). The first block is never skipped.
    """
    for launched in context.launched:
        for index, loop in enumerate(launched.function.body):
            if not isinstance(loop, ast.For):
                continue
            found = _diagonal(launched.function.body[:index], loop)
            after = launched.function.body[index + 1 :]
            if found is None or not _changes_nothing_when_hidden(loop, after):
                continue
            end, rows = found
            text = f"tl.minimum({context.module.text_of(end)}, {rows})"
            yield Proposal(
                f"stop the loop over keys at the causal diagonal{context.where(launched.function.name)}",
                context.written([context.module.replace(end, text)]),
                rationale="Beyond the last query of a block every key is hidden, and about half of all blocks are.",
                expected_effect="Half the work.",
                prior=1.0,
            )


def _diagonal(before: list[ast.stmt], loop: ast.For) -> tuple[ast.expr, str] | None:
    """The loop's end and what lies beyond a program's last row, if it hides scores right of the diagonal; else None."""
    match loop:
        case ast.For(
            target=ast.Name(id=start),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Constant(value=0), end, ast.Name(id=step)], keywords=[]
            ),
            orelse=[],
        ) if py.called(end) != "minimum":
            pass
        case _:
            return None
    rows = {name: text for each in before for name, text in _rows(each)}
    columns = {
        name
        for each in loop.body
        for name in py.names_assigned(each)
        if ast.unparse(each) == f"{name} = {start} + tl.arange(0, {step})[None, :]"
    }
    for each in loop.body:
        match each:
            case ast.Assign(value=ast.Call(args=[mask, _, hidden])) if py.called(each.value) == "where":
                if ast.unparse(hidden) != "float('-inf')":
                    continue
                for column, row in _at_most(mask):
                    if column in columns and row in rows and _assigned_once(before, row):
                        return end, rows[row]
    return None


def _rows(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """`row = program * BLOCK + tl.arange(0, BLOCK)[:, None]` as the name and `(program + 1) * BLOCK`."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.BinOp(
                left=ast.BinOp(left=program, op=ast.Mult(), right=ast.Name(id=block)),
                op=ast.Add(),
                right=ast.Subscript() as lanes,
            ),
        ):
            if ast.unparse(lanes) == f"tl.arange(0, {block})[:, None]":
                yield name, f"({ast.unparse(program)} + 1) * {block}"


def _assigned_once(before: list[ast.stmt], name: str) -> bool:
    return sum(name in py.names_assigned(each) for each in before) == 1


def _at_most(mask: ast.expr) -> Iterator[tuple[str, str]]:
    """The `a <= b` among the parts of a mask that must all hold."""
    match mask:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            yield from _at_most(left)
            yield from _at_most(right)
        case ast.Compare(left=ast.Name(id=a), ops=[ast.LtE()], comparators=[ast.Name(id=b)]):
            yield a, b


def _changes_nothing_when_hidden(loop: ast.For, after: list[ast.stmt]) -> bool:
    """Whether a loop's body is online softmax: all that it carries from turn to turn is scaled and added to."""
    found = _online(loop.body)
    if found is None:
        return False
    carried = set[str]()
    for statement in loop.body:
        name = next(iter(py.names_assigned(statement)), "")
        if not isinstance(statement, ast.Assign) or len(py.names_assigned(statement)) != 1:
            return False
        text = ast.unparse(statement.value)
        if text.startswith(f"{name} * {found.shrink} + "):
            added = text.removeprefix(f"{name} * {found.shrink} + ")
            if not added.startswith(
                (f"tl.sum({found.weight}, ", f"tl.dot({found.weight}, ", f"tl.dot({found.weight}.to(")
            ) or not _is_one_call(added):
                return False
            carried.add(name)
        elif name in py.names_read(statement.value) and name != found.score:
            return False
    assigned = [name for each in loop.body for name in py.names_assigned(each)]
    allowed = carried | {found.largest}
    outside = py.names_read(ast.Module(after, []))
    local = set(assigned) - allowed - {found.score}
    return (
        ast.unparse(loop.body[-1]) == f"{found.largest} = {found.larger}"
        and all(assigned.count(name) == 1 for name in set(assigned) - {found.score})
        and not outside & (local | {found.score})
    )


def _is_one_call(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.Call)


def _online(body: list[ast.stmt]) -> _Online | None:
    """The names of an online softmax whose maximum is taken of hidden scores."""
    for statement in body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=larger)],
                value=ast.Call(args=[ast.Name(id=largest), ast.Call(args=[ast.Name(id=score), *_])]),
            ):
                pass
            case _:
                continue
        texts = {
            ast.unparse(each.value): py.names_assigned(each) for each in body if isinstance(each, ast.Assign)
        }
        maximum = f"tl.maximum({largest}, tl.max({score}, axis=1, keep_dims=True))"
        weight = texts.get(f"tl.exp({score} - {larger})")
        shrink = texts.get(f"tl.exp({largest} - {larger})")
        last = [each for each in body if score in py.names_assigned(each)][-1:]
        hidden = [each for each in last if isinstance(each, ast.Assign) and py.called(each.value) == "where"]
        if ast.unparse(statement.value) == maximum and weight and shrink and hidden:
            return _Online(score, largest, larger, next(iter(weight)), next(iter(shrink)))
    return None
