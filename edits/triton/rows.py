"""Loops over blocks of a row: taken whole, or with reductions put off until they are over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.core.edit import Category
from mctskernel.core.expression import names_in
from mctskernel.core.launch_plan import WARP_THREADS
from mctskernel.edits.rule import Proposal
from mctskernel.edits.triton import module as py
from mctskernel.edits.triton.tuning import tiles_of

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


@py.rule(
    Category.ALGORITHM,
    2.0,
    "dram_bandwidth l2_bandwidth l1_throughput global_latency barriers instruction_issue low_occupancy",
)
def whole_rows(context: py.TritonContext) -> Iterator[Proposal]:
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
    every = f"{loop.variable} + tl.arange(0, {loop.block})"
    for statement in loop.node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if ast.unparse(value) == every:
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
        if columns is None or loop.variable in py.names_read(statement):
            return False
        if py.names_assigned(statement) & {columns, loop.variable, *bounded}:
            return False
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if not _stays_inside(call, columns, loop.length, bounded):
                return False
    return columns is not None


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


def _edits(
    context: py.TritonContext, launched: py.LaunchedFunction, loops: list[RowLoop]
) -> Iterator[Proposal]:
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
    module = py.parse(text)
    if module is None:
        return
    module = py.parse(without_repeats(context, launched, module))
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
        yield Proposal(
            f"keep whole rows in registers, num_warps={warps}{context.where(launched.launch.kernel)}",
            context.with_text(text, plan),
            rationale=f"A row of {lengths[0]} elements fits into the registers of {warps} warps, so that it has to "
            f"be read once only, and nothing is looped over.",
            expected_effect=f"The row is read once instead of {len(loops)} times, all of it at once.",
            prior=prior,
        )


def _in_grid(launched: py.LaunchedFunction, size: str | float) -> bool:
    """Whether the grid depends on what a block's size is made of."""
    grid = frozenset[str]().union(*(names_in(extent) for extent in launched.launch.grid))
    return bool(grid & names_in(size))


def straightened(module: py.Module, loops: list[RowLoop]) -> str:
    """The text with the bodies of loops that run once in the loops' places."""
    return py.replaced(module, (each for loop in loops for each in _straightened(module, loop)))


def _straightened(module: py.Module, loop: RowLoop) -> Iterator[py.Replacement]:
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
    yield py.Replacement(start, end, text)


PURE_METHODS = frozenset({"to", "cast", "sum", "max", "min", "trans", "reshape", "view"})
"""Methods of tensors that a value may call and still be the same when computed again."""


def without_repeats(context: py.TritonContext, launched: py.LaunchedFunction, module: py.Module) -> str:
    """A module's text without the repeated statements of the launched function.

    A statement is repeated when it assigns to a name what the name holds already: the same expression was assigned to
    it before, and none of what the expression reads has changed since. Loads count where they read an input of the
    task, which nothing writes. `module` may be another text than the context's, with the same parameters.
    """
    function = module.functions.get(launched.launch.kernel)
    if function is None or py.parameters(function) != py.parameters(launched.function):
        return module.text
    inputs = {name for name, bound in launched.bound.items() if context.is_input(str(bound))}
    pointers = {name for name, bound in launched.bound.items() if context.is_buffer(bound)}
    return py.replaced(module, _repeated(module, function.body, inputs, pointers))


def without_empty_sums(module: py.Module, function: str) -> str:
    """A module's text without zeros that a name is given only to have something added at once: `s = 0.0; s += t`."""
    body = module.functions[function].body
    return py.replaced(
        module, (each for index in range(len(body)) for each in _empty_sum(module, body[index:]))
    )


def _empty_sum(module: py.Module, body: list[ast.stmt]) -> Iterator[py.Replacement]:
    match body[0]:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=float() as zero)) if (
            zero == 0.0
        ):
            pass
        case _:
            return
    for statement in body[1:]:
        match statement:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) if target == name:
                if name not in py.names_read(value):
                    yield module.remove(body[0])
                    yield module.replace(statement, f"{name} = {module.text_of(value)}")
                return
        if name in py.names_read(statement) | py.names_assigned(statement):
            return


def _repeated(
    module: py.Module, body: list[ast.stmt], inputs: set[str], pointers: set[str]
) -> Iterator[py.Replacement]:
    held: dict[str, tuple[str, frozenset[str]]] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _pure(value, inputs, pointers):
                text = ast.dump(value)
                if name in held and held[name][0] == text:
                    yield module.remove(statement)
                    continue
                _forget(held, {name})
                if name not in py.names_read(value):
                    held[name] = text, py.names_read(value)
            case _:
                _forget(held, py.names_assigned(statement))


def _forget(held: dict[str, tuple[str, frozenset[str]]], changed: set[str] | frozenset[str]) -> None:
    for name in [name for name, (_, read) in held.items() if name in changed or read & changed]:
        del held[name]


def _pure(value: ast.expr, inputs: set[str], pointers: set[str]) -> bool:
    """Whether an expression has the same value whenever its names have: it may read inputs, and writes nothing."""
    for node in ast.walk(value):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) == "float":
            continue
        name = py.called(node)
        if name == "load":
            pointer = py.argument(node, 0, "pointer")
            read = py.names_read(pointer) if pointer is not None else frozenset()
            if not read & inputs or (read & pointers) - inputs:
                return False
        elif not (name and not name.startswith(("atomic", "rand", "store", "debug"))) and not (
            isinstance(node.func, ast.Attribute) and node.func.attr in PURE_METHODS
        ):
            return False
    return True


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
