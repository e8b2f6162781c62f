"""Several outputs per thread along an axis of the grid that only one factor of their products depends on.

A convolution whose blocks have a filter each reads and converts its input once for every filter; with several sums in
registers a thread does so once for all of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Launch, LaunchPlan
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions
from mctskernel.edits.device_code import filled
from mctskernel.edits.indexing import (
    Guarded,
    condition_of,
    distinct_arguments,
    guarded,
    inlined,
    plan_expression,
    replace_names,
)
from mctskernel.edits.rewrite import (
    Rewrite,
    apply,
    changed,
    dedented,
    fresh_names,
    indented,
    only_launches,
    with_launch,
)
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.matmul_nest import CONVERSIONS, accumulated_product


@dataclass(frozen=True)
class Jam:
    """`total` sums products of `shared`, which doesn't depend on `axis`, and `own`, which does; `statement` adds them.

    The axis is blockIdx.z modulo `count`, and `outer` the declaration of the quotient.
    """

    launch: Launch
    function: cu.Function
    axis: cu.Declaration
    outer: cu.Declaration
    count: str
    extent: str
    total: cu.Declaration
    statement: Node
    shared: Node
    own: Node
    epilogue: tuple[Node, ...]


def jam_of(context: Context, launch: Launch, function: cu.Function) -> Jam | None:
    """The kernel as sums of products along a part of blockIdx.z, if it is that."""
    body = guarded(function)
    if body is None or len(launch.grid) != 3 or not distinct_arguments(launch):
        return None
    pair = _split_axis(body, function)
    if pair is None or any(declaration.shared for declaration in function.declarations):
        return None
    outer, axis, divisor = pair
    extent = plan_expression(divisor, function, launch, context.source)
    if extent is None or not _is_multiple(context, str(launch.grid[2]), extent):
        return None
    loops = [node for node in body.statements if node.type == "for_statement"]
    if len(loops) != 1 or cu.calls(function.body, "__syncthreads"):
        return None
    found = _product(function, body, loops[0], axis.name)
    if found is None:
        return None
    total, statement, shared, own = found
    epilogue = tuple(node for node in body.statements if node.start_byte > loops[0].end_byte)
    before = [n for n in body.statements if n.end_byte < loops[0].start_byte and n != total.node]
    stores = [access for access in function.accesses if access.writes]
    mentions = [
        n for n in body.statements if n not in epilogue and n not in loops and axis.name in cu.identifiers(n)
    ]
    if (
        before
        or mentions
        or not epilogue
        or not all(any(cu.within(access.node, node) for node in epilogue) for access in stores)
    ):
        return None
    if any(n.type not in {"expression_statement", "declaration"} for n in epilogue):
        return None
    written = {access.array for access in stores}
    if written & {access.array for access in function.accesses if access.reads}:
        return None
    return Jam(
        launch, function, axis, outer, cu.text_of(divisor), extent, total, statement, shared, own, epilogue
    )


def _split_axis(body: Guarded, function: cu.Function) -> tuple[cu.Declaration, cu.Declaration, Node] | None:
    """The declarations of `blockIdx.z / n` and `blockIdx.z % n`, blockIdx.z's only uses, and n."""
    found: dict[str, tuple[cu.Declaration, Node]] = {}
    for declaration in function.declarations:
        value = cu.strip_parentheses(declaration.value) if declaration.value is not None else None
        parts = cu.operands(value) if value is not None and declaration.node in body.prologue else None
        if parts is not None and cu.text_of(parts[0]) == "blockIdx.z":
            found[parts[1]] = (declaration, parts[2])
    if cu.uses(function.body, "blockIdx.z") != 2 or not {"/", "%"} <= found.keys():
        return None
    if cu.text_of(found["/"][1]) != cu.text_of(found["%"][1]):
        return None
    outer, axis = found["/"][0], found["%"][0]
    parameter = function.parameter(cu.text_of(found["%"][1]))
    changed_names = {outer.name, axis.name} & cu.assigned_names(function.body).keys()
    if not (outer.alone and axis.alone) or parameter is None or changed_names:
        return None
    return outer, axis, found["%"][1]


def _product(
    function: cu.Function, body: Guarded, loop: Node, axis: str
) -> tuple[cu.Declaration, Node, Node, Node] | None:
    """The sum, the statement that adds to it, and the product's factors: the one without and the one with the axis."""
    carried = {
        name
        for name in cu.assigned_names(loop)
        if not any(d.name == name and cu.within(d.node, loop) for d in function.declarations)
    }
    totals = [
        d for d in function.declarations if d.name in carried and d.type == "float" and d.value is not None
    ]
    if len(carried) != 1 or len(totals) != 1 or totals[0].node not in (*body.prologue, *body.statements):
        return None
    total = totals[0]
    if not total.alone or total.extents:
        return None
    adds = [n for n in cu.walk(loop, "expression_statement") if total.name in cu.identifiers(n)]
    if len(adds) != 1 or cu.uses(loop, total.name) != 1:
        return None
    known = definitions(function)
    factors = accumulated_product(adds[0], total.name, {})
    if factors is None or cu.uses(loop, axis) != 1:
        return None
    first, second = factors
    shared, own = (second, first) if axis in cu.identifiers(first) else (first, second)
    reads = cu.accesses(own)
    if (
        axis not in cu.identifiers(own)
        or len(reads) != 1
        or inlined(own, known, frozenset(cu.identifiers(own))) is None
    ):
        return None
    return total, adds[0], shared, own


def _is_multiple(context: Context, extent: str, divisor: str) -> bool:
    """Whether the grid has a whole number of groups of the axis at every shape."""
    extents, divisors = context.values(extent), context.values(divisor)
    if extents is None or divisors is None or 0 in divisors:
        return False
    return all(size % each == 0 for size, each in zip(extents, divisors, strict=True))


def with_groups(plan: LaunchPlan, found: Jam, limit: str) -> LaunchPlan:
    """The plan with as many blocks along z as there are groups of `limit` along the axis."""
    groups = f"({found.launch.grid[2]}) // ({found.extent}) * ceil_div({found.extent}, {limit})"
    return with_launch(plan, found.launch, (*found.launch.grid[:2], groups), found.launch.block)


SIZES = ((8, 8), (16, 8), (32, 4))
"""Outputs a thread, and iterations of the outer loop whose factors are staged together."""
STAGED_BYTES = 40 << 10


@dataclass(frozen=True)
class Nest:
    """The loops around the product: the outer one, and inner ones of constant `counts` from 0; `guard` is its text."""

    outer: cu.Loop
    inner: tuple[cu.Loop, ...]
    counts: tuple[int, ...]
    guard: str


@rule(
    Category.SHARED_TILING,
    2.0,
    "l1_throughput uncoalesced_access global_latency instruction_issue integer_pipe",
)
def stage_grid_axis(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        found = jam_of(context, launch, function)
        nest = _nest(context, found) if found is not None else None
        if found is None or nest is None or len(launch.block) != 2:
            continue
        arrays = dict.fromkeys(access.array for access in cu.accesses(found.own))
        for items, depth in SIZES:
            if 4 * items * depth * prod(nest.counts) > STAGED_BYTES:
                continue
            yield Proposal(
                f"compute {items} outputs per thread along {found.axis.name}, "
                f"{', '.join(arrays)} in shared memory{context.where(function.name)}",
                _staged(context, found, nest, (items, depth)),
                rationale=(
                    f"All threads of a block multiply by the same {cu.text_of(found.own)}: read and converted once a "
                    "block, vectors of it reach every thread at once."
                ),
                expected_effect=f"One load of what they share for {items} products, and one of four factors.",
                prior=1.0 if items == SIZES[0][0] else 0.8,
            )


def _nest(context: Context, found: Jam) -> Nest | None:
    body = guarded(found.function)
    loops: list[cu.Loop] = []
    node: Node | None = cu.enclosing(found.statement, "for_statement")
    while node is not None:
        loop = cu.as_loop(node)
        if loop is None or loop.comparison != "<" or loop.step != "1" or cu.text_of(loop.start) != "0":
            return None
        loops.insert(0, loop)
        node = cu.enclosing(node, "for_statement")
    if body is None or not loops or not cu.within(loops[0].node, body.guard):
        return None
    counts = [cu.whole_number(cu.text_of(loop.bound)) for loop in loops[1:]]
    names = {found.axis.name, *(loop.variable for loop in loops)}
    uniform = {p.name for p in found.function.parameters} | context.source.macro_names | names | CONVERSIONS
    condition = condition_of(body.guard)
    if None in counts or condition is None or not cu.identifiers(found.own) <= uniform:
        return None
    if not cu.identifiers(loops[0].bound) <= uniform - names:
        return None
    whole = tuple(count for count in counts if count is not None)
    return Nest(loops[0], tuple(loops[1:]), whole, cu.text_of(condition))


def _staged(context: Context, found: Jam, nest: Nest, sizes: tuple[int, int]) -> str:
    source, function, axis, total = context.source, found.function, found.axis.name, found.total.name
    outer = nest.outer.variable
    limit, depth = cu.fresh_name(source, f"{axis.upper()}S"), cu.fresh_name(source, f"{outer.upper()}S")
    wanted = {each: each for each in ("item", "shared", "factors", "at", "inside")}
    wanted = {"first": f"first_{axis}", **wanted, "start": f"{outer}0"}
    fresh = fresh_names(cu.names_in_scope(source, function), *wanted.values())
    names = {**dict(zip(wanted, fresh, strict=True)), "ITEMS": limit, "DEPTH": depth}
    item, at, shared = names["item"], names["at"], names["shared"]
    place, extents, below = f"{outer} - {names['start']}", list[str](), limit
    for loop, count in zip(nest.inner, nest.counts, strict=True):
        place = f"({place}) * {count} + {loop.variable}"
    for loop, count in reversed(list(zip(nest.inner, nest.counts, strict=True))):
        extents.insert(0, f"const int {loop.variable} = {at} / ({below}) % {count};")
        below = f"{below} * {count}"
    adding = [
        f"const float {shared} = {cu.text_of(found.shared)};",
        "#pragma unroll",
        f"for (int {item} = 0; {item} < {limit}; ++{item}) {{",
        f"    {total}[{item}] += {shared} * {names['factors']}[({place}) * {limit} + {item}];",
        "}",
    ]
    in_block = found.statement.parent is not None and found.statement.parent.type == "compound_statement"
    lines = adding if in_block else ["{", *indented(adding), "}"]
    margin = " " * found.statement.start_point[1]
    bound = cu.text_of(nest.outer.bound)
    header = f"for ({nest.outer.type} {outer} = {names['start']}; {outer} < {bound} && "
    header += f"{outer} < {names['start']} + {depth}; ++{outer}) "
    loop_lines = changed(source, nest.outer.body, [cu.swap(found.statement, f"\n{margin}".join(lines))])
    kept = [n for n in _prologue(found) if n not in (found.axis.node, found.outer.node, found.total.node)]
    epilogue = replace_names("\n".join(dedented(source, found.epilogue)), {total: f"{total}[{item}]"})
    holes = {
        "kept": dedented(source, kept),
        "outer": found.outer.name,
        "groups": f"(({found.count} + {limit} - 1) / {limit})",
        "guard": nest.guard,
        "size": " * ".join([depth, *map(str, nest.counts), limit]),
        "total": total,
        "initial": cu.text_of(found.total.value) if found.total.value is not None else "0.0f",
        "bound": bound,
        "places": extents,
        "k": outer,
        "below": below,
        "count": found.count,
        "own": replace_names(cu.text_of(found.own), {axis: f"{names['first']} + {at} % {limit}"}),
        "loop": [f"{header}{loop_lines[0]}", *loop_lines[1:]],
        "axis": axis,
        "epilogue": epilogue.splitlines(),
    }
    rewrite = Rewrite(
        function,
        body=filled("stage_grid_axis", names, holes),
        plan=with_groups(context.plan, found, limit),
        about=f"{limit} outputs a thread; what they are multiplied by passes through shared memory.",
        defines={limit: sizes[0], depth: sizes[1]},
    )
    return apply(context, rewrite)


def _prologue(found: Jam) -> tuple[Node, ...]:
    body = guarded(found.function)
    return body.prologue if body is not None else ()
