"""Several outputs a thread along an axis of the grid that only one factor of their products depends on.

A convolution whose blocks have a filter each reads and converts its input once for every filter; with FILTERS
sums in registers a thread does so once for all of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import ExpressionError, evaluate_int
from mctskernel.core.launch_plan import Launch, LaunchPlan
from mctskernel.edits.affine import definitions
from mctskernel.edits.indexing import Guarded, guarded, inlined, plan_expression, replace_names
from mctskernel.edits.rewrite import (
    Rewrite,
    apply,
    dedented,
    fresh_names,
    indented,
    only_launches,
    with_launch,
)
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.matmul.nest import accumulated_product
from mctskernel.edits.syntax import (
    Declaration,
    Function,
    Replacement,
    Source,
    accesses,
    assigned_names,
    calls,
    fresh_name,
    identifiers,
    indentation,
    names_in_scope,
    strip_parentheses,
    swap,
    text_of,
    walk,
    within,
)

ITEMS = (8, 4, 16)

RELIEVED_BY_JAMMING = frozenset(
    {
        Bottleneck.L1_THROUGHPUT,
        Bottleneck.INSTRUCTION_ISSUE,
        Bottleneck.INTEGER_PIPE,
        Bottleneck.UNCOALESCED_ACCESS,
        Bottleneck.GLOBAL_LATENCY,
    }
)
"""What a thread relieves that computes several elements along an axis: loads that they share, and their arithmetic."""


@dataclass(frozen=True)
class Jam:
    """`total` sums products of `shared`, which doesn't depend on `axis`, and `own`, which does; `statement` adds them.

    The axis is blockIdx.z modulo `count`, and `outer` the declaration of the quotient.
    """

    launch: Launch
    function: Function
    axis: Declaration
    outer: Declaration
    count: str
    extent: str
    total: Declaration
    statement: Node
    shared: Node
    own: Node
    epilogue: tuple[Node, ...]


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        found = jam_of(context, launch, function)
        if found is None:
            continue
        for items in ITEMS:
            yield edit(
                Category.REGISTER_BLOCKING,
                f"compute {items} outputs a thread along {found.axis.name} in {function.name}",
                _jammed(context, found, items),
                rationale=(
                    f"{text_of(found.shared)} doesn't depend on {found.axis.name}: a thread that sums for several "
                    "of them finds, loads and converts it once for all."
                ),
                expected_effect=f"Up to {items} times fewer loads of what they share.",
                prior=1.0 if items == ITEMS[0] else 0.8,
            )


def jam_of(context: Context, launch: Launch, function: Function) -> Jam | None:
    """The kernel as sums of products along a part of blockIdx.z, if it is that."""
    body = guarded(function)
    if body is None or len(launch.grid) != 3 or len(set(map(str, launch.args))) != len(launch.args):
        return None
    pair = _split_axis(body, function)
    if pair is None or any(declaration.shared for declaration in function.declarations):
        return None
    outer, axis, divisor = pair
    extent = plan_expression(divisor, function, launch, context.source)
    if extent is None or not _is_multiple(context, str(launch.grid[2]), extent):
        return None
    loops = [node for node in body.statements if node.type == "for_statement"]
    if len(loops) != 1 or calls(function.body, "__syncthreads"):
        return None
    found = _product(function, body, loops[0], axis.name)
    if found is None:
        return None
    total, statement, shared, own = found
    epilogue = tuple(node for node in body.statements if node.start_byte > loops[0].end_byte)
    before = [n for n in body.statements if n.end_byte < loops[0].start_byte and n != total.node]
    stores = [access for access in function.accesses if access.writes]
    mentions = [
        n for n in body.statements if n not in epilogue and n not in loops and axis.name in identifiers(n)
    ]
    if (
        before
        or mentions
        or not epilogue
        or not all(any(within(access.node, node) for node in epilogue) for access in stores)
    ):
        return None
    if any(n.type not in {"expression_statement", "declaration"} for n in epilogue):
        return None
    written = {access.array for access in stores}
    if written & {access.array for access in function.accesses if access.reads}:
        return None
    return Jam(
        launch,
        function,
        axis,
        outer,
        text_of(divisor),
        extent,
        total,
        statement,
        shared,
        own,
        epilogue,
    )


def _split_axis(body: Guarded, function: Function) -> tuple[Declaration, Declaration, Node] | None:
    """The declarations of `blockIdx.z / n` and `blockIdx.z % n`, blockIdx.z's only uses, and n."""
    found: dict[str, tuple[Declaration, Node]] = {}
    for declaration in function.declarations:
        value = strip_parentheses(declaration.value) if declaration.value is not None else None
        if value is None or declaration.node not in body.prologue or value.type != "binary_expression":
            continue
        left, right = value.child_by_field_name("left"), value.child_by_field_name("right")
        operator = value.child_by_field_name("operator")
        if left is None or right is None or operator is None or text_of(left) != "blockIdx.z":
            continue
        found[text_of(operator)] = (declaration, right)
    uses = sum(text_of(node) == "blockIdx.z" for node in walk(function.body, "field_expression"))
    if uses != 2 or not {"/", "%"} <= found.keys() or text_of(found["/"][1]) != text_of(found["%"][1]):
        return None
    outer, axis = found["/"][0], found["%"][0]
    alone = all(len(d.node.children_by_field_name("declarator")) == 1 for d in (outer, axis))
    parameter = function.parameter(text_of(found["%"][1]))
    if not alone or parameter is None or {outer.name, axis.name} & assigned_names(function.body).keys():
        return None
    return outer, axis, found["%"][1]


def _product(
    function: Function, body: Guarded, loop: Node, axis: str
) -> tuple[Declaration, Node, Node, Node] | None:
    """The sum, the statement that adds to it, and the product's factors: the one without and the one with the axis."""
    carried = {
        name
        for name in assigned_names(loop)
        if not any(d.name == name and within(d.node, loop) for d in function.declarations)
    }
    totals = [
        d for d in function.declarations if d.name in carried and d.type == "float" and d.value is not None
    ]
    if len(carried) != 1 or len(totals) != 1 or totals[0].node not in (*body.prologue, *body.statements):
        return None
    total = totals[0]
    if len(total.node.children_by_field_name("declarator")) != 1 or total.extents:
        return None
    adds = [n for n in walk(loop, "expression_statement") if total.name in identifiers(n)]
    if len(adds) != 1 or sum(text_of(n) == total.name for n in walk(loop, "identifier")) != 1:
        return None
    known = definitions(function)
    factors = accumulated_product(adds[0], total.name, {})
    if factors is None or sum(text_of(node) == axis for node in walk(loop, "identifier")) != 1:
        return None
    first, second = factors
    shared, own = (second, first) if axis in identifiers(first) else (first, second)
    reads = accesses(own)
    if (
        axis not in identifiers(own)
        or len(reads) != 1
        or inlined(own, known, frozenset(identifiers(own))) is None
    ):
        return None
    return total, adds[0], shared, own


def _is_multiple(context: Context, extent: str, divisor: str) -> bool:
    """Whether the grid has a whole number of groups of the axis at every shape."""
    try:
        return all(
            evaluate_int(extent, names) % evaluate_int(divisor, names) == 0
            for names in (context.task.names(shape, context.kernel) for shape in context.shapes)
        )
    except (ExpressionError, ZeroDivisionError):
        return False


def _jammed(context: Context, found: Jam, items: int) -> str:
    source, function, axis = context.source, found.function, found.axis.name
    limit = fresh_name(source, f"{axis.upper()}S")
    taken = names_in_scope(source, function)
    first, item, shared = fresh_names(taken, f"first_{axis}", "item", "shared")
    groups = f"(({found.count} + {limit} - 1) / {limit})"
    total = f"{found.total.name}[{item}]"
    each = [
        "#pragma unroll",
        f"for (int {item} = 0; {item} < {limit}; ++{item}) {{",
    ]
    # Beyond the last one, a thread sums for the last one again, and doesn't store.
    own = replace_names(text_of(found.own), {axis: f"min({first} + {item}, {found.count} - 1)"})
    adding = [
        f"const float {shared} = {text_of(found.shared)};",
        *each,
        f"    {total} += {shared} * {own};",
        "}",
    ]
    statement = found.statement
    parent = statement.parent
    lines = (
        adding
        if parent is not None and parent.type == "compound_statement"
        else ["{", *indented(adding), "}"]
    )
    margin = indentation(source, statement)
    end = outputs(source, found, (limit, first, item))
    initial = text_of(found.total.value) if found.total.value is not None else "0.0f"
    declared = [f"float {found.total.name}[{limit}];", *each, f"    {total} = {initial};", "}"]
    z = "blockIdx.z"
    changes = [
        swap(found.axis.node, f"const int {first} = {z} % {groups} * {limit};"),
        swap(found.outer.node, f"const int {found.outer.name} = {z} / {groups};"),
        swap(found.total.node, f"\n{indentation(source, found.total.node)}".join(declared)),
        swap(statement, f"\n{margin}".join(lines)),
        Replacement(
            found.epilogue[0].start_byte,
            found.epilogue[-1].end_byte,
            f"\n{indentation(source, found.epilogue[0])}".join(end),
        ),
    ]
    plan = with_groups(context.plan, found, limit)
    return apply(context, Rewrite(function, plan=plan, defines={limit: items}, more=changes))


def outputs(source: Source, found: Jam, names: tuple[str, str, str]) -> list[str]:
    """The epilogue for each of a thread's sums; `names` are the number of sums, the first of the axis and the sum's."""
    limit, first, item = names
    axis, total = found.axis.name, found.total.name
    lines = replace_names("\n".join(dedented(source, found.epilogue)), {total: f"{total}[{item}]"})
    return [
        "#pragma unroll",
        f"for (int {item} = 0; {item} < {limit}; ++{item}) {{",
        f"    const int {axis} = {first} + {item};",
        f"    if ({axis} < {found.count}) {{",
        *indented(lines.splitlines(), 2),
        "    }",
        "}",
    ]


def with_groups(plan: LaunchPlan, found: Jam, limit: str) -> LaunchPlan:
    """The plan with as many blocks along z as there are groups of `limit` along the axis."""
    groups = f"({found.launch.grid[2]}) // ({found.extent}) * ceil_div({found.extent}, {limit})"
    return with_launch(plan, found.launch, (*found.launch.grid[:2], groups), found.launch.block)


RULES = (
    Rule(
        "jam-grid-axis",
        Category.REGISTER_BLOCKING,
        RELIEVED_BY_JAMMING,
        _propose,
        prior=1.5,
    ),
)
