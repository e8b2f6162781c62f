"""Less arithmetic for the same numbers, up to rounding; and no work whose result is known."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import TritonContext
from mctskernel.edits.triton.module import called, names_assigned, names_read


def reciprocals(context: TritonContext) -> Iterator[Edit]:
    """A row's elements times the reciprocal of its sum, in place of a division each."""
    for launched in context.launched:
        sums = _sums(launched.function)
        divisions = [
            node
            for node in ast.walk(launched.function)
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and isinstance(node.right, ast.Name)
            and node.right.id in sums
            and (not isinstance(node.left, ast.Name) or node.left.id not in sums)
        ]
        if divisions:
            yield edit(
                Category.PRECISION,
                f"{launched.function.name}: multiply by the reciprocal of the sum",
                context.written(
                    context.module.replace(
                        each,
                        f"{context.module.text_of(each.left)} * (1.0 / {context.module.text_of(each.right)})",
                    )
                    for each in divisions
                ),
                rationale="A division takes several instructions for each element; its reciprocal is the row's.",
                expected_effect="Fewer instructions, one more rounding.",
            )


def fast_exponentials(context: TritonContext) -> Iterator[Edit]:
    """The GPU's own exponential in place of the mathematical library's."""
    found = [
        node.func
        for function in context.module.functions.values()
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "libdevice.exp"
    ]
    if found:
        yield edit(
            Category.PRECISION,
            "the GPU's own exponential",
            context.written(context.module.replace(each, "tl.exp") for each in found),
            rationale="The library's exponential takes several instructions more for the last two bits and for "
            "results that are nearly zero.",
            expected_effect="Fewer instructions, off by two units in the last place.",
        )


def _sums(function: ast.FunctionDef) -> frozenset[str]:
    """The names that hold sums over an axis and nothing else."""
    sums, others = set[str](), set[str]()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if called(value) == "sum":
                sums.add(name)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if called(value) == "sum":
                sums.add(name)
            case ast.Assign(targets=[ast.Name()], value=ast.Constant(value=0.0)):
                pass
            case ast.Assign() | ast.AugAssign() | ast.For():
                others |= (
                    names_assigned(node) if not isinstance(node, ast.For) else names_assigned(node.target)
                )
    return frozenset(sums - others)


@dataclass(frozen=True)
class _Online:
    """The names in a loop of online softmax over keys."""

    score: str
    largest: str
    larger: str
    weight: str
    shrink: str


def causal_bound(context: TritonContext) -> Iterator[Edit]:
    """A loop over keys that stops at the diagonal, beyond which a causal mask hides every score.

    Hidden scores of a whole block change nothing: the largest score stays, so that what was added up is scaled by
    exp(0), and what would be added has the weight exp(-inf). The first block is never skipped.
    """
    for launched in context.launched:
        for index, loop in enumerate(launched.function.body):
            if not isinstance(loop, ast.For):
                continue
            rows = _diagonal(launched.function.body[:index], loop)
            after = launched.function.body[index + 1 :]
            if rows is None or not _changes_nothing_when_hidden(loop, after):
                continue
            assert isinstance(loop.iter, ast.Call)  # noqa: S101 - as the diagonal was found
            end = loop.iter.args[1]
            text = f"tl.minimum({context.module.text_of(end)}, {rows})"
            yield edit(
                Category.ALGORITHM,
                f"{launched.function.name}: stop at the diagonal",
                context.written([context.module.replace(end, text)]),
                rationale="Beyond the last query of a block every key is hidden, and about half of all blocks are.",
                expected_effect="Half the work.",
                prior=1.0,
            )


def _diagonal(before: list[ast.stmt], loop: ast.For) -> str | None:
    """What lies beyond a program's last row, if the loop hides scores right of the diagonal; else None."""
    match loop:
        case ast.For(
            target=ast.Name(id=start),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Constant(value=0), end, ast.Name(id=step)], keywords=[]
            ),
            orelse=[],
        ) if called(end) != "minimum":
            pass
        case _:
            return None
    rows = {name: text for each in before for name, text in _rows(each)}
    columns = {
        name
        for each in loop.body
        for name in names_assigned(each)
        if ast.unparse(each) == f"{name} = {start} + tl.arange(0, {step})[None, :]"
    }
    for each in loop.body:
        match each:
            case ast.Assign(value=ast.Call(args=[mask, _, hidden])) if called(each.value) == "where":
                if ast.unparse(hidden) != "float('-inf')":
                    continue
                for column, row in _at_most(mask):
                    if column in columns and row in rows and _assigned_once(before, row):
                        return rows[row]
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
    return sum(name in names_assigned(each) for each in before) == 1


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
        name = next(iter(names_assigned(statement)), "")
        if not isinstance(statement, ast.Assign) or len(names_assigned(statement)) != 1:
            return False
        text = ast.unparse(statement.value)
        if text.startswith(f"{name} * {found.shrink} + "):
            added = text.removeprefix(f"{name} * {found.shrink} + ")
            if not added.startswith(
                (f"tl.sum({found.weight}, ", f"tl.dot({found.weight}, ", f"tl.dot({found.weight}.to(")
            ) or not _is_one_call(added):
                return False
            carried.add(name)
        elif name in names_read(statement.value) and name != found.score:
            return False
    assigned = [name for each in loop.body for name in names_assigned(each)]
    allowed = carried | {found.largest}
    outside = names_read(ast.Module(after, []))
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
            ast.unparse(each.value): names_assigned(each) for each in body if isinstance(each, ast.Assign)
        }
        maximum = f"tl.maximum({largest}, tl.max({score}, axis=1, keep_dims=True))"
        weight = texts.get(f"tl.exp({score} - {larger})")
        shrink = texts.get(f"tl.exp({largest} - {larger})")
        last = [each for each in body if score in names_assigned(each)][-1:]
        hidden = [each for each in last if isinstance(each, ast.Assign) and called(each.value) == "where"]
        if ast.unparse(statement.value) == maximum and weight and shrink and hidden:
            return _Online(score, largest, larger, next(iter(weight)), next(iter(shrink)))
    return None


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-reciprocals",
        Category.PRECISION,
        frozenset({Bottleneck.SPECIAL_FUNCTIONS, Bottleneck.FP32_PIPE, Bottleneck.INSTRUCTION_ISSUE}),
        reciprocals,
        prior=0.5,
    ),
    Rule(
        "triton-fast-exponentials",
        Category.PRECISION,
        frozenset({Bottleneck.SPECIAL_FUNCTIONS, Bottleneck.FP32_PIPE, Bottleneck.INSTRUCTION_ISSUE}),
        fast_exponentials,
        prior=2.0,
    ),
    Rule(
        "triton-causal-bound",
        Category.ALGORITHM,
        frozenset(
            {Bottleneck.L2_BANDWIDTH, Bottleneck.TENSOR_PIPE, Bottleneck.GLOBAL_LATENCY, Bottleneck.BARRIERS}
        ),
        causal_bound,
        prior=3.0,
    ),
)
