"""Four neighbouring elements a thread in elementwise kernels without a loop: one float4 access for each array."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.indexing import AXES, guarded, inlined
from mctskernel.edits.rewrite import Rewrite, apply, changed, fresh_names, indented
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.coarsening import MULTIPROCESSORS, CoveredIndex, covered_indices
from mctskernel.edits.rules.vectorize import ALIGNED
from mctskernel.edits.syntax import (
    Access,
    Function,
    Replacement,
    accesses,
    enclosing,
    fresh_name,
    identifiers,
    indentation,
    names_in_scope,
    swap,
    text_of,
    walk,
    within,
)

LANES = 4
_BRANCHES = ("if_statement", "for_statement", "while_statement", "do_statement", "switch_statement")


@dataclass(frozen=True)
class Vector:
    """Accesses of one array at one index, which moves with the thread's; `index` is its text before the body."""

    array: str
    index: str
    reads: bool
    writes: bool
    nodes: tuple[Node, ...]


def _propose(context: Context) -> Iterable[Edit]:
    for found in covered_indices(context):
        launch, function = found.launch, found.function
        if found.axis != "x" or len(set(map(str, launch.args))) != len(launch.args):
            continue
        timed = context.resolved[: len(context.task.search_shapes)]
        fewest = min(plan.launches[context.plan.launches.index(launch)].blocks for plan in timed)
        body = guarded(function)
        if body is None or fewest < LANES * MULTIPROCESSORS or not _is_bound_only(found, body.prologue):
            continue
        vectors = _vectors(found, body.statements)
        if not any(vector.writes for vector in vectors):
            continue
        arrays = " and ".join(dict.fromkeys(vector.array for vector in vectors))
        yield edit(
            Category.VECTORIZATION,
            f"move {arrays} of {function.name} as float4, four elements a thread",
            _widened(context, found, body.statements, vectors),
            rationale=(
                "Consecutive threads touch consecutive elements; four of them in one thread take one 16-byte access "
                "each way and share the arithmetic on indices."
            ),
            expected_effect="4 times fewer loads and stores, and 4 times the bytes in flight for each warp.",
        )


def _is_bound_only(found: CoveredIndex, prologue: Sequence[Node]) -> bool:
    """Whether nothing before the guarded statements depends on the index but the guard."""
    name = found.index.name
    return not any(node != found.index.node and name in identifiers(node) for node in prologue)


def _vectors(found: CoveredIndex, statements: Sequence[Node]) -> tuple[Vector, ...]:
    """The float4 accesses of the body; none if an access would be neither whole nor independent of the lane."""
    function, index = found.function, found.index.name
    known = {name: value for name, value in definitions(function).items() if name != index}
    groups: dict[tuple[str, str], list[Access]] = {}
    for access in (access for node in statements for access in accesses(node)):
        parameter = function.parameter(access.array)
        if parameter is None or not parameter.pointer or len(access.indices) != 1:
            return ()
        value = polynomial(access.indices[0], known)
        step = value.coefficient(index)
        if step is not None and step.constant == 1 and parameter.type == "float":
            groups.setdefault((access.array, str(value)), []).append(access)
        elif access.writes or (step is not None and step.terms):
            return ()
    local = {d.name for d in function.declarations if any(within(d.node, node) for node in statements)}
    keep = frozenset(identifiers(function.node) - local)
    vectors = []
    for (array, _), group in groups.items():
        text = inlined(group[0].indices[0], {n: v for n, v in known.items() if n in local}, keep)
        if text is None or not any(_always_happens(access.node, statements) for access in group):
            return ()
        writes = [access for access in group if access.writes]
        if writes and not _is_whole(function, group, writes, statements):
            return ()
        reads = any(access.reads for access in group)
        vectors.append(
            Vector(array, _bare(text), reads, bool(writes), tuple(access.node for access in group))
        )
    return tuple(vectors)


def _is_whole(
    function: Function, group: Sequence[Access], writes: Sequence[Access], statements: Sequence[Node]
) -> bool:
    """Whether an array is written at each lane's index, and touched nowhere else."""
    everywhere = sum(access.array == group[0].array for access in function.accesses)
    return everywhere == len(group) and any(_always_happens(access.node, statements) for access in writes)


def _always_happens(node: Node, statements: Sequence[Node]) -> bool:
    """Whether nothing decides at run time if an access takes place."""
    if enclosing(node, *_BRANCHES) not in {None, enclosing(statements[0], *_BRANCHES)}:
        return False
    parent = node.parent
    while parent is not None and not parent.type.endswith("statement"):
        operator = parent.child_by_field_name("operator")
        if parent.type in {"conditional_expression", "lambda_expression"}:
            return False
        if operator is not None and text_of(operator) in {"&&", "||"}:
            return False
        parent = parent.parent
    return True


def _widened(
    context: Context, found: CoveredIndex, statements: Sequence[Node], vectors: Sequence[Vector]
) -> str:
    source, function, index = context.source, found.function, found.index.name
    aligned = fresh_name(source, "is_aligned")
    names = [f"{vector.array}_lanes" for vector in vectors]
    lane, *names = fresh_names(names_in_scope(source, function), "lane", *names)
    loads, stores = [], []
    moved: dict[int, Replacement] = {}
    for vector, name in zip(vectors, names, strict=True):
        at = f"&{vector.array}[{vector.index}]"
        loads.append(f"alignas(16) float {name}[{LANES}];")
        if vector.reads:
            loads.append(f"*reinterpret_cast<float4*>({name}) = *reinterpret_cast<const float4*>({at});")
        if vector.writes:
            stores.append(f"*reinterpret_cast<float4*>({at}) = *reinterpret_cast<const float4*>({name});")
        moved |= {node.start_byte: swap(node, f"{name}[{lane}]") for node in vector.nodes}
    left = f"{_factor(text_of(found.bound))} - {index}"
    whole = " && ".join([f"{left} >= {LANES}", *(f"{aligned}(&{v.array}[{v.index}])" for v in vectors)])
    lines = [
        f"if ({whole}) {{",
        *indented(
            [
                *loads,
                "#pragma unroll",
                f"for (int {lane} = 0; {lane} < {LANES}; ++{lane}) {{",
                *indented(_for_lane(context, index, lane, statements, list(moved.values()))),
                "}",
                *stores,
            ]
        ),
        "} else {",
        f"    for (int {lane} = 0; {lane} < {LANES} && {lane} < {left}; ++{lane}) {{",
        *indented(_for_lane(context, index, lane, statements, []), 2),
        "    }",
        "}",
    ]
    margin = indentation(source, statements[0])
    changes = [
        swap(found.value, f"{LANES} * ({text_of(found.value)})"),
        Replacement(statements[0].start_byte, statements[-1].end_byte, f"\n{margin}".join(lines)),
    ]
    extents = list(found.launch.grid)
    extents[AXES.index("x")] = f"ceil_div({found.count}, {found.planned_block} * {LANES})"
    launch = dataclasses.replace(found.launch, grid=tuple(extents))
    launches = tuple(launch if entry is found.launch else entry for entry in context.plan.launches)
    plan = dataclasses.replace(context.plan, launches=launches)
    return apply(
        context,
        Rewrite(function, plan=plan, functions=[ALIGNED.format(name=aligned)], more=changes),
    )


def _for_lane(
    context: Context, index: str, lane: str, statements: Sequence[Node], moved: Sequence[Replacement]
) -> list[str]:
    """The statements for one lane: vector accesses through the lanes, other uses of the index moved by it."""
    lines = []
    for statement in statements:
        changes = [change for change in moved if statement.start_byte <= change.start < statement.end_byte]
        changes += [
            swap(node, f"({index} + {lane})")
            for node in walk(statement, "identifier")
            if text_of(node) == index and not any(c.start <= node.start_byte < c.end for c in changes)
        ]
        moved_index = f"{index} + {lane}"
        lines += [
            line.replace(f"[({moved_index})]", f"[{moved_index}]")
            for line in changed(context.source, statement, changes)
        ]
    return lines


def _bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    inner = text[1:-1]
    depth = 0
    for character in inner:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return text
    return inner if text.startswith("(") and text.endswith(")") else text


def _factor(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


RULES = (
    Rule(
        "float4-elements",
        Category.VECTORIZATION,
        frozenset(
            {
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.INTEGER_PIPE,
            }
        ),
        _propose,
        prior=1.2,
    ),
)
