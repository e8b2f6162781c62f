"""Several outputs a thread along a grid's axis, with the factors that all threads of a block share in shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.edits.indexing import condition_of, guarded, replace_names
from mctskernel.edits.rewrite import Rewrite, apply, changed, dedented, fresh_names, indented, only_launches
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.jammed_axis import RELIEVED_BY_JAMMING, Jam, jam_of, outputs, with_groups
from mctskernel.edits.rules.matmul.operands import CONVERSIONS
from mctskernel.edits.syntax import (
    Loop,
    accesses,
    as_loop,
    enclosing,
    fresh_name,
    identifiers,
    names_in_scope,
    swap,
    text_of,
    whole_number,
    within,
)

SIZES = ((8, 8), (16, 8), (32, 4))
"""Outputs a thread, and iterations of the outer loop whose factors are staged together."""
STAGED_BYTES = 40 << 10


@dataclass(frozen=True)
class Nest:
    """The loops around the product: the outer one, and inner ones of constant `counts` from 0; `guard` is its text."""

    outer: Loop
    inner: tuple[Loop, ...]
    counts: tuple[int, ...]
    guard: str


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        found = jam_of(context, launch, function)
        nest = _nest(context, found) if found is not None else None
        if found is None or nest is None or len(launch.block) != 2:
            continue
        arrays = dict.fromkeys(access.array for access in accesses(found.own))
        for items, depth in SIZES:
            if 4 * items * depth * prod(nest.counts) > STAGED_BYTES:
                continue
            yield edit(
                Category.SHARED_TILING,
                f"compute {items} outputs a thread along {found.axis.name} in {function.name}, "
                f"{' and '.join(arrays)} in shared memory",
                _staged(context, found, nest, (items, depth)),
                rationale=(
                    f"All threads of a block multiply by the same {text_of(found.own)}: read and converted once a "
                    "block, vectors of it reach every thread at once."
                ),
                expected_effect=f"One load of what they share for {items} products, and one of four factors.",
                prior=1.0 if items == SIZES[0][0] else 0.8,
            )


def _nest(context: Context, found: Jam) -> Nest | None:
    body = guarded(found.function)
    loops: list[Loop] = []
    node: Node | None = enclosing(found.statement, "for_statement")
    while node is not None:
        loop = as_loop(node)
        if loop is None or loop.comparison != "<" or loop.step != "1" or text_of(loop.start) != "0":
            return None
        loops.insert(0, loop)
        node = enclosing(node, "for_statement")
    if body is None or not loops or not within(loops[0].node, body.guard):
        return None
    counts = [whole_number(text_of(loop.bound)) for loop in loops[1:]]
    names = {found.axis.name, *(loop.variable for loop in loops)}
    uniform = {p.name for p in found.function.parameters} | context.source.macro_names | names | CONVERSIONS
    condition = condition_of(body.guard)
    if None in counts or condition is None or not identifiers(found.own) <= uniform:
        return None
    if not identifiers(loops[0].bound) <= uniform - names:
        return None
    whole = tuple(count for count in counts if count is not None)
    return Nest(loops[0], tuple(loops[1:]), whole, text_of(condition))


def _staged(context: Context, found: Jam, nest: Nest, sizes: tuple[int, int]) -> str:
    source, function, axis = context.source, found.function, found.axis.name
    outer = nest.outer.variable
    limit, depth = fresh_name(source, f"{axis.upper()}S"), fresh_name(source, f"{outer.upper()}S")
    first, item, shared, tile, at, inside, start = fresh_names(
        names_in_scope(source, function),
        f"first_{axis}",
        "item",
        "shared",
        "factors",
        "at",
        "inside",
        f"{outer}0",
    )
    groups = f"(({found.count} + {limit} - 1) / {limit})"
    total = f"{found.total.name}[{item}]"
    each = ["#pragma unroll", f"for (int {item} = 0; {item} < {limit}; ++{item}) {{"]
    place = f"{outer} - {start}"
    for loop, count in zip(nest.inner, nest.counts, strict=True):
        place = f"({place}) * {count} + {loop.variable}"
    adding = [
        f"const float {shared} = {text_of(found.shared)};",
        *each,
        f"    {total} += {shared} * {tile}[({place}) * {limit} + {item}];",
        "}",
    ]
    in_block = found.statement.parent is not None and found.statement.parent.type == "compound_statement"
    lines = adding if in_block else ["{", *indented(adding), "}"]
    margin = " " * found.statement.start_point[1]
    header = f"for ({nest.outer.type} {outer} = {start}; {outer} < {text_of(nest.outer.bound)} && "
    header += f"{outer} < {start} + {depth}; ++{outer}) "
    loop_lines = changed(source, nest.outer.body, [swap(found.statement, f"\n{margin}".join(lines))])
    kept = [n for n in _prologue(found) if n not in (found.axis.node, found.outer.node, found.total.node)]
    initial = text_of(found.total.value) if found.total.value is not None else "0.0f"
    body = [
        *dedented(source, kept),
        f"const int {found.outer.name} = blockIdx.z / {groups};",
        f"const int {first} = blockIdx.z % {groups} * {limit};",
        f"const bool {inside} = {nest.guard};",
        f"__shared__ alignas(16) float {tile}[{' * '.join([depth, *map(str, nest.counts), limit])}];",
        f"float {found.total.name}[{limit}];",
        *each,
        f"    {total} = {initial};",
        "}",
        f"for (int {start} = 0; {start} < {text_of(nest.outer.bound)}; {start} += {depth}) {{",
        *indented(
            [
                "__syncthreads();",
                *_fill(found, nest, {"limit": limit, "tile": tile, "at": at, "first": first, "start": start}),
                "__syncthreads();",
                f"if ({inside}) {{",
                *indented([f"{header}{loop_lines[0]}", *loop_lines[1:]]),
                "}",
            ]
        ),
        "}",
        f"if ({inside}) {{",
        *indented(outputs(source, found, (limit, first, item))),
        "}",
    ]
    rewrite = Rewrite(
        function,
        body=body,
        plan=with_groups(context.plan, found, limit),
        about=f"{limit} outputs a thread; what they are multiplied by passes through shared memory.",
        defines={limit: sizes[0], depth: sizes[1]},
    )
    return apply(context, rewrite)


def _prologue(found: Jam) -> tuple[Node, ...]:
    body = guarded(found.function)
    return body.prologue if body is not None else ()


def _fill(found: Jam, nest: Nest, names: dict[str, str]) -> list[str]:
    """All threads of a block fill the tile with factors, zeros beyond the last."""
    at, limit, outer = names["at"], names["limit"], nest.outer.variable
    extents, below = [], limit
    for loop, count in reversed(list(zip(nest.inner, nest.counts, strict=True))):
        extents.append(f"const int {loop.variable} = {at} / ({below}) % {count};")
        below = f"{below} * {count}"
    size = f"sizeof({names['tile']}) / sizeof(float)"
    axis = f"{names['first']} + {at} % {limit}"
    exists = f"{outer} < {text_of(nest.outer.bound)} && {axis} < {found.count}"
    own = replace_names(text_of(found.own), {found.axis.name: axis})
    step = "blockDim.x * blockDim.y"
    return [
        f"for (int {at} = threadIdx.y * blockDim.x + threadIdx.x; {at} < {size}; {at} += {step}) {{",
        *indented(
            [
                *reversed(extents),
                f"const int {outer} = {names['start']} + {at} / ({below});",
                f"{names['tile']}[{at}] = {exists} ? {own} : 0.0f;",
            ]
        ),
        "}",
    ]


RULES = (
    Rule(
        "jam-grid-axis-staged",
        Category.SHARED_TILING,
        RELIEVED_BY_JAMMING,
        _propose,
        prior=2.0,
    ),
)
