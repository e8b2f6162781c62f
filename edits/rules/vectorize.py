"""Sixteen bytes per access in strided loops over contiguous elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import ALIGNED, Vector, lanes_for, width_text
from mctskernel.edits.indexing import (
    BUILT_INS,
    always_happens,
    code,
    distinct_arguments,
    global_index_axis,
    is_block_extent,
    replace_names,
)
from mctskernel.edits.rewrite import Rewrite, apply, dedented, each, indented, only_launches
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.along import Along, along, step_along
from mctskernel.edits.rules.vector_elements import factor, for_lane


@dataclass(frozen=True)
class WideLoop:
    """A strided loop that can take several iterations at once."""

    loop: cu.Loop
    lanes: tuple[Along, ...]


@rule(
    Category.VECTORIZATION, 1.2, "dram_bandwidth l1_throughput global_latency instruction_issue integer_pipe"
)
def float4_loops(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        loops = wide_loops(context, launch, function)
        if not loops:
            continue
        arrays = ", ".join(dict.fromkeys(lanes.array for loop in loops for lanes in loop.lanes))
        types = [lanes.type for loop in loops for lanes in loop.lanes]
        width, kind = lanes_for(types), width_text(types)
        yield Proposal(
            f"vectorize {arrays} ({kind}){context.where(function.name)}",
            _widened(context, function, loops),
            rationale=(
                f"Consecutive elements go one to a thread; {width} at once, 16 bytes an access, keep as many bytes "
                "in flight with a fraction of the instructions."
            ),
            expected_effect=f"Up to {width} times fewer loads and stores.",
        )


def wide_loops(context: Context, launch: Launch, function: cu.Function) -> tuple[WideLoop, ...]:
    """The strided loops of a kernel that can be widened together: the same range, in the same statement list."""
    if not distinct_arguments(launch):
        return ()
    known = definitions(function)
    found: list[WideLoop] = []
    for loop in function.loops:
        if not _shares_out(loop, launch, context, known):
            continue
        lanes = _lanes(loop, function, known)
        if lanes:
            found.append(WideLoop(loop, lanes))
    if not found:
        return ()
    first = found[0].loop
    together = [
        f for f in found if _range(f.loop) == _range(first) and f.loop.node.parent == first.node.parent
    ]
    if not _bases_visible(together, function, context):
        return ()
    written = {lanes.array for wide in together for lanes in wide.lanes if lanes.writes}
    for access in function.accesses:
        if access.array in written and not any(cu.within(access.node, f.loop.node) for f in together):
            return ()
    return tuple(together)


def _shares_out(loop: cu.Loop, launch: Launch, context: Context, known: Mapping[str, Node]) -> bool:
    """Whether the threads of a block, or of the grid, take the iterations 0, 1, 2, ... in turn."""
    if loop.comparison != "<":
        return False
    macros = context.kernel.macros
    start = polynomial(loop.start, known)
    step = polynomial(cu.field(cu.field(loop.node, "update"), "right"), known)
    if str(start) == "threadIdx.x":
        return is_block_extent(step, "x", launch.block[0], macros)
    if global_index_axis(start, launch, macros) != "x":
        return False
    width = step.coefficient("gridDim.x")
    if width is None or step.without("gridDim.x").terms:
        return False
    return is_block_extent(width, "x", launch.block[0], macros)


def _lanes(loop: cu.Loop, function: cu.Function, known: Mapping[str, Node]) -> tuple[Along, ...]:
    """The vectors that the loop can read and write; none if it can't be widened."""
    if not _plain(loop):
        return ()
    local = {d.name for d in function.declarations if cu.within(d.node, loop.body)}
    groups: dict[tuple[str, str], list[cu.Access]] = {}
    for access in cu.accesses(loop.body):
        parameter = function.parameter(access.array)
        if parameter is None:
            if access.writes and access.array not in local and not _is_counted(access.node, function):
                return ()
            continue
        index = step_along(function, access, loop.variable, known)
        if index is not None:
            groups.setdefault((access.array, index), []).append(access)
        elif access.writes:
            return ()
    if not _writes_are_whole(groups, loop):
        return ()
    found = [along(function, group, known, local) for group in groups.values()]
    if not all(any(always_happens(a.node, loop.body) for a in group) for group in groups.values()):
        return ()
    vectors = tuple(each for each in found if each is not None)
    return vectors if len(vectors) == len(found) else ()


def _plain(loop: cu.Loop) -> bool:
    """Whether iterations neither end early nor talk to other threads, but for counting."""
    leaves = cu.has(loop.body, "continue_statement", "break_statement", "return_statement")
    return not leaves and not any(
        "sync" in cu.text_of(call) or (cu.text_of(call).startswith("atomic") and not _counts(call))
        for call in cu.calls(loop.body)
    )


def _counts(call: Node) -> bool:
    """Whether a call is a whole statement `atomicAdd(...)`, whose order among others doesn't matter."""
    return cu.text_of(call.children[0]) == "atomicAdd" and (
        call.parent is not None and call.parent.type == "expression_statement"
    )


def _is_counted(node: Node, function: cu.Function) -> bool:
    """Whether an element of a shared array of whole numbers is only added to, by atomics."""
    call = cu.enclosing(node, "call_expression")
    if call is None or not cu.squeezed(cu.field(call, "arguments")).startswith(f"(&{cu.squeezed(node)},"):
        return False
    types = {d.name: d.type for d in function.declarations if d.shared}
    counters = {"int", "unsigned", "unsigned int"}
    return _counts(call) and types.get(cu.text_of(cu.field(node, "argument"))) in counters


def _writes_are_whole(groups: Mapping[tuple[str, str], Sequence[cu.Access]], loop: cu.Loop) -> bool:
    """Whether what is written is written in every iteration, and touched at no other index."""
    for (array, _), group in groups.items():
        if any(access.writes for access in group):
            everywhere = sum(access.array == array for access in cu.accesses(loop.body))
            if everywhere != len(group) or not _unconditional(group, loop):
                return False
    return True


def _unconditional(group: Sequence[cu.Access], loop: cu.Loop) -> bool:
    """Whether every write happens in each iteration, so that a whole vector is written."""
    certain = [node for node in code(loop.body) if node.type == "expression_statement"]
    return all(any(cu.within(each.node, node) for node in certain) for each in group if each.writes)


def _range(loop: cu.Loop) -> tuple[str, str, str]:
    return cu.text_of(loop.start), cu.text_of(loop.bound), loop.step


def _bases_visible(loops: Sequence[WideLoop], function: cu.Function, context: Context) -> bool:
    """Whether the index of each vector's first element can be written before the first of the loops."""
    first = loops[0].loop.node
    visible = {p.name for p in function.parameters} | context.source.macro_names
    visible |= {d.name for d in function.declarations if d.node.end_byte <= first.start_byte}
    return all(
        {n for n in cu.identifiers(cu.parse(f"{lanes.index};").root) if "." not in n} - BUILT_INS
        <= visible | {wide.loop.variable}
        for wide in loops
        for lanes in wide.lanes
    )


def _widened(context: Context, function: cu.Function, loops: Sequence[WideLoop]) -> str:
    aligned = cu.fresh_name(context.source, "is_aligned")
    first = loops[0].loop
    width = lanes_for(lanes.type for wide in loops for lanes in wide.lanes)
    taken = cu.names_in_scope(context.source, function)
    end, lane, wide_name = cu.fresh_names(taken, f"wide_{_word(first)}", "lane", "wide")
    bases = dict.fromkeys(
        f"{aligned}(&{lanes.array}[{_at_zero(lanes.index, wide.loop.variable)}])"
        for wide in loops
        for lanes in wide.lanes
    )
    bound = cu.text_of(first.bound)
    margin = cu.indentation(context.source, first.node)
    together = f" &&\n{margin}    ".join(bases)
    declaration = (
        f"const bool {wide_name} = {together};\n{margin}"
        f"const int {end} = {wide_name} ? {factor(bound)} / {width} * {width} : 0;\n{margin}"
    )
    anchor = first.pragma if first.pragma is not None else first.node
    changes = [cu.insert_before(anchor, declaration)]
    for wide in loops:
        node = wide.loop.node
        text = f"\n{cu.indentation(context.source, node)}".join(
            _wide_and_rest(context, function, wide, (end, lane, width))
        )
        changes.append(cu.Replacement(node.start_byte, node.end_byte, text))
    rewrite = Rewrite(function, functions=[ALIGNED.format(name=aligned)], more=changes)
    return apply(context, rewrite)


def _wide_and_rest(
    context: Context, function: cu.Function, wide: WideLoop, names: tuple[str, str, int]
) -> list[str]:
    loop = wide.loop
    end, lane, width = names
    taken = cu.names_in_scope(context.source, function)
    loads, stores = list[str](), list[str]()
    changes: list[cu.Replacement] = []
    for number, lanes in enumerate(wide.lanes):
        same = [other.array for other in wide.lanes[:number]].count(lanes.array)
        (name,) = cu.fresh_names(taken, f"{lanes.array}_lanes{same + 1 if same else ''}")
        vector = Vector(lanes.type, width, name, f"&{lanes.array}[{lanes.index}]")
        loads.append(vector.declaration)
        if lanes.reads:
            loads += vector.loads
        if lanes.writes:
            stores += vector.stores
        changes += [cu.swap(node, f"{name}[{lane}]") for node in lanes.nodes]
    body = for_lane(context, loop.variable, lane, code(loop.body), changes)
    start, step = factor(cu.text_of(loop.start)), factor(loop.step)
    header = f"for ({loop.type} {loop.variable} = "
    rest_start = f"{end} + {cu.text_of(loop.start)}"
    return [
        f"{header}{width} * {start}; {loop.variable} < {end}; {loop.variable} += {width} * {step}) {{",
        *indented([*loads, *each(lane, str(width), *body), *stores]),
        "}",
        f"{header}{rest_start}; {loop.variable} < {cu.text_of(loop.bound)}; {loop.variable} += {loop.step}) {{",
        *indented(dedented(context.source, code(loop.body))),
        "}",
    ]


def _at_zero(index: str, variable: str) -> str:
    text = replace_names(index, {variable: "0"})
    return text.removesuffix(" + 0").removeprefix("0 + ")


def _word(loop: cu.Loop) -> str:
    bound = cu.text_of(loop.bound)
    return bound if bound.isidentifier() else "end"
