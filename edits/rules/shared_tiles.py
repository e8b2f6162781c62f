"""Tiles in shared memory: transposing copies, and padding against bank conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import Polynomial, definitions, polynomial
from mctskernel.edits.device_code import filled, renamed
from mctskernel.edits.indexing import ThreadIndex, distinct_arguments, guarded, inlined, thread_indices
from mctskernel.edits.rewrite import Rewrite, apply, only_launches, with_launch
from mctskernel.edits.rule import TYPE_BYTES, Context, Proposal, rule

SIZES = ((32, 8), (64, 8))
"""Side of the tile, and rows that the block handles at a time."""

_TYPES = ("float", "int", "unsigned", "unsigned int", "double")


@dataclass(frozen=True)
class Transpose:
    """`target = value` for every pair of indices: reads run along `along_input`, writes along `along_output`.

    `element` is the element read, `around` the text of the value before and after it.
    """

    along_input: ThreadIndex
    along_output: ThreadIndex
    target: str
    element: str
    type: str
    around: tuple[str, str]


@rule(
    Category.SHARED_TILING, 2.0, "dram_bandwidth l2_bandwidth l1_throughput uncoalesced_access global_latency"
)
def transpose_tiles(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        found = _transpose(context, launch, function)
        if found is None:
            continue
        for side, rows in SIZES:
            yield Proposal(
                f"transpose through {side}x{side} tiles in shared memory{context.where(function.name)}",
                _tiled(context, launch, function, found, (side, rows)),
                rationale=(
                    "One of the two sides of a transposing copy is always scattered; through a tile in shared memory "
                    "warps read and write whole rows, and an odd row length keeps its columns in different banks."
                ),
                expected_effect="Full sectors on both sides: 4 bytes moved for 4 bytes used.",
                prior=1.0 if side == SIZES[0][0] else 0.8,
            )


def _transpose(context: Context, launch: Launch, function: cu.Function) -> Transpose | None:
    body = guarded(function)
    if body is None or len(body.bounds) != 2 or len(launch.grid) < 2 or len(launch.block) != 2:
        return None
    if not distinct_arguments(launch) or _cooperates(function):
        return None
    indices = thread_indices(context, launch, function, body.bounds)
    *before, last = body.statements
    if {index.axis for index in indices} != {"x", "y"} or any(node.type != "declaration" for node in before):
        return None
    target, operator, value = cu.assignment(last) or (last, "", last)
    if operator != "=" or any(cu.accesses(node) for node in (*before, *body.prologue)):
        return None
    return _between(context, function, (indices[0], indices[1]), target, value)


def _between(
    context: Context,
    function: cu.Function,
    indices: tuple[ThreadIndex, ThreadIndex],
    target: Node,
    value: Node,
) -> Transpose | None:
    """The transpose in an assignment, if what it stores needs one element of the other order."""
    own = {index.name for index in indices}
    known = {name: node for name, node in definitions(function).items() if name not in own}
    keep = frozenset({*own, *(p.name for p in function.parameters)}) | context.source.macro_names
    (store, *more) = cu.accesses(target) or (None,)
    if store is None or more or store.node != target or _global_type(function, store.array) is None:
        return None
    for along_output, along_input in (indices, indices[::-1]):
        if not _runs_along(polynomial(store.indices[0], known), along_output, along_input, keep):
            continue
        reads = [access for access in cu.accesses(value) if _global_type(function, access.array) is not None]
        crossing = [
            read
            for read in reads
            if _runs_along(polynomial(read.indices[0], known), along_input, along_output, keep)
        ]
        element_type = _global_type(function, crossing[0].array) if len(crossing) == 1 else None
        if element_type is None or any(read.array == store.array for read in reads):
            return None
        data = context.source.text.encode()
        node = crossing[0].node
        around = (
            data[value.start_byte : node.start_byte].decode(),
            data[node.end_byte : value.end_byte].decode(),
        )
        # What is around the element is computed where it is stored, from names that exist there.
        if not _names_around(value, node) <= keep or _called(value) & context.source.macro_names:
            return None
        read_at, store_at = (
            inlined(crossing[0].indices[0], known, keep),
            inlined(store.indices[0], known, keep),
        )
        if read_at is None or store_at is None:
            return None
        return Transpose(
            along_input,
            along_output,
            f"{store.array}[{store_at}]",
            f"{crossing[0].array}[{read_at}]",
            element_type,
            around,
        )
    return None


def _runs_along(value: Polynomial, along: ThreadIndex, across: ThreadIndex, keep: frozenset[str]) -> bool:
    """Whether neighbours along one index are neighbours in memory, and along the other they aren't."""
    near, far = value.coefficient(along.name), value.coefficient(across.name)
    if near is None or far is None or not value.names <= keep:
        return False
    return near.constant == 1 and bool(far.terms) and far.constant is None


def _global_type(function: cu.Function, array: str) -> str | None:
    parameter = function.parameter(array)
    return (
        parameter.type if parameter is not None and parameter.pointer and parameter.type in _TYPES else None
    )


def _names_around(value: Node, element: Node) -> frozenset[str]:
    """Names in a value outside one element, functions that it calls left out."""
    names = frozenset[str]()
    stack = [value]
    while stack:
        node = stack.pop()
        if node == element:
            continue
        if node.type in {"identifier", "type_identifier", "field_expression"}:
            names |= cu.identifiers(node)
        elif node.type == "call_expression":
            stack += node.named_children[1:]
        else:
            stack += node.named_children
    return names


def _called(node: Node) -> frozenset[str]:
    return frozenset(cu.text_of(call.children[0]) for call in cu.calls(node))


def _cooperates(function: cu.Function) -> bool:
    """Whether threads depend on each other, or do more than one assignment."""
    if any(d.shared for d in function.declarations) or len(cu.assigned_names(function.body)) > 0:
        return True
    return any("sync" in name or name.startswith("atomic") for name in _called(function.body)) or cu.has(
        function.body, "asm_statement", "gnu_asm_expression", "for_statement", "lambda_expression"
    )


def _tiled(
    context: Context, launch: Launch, function: cu.Function, found: Transpose, sizes: tuple[int, int]
) -> str:
    side, rows = cu.fresh_name(context.source, "TILE"), cu.fresh_name(context.source, "TILE_ROWS")
    near, far = found.along_input, found.along_output
    wanted = {"tile": "tile", "near0": f"{near.name}0", "far0": f"{far.name}0", "i": "i"}
    fresh = cu.fresh_names(cu.names_in_scope(context.source, function), *wanted.values())
    names = {**dict(zip(wanted, fresh, strict=True)), "SIDE": side, "ROWS": rows}
    holes = {
        "type": found.type,
        "near": near.name,
        "near_type": near.type,
        "far": far.name,
        "far_type": far.type,
        "inside": f"{far.name} < {far.bound} && {near.name} < {near.bound}",
        "element": found.element,
        "target": found.target,
        "value": renamed("tile[threadIdx.x][i]", names).join(found.around),
    }
    grid = (f"ceil_div({near.extent}, {side})", f"ceil_div({far.extent}, {side})", *launch.grid[2:])
    rewrite = Rewrite(
        function,
        body=filled("transpose_tiles", names, holes),
        plan=with_launch(context.plan, launch, grid, (side, rows)),
        about=f"A block turns a tile of {side} x {side} elements, {rows} rows at a time.",
        defines=dict(zip((side, rows), sizes, strict=True)),
    )
    return apply(context, rewrite)


BANKS = 32
BANK_BYTES = 4


@rule(Category.BANK_CONFLICTS, 1.0, "shared_throughput bank_conflicts")
def pad_shared_arrays(context: Context) -> Iterator[Proposal]:
    """`tile[T][T]` -> `tile[T][T + 1]` where neighbouring threads would meet in one bank."""
    for function in context.functions:
        for declaration in function.declarations:
            conflict = _conflict(context, function, declaration)
            width = declaration.extents[-1] if declaration.extents else None
            if conflict is None or width is None:
                continue
            yield Proposal(
                f"pad the shared array {declaration.name} by one column{context.where(function.name)}",
                cu.replace(context.source, [cu.swap(width, f"{cu.text_of(width)} + 1")]),
                rationale=f"Neighbouring threads touch {declaration.name} {conflict} words apart, so up "
                f"to {gcd(conflict, BANKS)} of them meet in one bank; an odd distance spreads them.",
                expected_effect="Shared-memory accesses in one pass instead of several.",
            )


def _conflict(context: Context, function: cu.Function, declaration: cu.Declaration) -> int | None:
    """The distance in words between neighbouring threads' accesses, if one more column would spread them."""
    if not declaration.shared or declaration.extern or len(declaration.extents) != 2:
        return None
    if TYPE_BYTES.get(declaration.type) != BANK_BYTES:
        return None
    width_node = declaration.extents[1]
    width = context.constant(cu.text_of(width_node)) if width_node is not None else 0
    found = [access for access in function.accesses if access.array == declaration.name]
    if width is None or cu.uses(function.body, declaration.name) != len(found) + 1:
        return None
    if any(len(access.indices) != 2 for access in found):
        return None
    for access in found:
        before, after = (_distance(context, function, access, w) for w in (width, width + 1))
        if before and after and gcd(before, BANKS) > gcd(after, BANKS):
            return before
    return None


def _distance(context: Context, function: cu.Function, access: cu.Access, width: int) -> int | None:
    """Words between the accesses of threads that are neighbours in x; None where that isn't a constant."""
    known = definitions(function)
    steps = [polynomial(index, known).coefficient("threadIdx.x") for index in access.indices]
    row, column = (step.at(context.kernel.macros).constant if step is not None else None for step in steps)
    return None if row is None or column is None else abs(row * width + column)
