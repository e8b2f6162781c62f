"""From one thread per row to one block, or one warp, per row: strided loops and parallel reductions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import (
    Guarded,
    code,
    distinct_arguments,
    global_index_axis,
    guarded,
    plan_expression,
)
from mctskernel.edits.reductions import (
    Reduction,
    block_reduction,
    combining_functions,
    is_zero,
    reduced_value,
    reductions_of,
    warp_reduction,
)
from mctskernel.edits.rewrite import Rewrite, apply, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule


@dataclass(frozen=True)
class RowLoop:
    """A loop over a row that threads can share, and what it reduces; `from_zero` if element 0 begins the reduction."""

    loop: cu.Loop
    reductions: tuple[Reduction, ...]
    from_zero: bool = False


@dataclass(frozen=True)
class RowKernel:
    """A kernel whose thread handles one `row` of the plan's `rows`; `stores` write one value a row."""

    row: Node
    rows: str
    loops: tuple[RowLoop, ...]
    stores: tuple[Node, ...]


@rule(
    Category.PARALLELISM, 2.0, "dram_bandwidth uncoalesced_access global_latency low_occupancy too_few_blocks"
)
def parallel_rows(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        found = row_kernel(context, launch, function)
        if found is None:
            continue
        yield Proposal(
            f"one block per row{context.where(function.name)}",
            _block_per_row(context, launch, function, found),
            rationale=(
                "One thread walks a whole row while its neighbours walk others, so every access is scattered "
                "and few threads run; a block per row reads along the row and reduces in shared memory."
            ),
            expected_effect="Coalesced accesses, and as many more threads as a block has.",
        )
        yield Proposal(
            f"one warp per row{context.where(function.name)}",
            _warp_per_row(context, launch, function, found),
            rationale="A warp per row reads along the row and reduces with shuffles, without any barrier.",
            expected_effect="Coalesced accesses and 32 times as many threads.",
            prior=0.7,
        )


def row_kernel(context: Context, launch: Launch, function: cu.Function) -> RowKernel | None:
    """The kernel as loops over the row of each thread, if it is nothing else."""
    body = guarded(function)
    if body is None or len(body.bounds) != 1 or _is_cooperative(function) or not distinct_arguments(launch):
        return None
    threads = [n for n in cu.walk(function.body, "field_expression") if "threadIdx.x" in cu.text_of(n)]
    one_axis = len(launch.grid) == len(launch.block) == len(threads) == 1
    ((name, bound),) = body.bounds.items()
    known, parts = definitions(function), _parts(body, function)
    rows = plan_expression(bound, function, launch, context.source)
    row = known.pop(name, None)
    if row is None or rows is None or parts is None or not one_axis:
        return None
    if global_index_axis(polynomial(row, known), launch, context.kernel.macros) != "x":
        return None
    loops, stores = parts
    if not loops or not _independent(loops, stores, function, known):
        return None
    if not _sums_start_at_zero(loops, function, body):
        return None
    return RowKernel(row, rows, loops, stores)


def _parts(body: Guarded, function: cu.Function) -> tuple[tuple[RowLoop, ...], tuple[Node, ...]] | None:
    loops: list[RowLoop] = []
    stores: list[Node] = []
    for node in body.statements:
        if node.type in {"declaration", "preproc_call"}:
            if cu.has(node, "array_declarator"):
                return None
        elif node.type == "for_statement":
            found = _row_loop(node, function)
            if found is None:
                return None
            loops.append(found)
        elif node.type == "expression_statement":
            if any(access.writes for access in cu.accesses(node)):
                if cu.assigned_names(node):
                    return None
                stores.append(node)
        else:
            return None
    return tuple(loops), tuple(stores)


def _row_loop(node: Node, function: cu.Function) -> RowLoop | None:
    loop = cu.as_loop(node)
    if loop is None or loop.comparison != "<" or loop.step != "1":
        return None
    if cu.has(loop.body, "break_statement", "return_statement", "goto_statement"):
        return None
    found = reductions_of(loop.body)
    if found is None:
        return None
    types = {d.name: d.type for d in function.declarations}
    if any(types.get(r.variable) != "float" for r in found):
        return None
    return RowLoop(
        loop, found, cu.text_of(loop.start) == "1" and _starts_with_element_0(loop, found, function)
    )


def _starts_with_element_0(loop: cu.Loop, found: tuple[Reduction, ...], function: cu.Function) -> bool:
    """Whether a loop from 1 takes an extremum that was declared as element 0, which it may as well take again."""
    values = {d.name: d.value for d in function.declarations}
    (read, *more) = cu.accesses(loop.body) or (None,)
    if len(found) != 1 or read is None or more or found[0].operation == "sum":
        return False
    value = values[found[0].variable]
    (first, *others) = cu.accesses(value) if value is not None else (None,)
    if value is None or first is None or others or first.array != read.array:
        return False
    statement = code(loop.body)
    folded = reduced_value(statement[0], found[0].variable) if len(statement) == 1 else None
    if folded is None or _around(folded, read.node) != _around(value, first.node):
        return False
    known = definitions(function)
    along = polynomial(read.indices[0], known)
    step = along.coefficient(loop.variable)
    return step is not None and along.without(loop.variable) == polynomial(first.indices[0], known)


def _around(node: Node, inner: Node) -> tuple[bytes, bytes]:
    """An expression's text before and after a part of it."""
    text = node.text or b""
    return text[: inner.start_byte - node.start_byte], text[inner.end_byte - node.start_byte :]


def _independent(
    loops: tuple[RowLoop, ...], stores: tuple[Node, ...], function: cu.Function, known: Mapping[str, Node]
) -> bool:
    """Whether an element that a loop writes is touched by one iteration of each loop only, the same in all."""
    touched: dict[str, set[tuple[str, str, str]]] = {}
    written: set[str] = set()
    for row_loop in loops:
        loop = row_loop.loop
        for access in cu.accesses(loop.body):
            parameter = function.parameter(access.array)
            if parameter is None or not parameter.pointer or len(access.indices) != 1:
                return False
            index = polynomial(access.indices[0], known)
            step = index.coefficient(loop.variable)
            if access.writes:
                written.add(access.array)
                if step is None or not step.terms:
                    return False
            key = ("opaque", str(index)) if step is None else (str(step), str(index.without(loop.variable)))
            touched.setdefault(access.array, set()).add((cu.text_of(loop.start), *key))
    stored = {access.array for node in stores for access in cu.accesses(node) if access.writes}
    spans = [row_loop.loop.node for row_loop in loops]
    outside = {a.array for a in function.accesses if not any(cu.within(a.node, span) for span in spans)}
    return (
        all(len(touched[array]) == 1 for array in written)
        and not written & outside
        and not stored & touched.keys()
    )


def _sums_start_at_zero(loops: tuple[RowLoop, ...], function: cu.Function, body: Guarded) -> bool:
    """Whether each sum is declared as zero and touched by nothing else before its one loop."""
    declared = {d.name: d.value for d in function.declarations}
    reduced = [r.variable for row_loop in loops for r in row_loop.reductions]
    for row_loop in loops:
        for reduction in row_loop.reductions:
            if reduction.operation != "sum":
                continue
            before = [n for n in body.statements if n.end_byte <= row_loop.loop.node.start_byte]
            changed = any(reduction.variable in cu.assigned_names(node) for node in before)
            if changed or reduced.count(reduction.variable) > 1 or not is_zero(declared[reduction.variable]):
                return False
    return True


def _is_cooperative(function: cu.Function) -> bool:
    """Whether threads of a kernel share memory, wait for each other or add up with atomics."""
    if any(d.shared for d in function.declarations):
        return True
    return any("sync" in cu.text_of(c) or cu.text_of(c).startswith("atomic") for c in cu.calls(function.body))


def _block_per_row(context: Context, launch: Launch, function: cu.Function, found: RowKernel) -> str:
    (planned,) = launch.block
    width = context.kernel.macros.get(str(planned), 0)
    keeps = width >= 32 and width & (width - 1) == 0
    block = str(planned) if keeps else cu.fresh_name(context.source, "BLOCK")
    rewrite = Rewrite(
        function,
        plan=with_launch(context.plan, launch, (found.rows,), (block,)),
        about="One block per row.",
        defines={} if keeps else {block: 256},
    )
    return _shared_rows(context, rewrite, found, "blockIdx.x", (block, "block"))


def _warp_per_row(context: Context, launch: Launch, function: cu.Function, found: RowKernel) -> str:
    warps = cu.fresh_name(context.source, "WARPS")
    rewrite = Rewrite(
        function,
        plan=with_launch(context.plan, launch, (f"ceil_div({found.rows}, {warps})",), (32, warps)),
        about=f"One warp per row, {warps} rows per block.",
        defines={warps: 4},
    )
    return _shared_rows(context, rewrite, found, f"blockIdx.x * {warps} + threadIdx.y", ("32", "warp"))


def _shared_rows(
    context: Context, rewrite: Rewrite, found: RowKernel, row: str, group: tuple[str, str]
) -> str:
    """The text with rows shared by the threads of a `group`: how many there are, and `block` or `warp`."""
    width, kind = group
    operations = tuple(dict.fromkeys(r.operation for each in found.loops for r in each.reductions))
    names = {op: cu.fresh_name(context.source, f"{kind}_{op}") for op in operations}
    reductions = [
        block_reduction(name, op, width) if kind == "block" else warp_reduction(name, op)
        for op, name in names.items()
    ]
    functions = [*combining_functions(context.source, operations), *reductions]
    changes = _shared_out(context, found, row, width, names)
    return apply(context, dataclasses.replace(rewrite, functions=functions, more=changes))


def _shared_out(
    context: Context, found: RowKernel, row: str, width: str, names: Mapping[str, str]
) -> list[cu.Replacement]:
    """The changes that give thread x of a row every `width`-th iteration and combine what was reduced."""
    changes = [cu.swap(found.row, row)]
    for row_loop in found.loops:
        loop = row_loop.loop
        start = "0" if row_loop.from_zero else cu.text_of(loop.start)
        changes.append(cu.swap(loop.start, "threadIdx.x" if start == "0" else f"{start} + threadIdx.x"))
        update = loop.node.child_by_field_name("update")
        if update is not None:
            changes.append(cu.swap(update, f"{loop.variable} += {width}"))
        margin = cu.indentation(context.source, loop.node)
        changes += [
            cu.insert_after(loop.node, f"\n{margin}{r.variable} = {names[r.operation]}({r.variable});")
            for r in row_loop.reductions
        ]
    for node in found.stores:
        margin = cu.indentation(context.source, node)
        text = f"if (threadIdx.x == 0) {{\n{margin}    {cu.text_of(node)}\n{margin}}}"
        changes.append(cu.swap(node, text))
    return changes
