"""A row that several loops go over, block by block, taken whole: loaded once and kept in registers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import names_in
from mctskernel.core.launch_plan import WARP_THREADS
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import (
    Module,
    Replacement,
    names_assigned,
    names_read,
    parse,
    replaced,
)
from mctskernel.edits.triton.repeats import without_empty_sums, without_repeats
from mctskernel.edits.triton.tiles import tiles_of

LONGEST_ROW = 1 << 16
ELEMENTS_PER_THREAD = (16, 32, 8)
"""The numbers of elements that a thread is given, best first; as many warps as that takes, from 1 to 32."""


@dataclass(frozen=True)
class RowLoop:
    """A loop `for variable in range(0, length, block)` among a function's own statements.

    `length` and `block` are parameters, the second a constexpr.
    """

    node: ast.For
    variable: str
    length: str
    block: str


def whole_rows(context: TritonContext) -> Iterator[Edit]:
    """One block as long as the row in place of a loop over blocks, and what was loaded before not loaded again."""
    for launched in context.launched_once:
        for block in launched.constexprs:
            loops = [loop for loop in row_loops(launched.function) if loop.block == block]
            lengths = {loop.length for loop in loops}
            if len(lengths) == 1 and block in tiles_of(launched.function).sizes:
                yield from _edits(context, launched, loops)


def row_loops(function: ast.FunctionDef) -> Iterator[RowLoop]:
    """The loops over blocks of a row that stand in a function's body, not inside anything else."""
    for statement in function.body:
        match statement:
            case ast.For(
                target=ast.Name(id=variable),
                iter=ast.Call(
                    func=ast.Name(id="range"),
                    args=[ast.Constant(value=0), ast.Name(id=length), ast.Name(id=block)],
                    keywords=[],
                ),
                orelse=[],
            ):
                yield RowLoop(statement, variable, length, block)


def masked(loop: RowLoop) -> bool:
    """Whether a loop touches memory only under masks that end with the row, and its variable for nothing else.

    Then a block may be longer than the row: what is beyond its end is neither read nor written.
    """
    columns: str | None = None
    bounded = set[str]()
    for statement in loop.node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_columns(value, loop):
                columns = name
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if columns and _bounds(
                value, columns, loop.length, bounded
            ):
                bounded.add(name)
                continue
            case ast.Assign() | ast.AugAssign() | ast.Expr():
                pass
            case _:
                return False
        if columns is None or loop.variable in names_read(statement):
            return False
        if names_assigned(statement) & {columns, loop.variable, *bounded}:
            return False
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if not _stays_inside(call, columns, loop.length, bounded):
                return False
    return columns is not None


def _is_columns(value: ast.expr, loop: RowLoop) -> bool:
    return ast.unparse(value) == f"{loop.variable} + tl.arange(0, {loop.block})"


def _bounds(mask: ast.expr, columns: str, length: str, bounded: set[str]) -> bool:
    """Whether a mask is false beyond the end of the row."""
    match mask:
        case ast.Name(id=name):
            return name in bounded
        case ast.Compare(left=ast.Name(id=left), ops=[ast.Lt()], comparators=[ast.Name(id=right)]):
            return (left, right) == (columns, length)
        case ast.BinOp(left=left_mask, op=ast.BitAnd(), right=right_mask):
            return any(_bounds(each, columns, length, bounded) for each in (left_mask, right_mask))
    return False


def _stays_inside(call: ast.Call, columns: str, length: str, bounded: set[str]) -> bool:
    """Whether a call touches no memory, or under a mask that ends with the row."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="tl"), attr=name):
            pass
        case ast.Attribute(attr=name):
            return not name.startswith("atomic")
        case ast.Name(id="float"):
            return True
        case _:
            return False
    if name not in {"load", "store"} and not name.startswith("atomic"):
        return True
    mask = next((keyword.value for keyword in call.keywords if keyword.arg == "mask"), None)
    return mask is not None and _bounds(mask, columns, length, bounded)


def _edits(context: TritonContext, launched: LaunchedFunction, loops: list[RowLoop]) -> Iterator[Edit]:
    length, block = loops[0].length, loops[0].block
    row = launched.bound.get(length)
    lengths = context.values(row) if isinstance(row, str) else None
    if lengths is None or min(lengths) < 1 or not all(isinstance(each, int) for each in lengths):
        return
    before = launched.constexprs[block]
    if not all(masked(loop) for loop in loops) or _in_grid(launched, before):
        return
    longest = 1 << (int(lengths[0]) - 1).bit_length()
    if longest > LONGEST_ROW:
        return
    text = straightened(context.module, loops)
    module = parse(text)
    if module is None:
        return
    module = parse(without_repeats(context, launched, module))
    if module is None:
        return
    text = without_empty_sums(module, launched.launch.kernel)
    constexprs = {**launched.constexprs, block: f"next_pow2({row})"}
    tried = set[int]()
    for prior, elements in zip((1.0, 0.7, 0.5), ELEMENTS_PER_THREAD, strict=True):
        warps = min(max(longest // (WARP_THREADS * elements), 1), 32)
        if warps in tried:
            continue
        tried.add(warps)
        plan = context.with_options(launched.index, constexprs=constexprs, num_warps=warps)
        yield edit(
            Category.ALGORITHM,
            f"{launched.launch.kernel}: whole rows in registers, {warps} warps",
            context.with_text(text, plan),
            rationale=f"A row of {lengths[0]} elements fits into the registers of {warps} warps, so that it has to "
            f"be read once only, and nothing is looped over.",
            expected_effect=f"The row is read once instead of {len(loops)} times, all of it at once.",
            prior=prior,
        )


def _in_grid(launched: LaunchedFunction, size: str | float) -> bool:
    """Whether the grid depends on what a block's size is made of."""
    grid = frozenset[str]().union(*(names_in(extent) for extent in launched.launch.grid))
    return bool(grid & names_in(size))


def straightened(module: Module, loops: list[RowLoop]) -> str:
    """The text with the bodies of loops that run once in the loops' places."""
    return replaced(module, (each for loop in loops for each in _straightened(module, loop)))


def _straightened(module: Module, loop: RowLoop) -> Iterator[Replacement]:
    start, _ = module.lines_of([loop.node])
    _, end = module.lines_of(loop.node.body)
    header_end = module.text.index("\n", module.span(loop.node.iter)[1]) + 1
    indentation = len(module.indentation(loop.node.body[0])) - len(module.indentation(loop.node))
    body = module.text[header_end:end]
    lines = [
        line[indentation:] if line[:indentation].isspace() else line
        for line in body.splitlines(keepends=True)
    ]
    text = "".join(lines).replace(
        f"{loop.variable} + tl.arange(0, {loop.block})", f"tl.arange(0, {loop.block})"
    )
    yield Replacement(start, end, text)


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-whole-rows",
        Category.ALGORITHM,
        frozenset(
            {
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.BARRIERS,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.LOW_OCCUPANCY,
            }
        ),
        whole_rows,
        prior=2.0,
    ),
)
