"""Rows kept in registers: loops that read the same elements again read each once, and keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.expression import ExpressionError, evaluate_int
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import ELEMENT_BYTES, VECTOR_BYTES
from mctskernel.edits.indexing import (
    BUILT_INS,
    always_happens,
    code,
    distinct_arguments,
    inlined,
    plan_expression,
)
from mctskernel.edits.rewrite import Rewrite, apply, changed, indented, only_launches
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.tuning import block_macros

FEWEST_THREADS, MOST_THREADS = 64, 1024
MOST_REGISTERS = 64  # 32-bit registers a thread that a row may take
REGISTER_BYTES = 4
_VECTOR_LOAD = re.compile(r"\*\s*reinterpret_cast<\s*const\s+(\w+)\s*\*\s*>\(&(\w+)\[[^\[\]]*\]\)")


@dataclass(frozen=True)
class Load:
    """One element or vector read from a buffer; equal `key`s are equal values at equal loop variables."""

    buffer: str
    type: str
    bytes: int
    key: str
    node: Node


@dataclass(frozen=True)
class Passes:
    """Loops of one range that follow each other and read `kept`, by its key, more than once."""

    launch: Launch
    function: cu.Function
    loops: tuple[cu.Loop, ...]
    loads: Mapping[int, tuple[Load, ...]]
    kept: tuple[Load, ...]


@rule(Category.ALGORITHM, 1.5, "dram_bandwidth l2_bandwidth l1_throughput global_latency")
def keep_row(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        found = _passes(context, launch, function)
        if found is None:
            continue
        buffers = ", ".join(dict.fromkeys(load.buffer for load in found.kept))
        for threads, items in _sizes(context, found):
            registers = items * sum(load.bytes for load in found.kept) // REGISTER_BYTES
            if not 1 <= registers <= MOST_REGISTERS:
                continue
            with_threads = f", {threads.value} threads per block" if threads.value != threads.before else ""
            yield Proposal(
                f"keep {buffers} in {registers} registers per thread{with_threads}{context.where(function.name)}",
                _kept(context, found, items, threads),
                rationale=(
                    f"{len(found.loops)} loops read the same elements one after another; each thread can read its "
                    "share once, all loads in flight together, and keep it in registers."
                ),
                expected_effect=f"{buffers} read once instead of {len(found.loops)} times.",
                prior=1.0 if registers <= MOST_REGISTERS // 2 else 0.5,
            )


def _passes(context: Context, launch: Launch, function: cu.Function) -> Passes | None:
    """The first loops of the kernel that read something again."""
    if not distinct_arguments(launch):
        return None
    known = definitions(function)
    strided = [loop for loop in function.loops if _is_strided(loop, function, known)]
    for first in strided:
        beside = (loop for loop in strided if loop.node.parent == first.node.parent)
        loops = tuple(
            loop
            for loop in beside
            if _range(loop) == _range(first) and loop.node.start_byte >= first.node.start_byte
        )
        if len(loops) < 2 or _leaves_between(loops):
            continue
        loads = {loop.node.start_byte: tuple(_loads(function, loop, known)) for loop in loops}
        kept: dict[str, Load] = {}
        for loop in loops:
            for load in loads[loop.node.start_byte]:
                readers = [
                    other
                    for other in loops
                    if any(read.key == load.key for read in loads[other.node.start_byte])
                ]
                if len(readers) > 1 and always_happens(load.node, loop.body):
                    kept.setdefault(load.key, load)
        visible = {key: load for key, load in kept.items() if _text(context, function, loops, load, known)}
        if visible:
            return Passes(launch, function, loops, loads, tuple(visible.values()))
    return None


def _is_strided(loop: cu.Loop, function: cu.Function, known: Mapping[str, Node]) -> bool:
    """Whether a thread takes elements in strides that no statement changes on the way."""
    if loop.comparison != "<" or cu.has(
        loop.body, "continue_statement", "break_statement", "return_statement", "goto_statement"
    ):
        return False
    start = polynomial(loop.start, known)
    along = start.coefficient("threadIdx.x")
    if along is None or along.constant is None or start.names != {"threadIdx.x"}:
        return False
    assigned = cu.assigned_names(function.body).keys()
    update = cu.identifiers(cu.field(loop.node, "update")) - {loop.variable}
    names = cu.identifiers(loop.bound) | update
    return not names & assigned and loop.variable not in names


def _range(loop: cu.Loop) -> tuple[str, ...]:
    return loop.variable, loop.type, cu.text_of(loop.start), cu.text_of(loop.bound), loop.step


def _leaves_between(loops: tuple[cu.Loop, ...]) -> bool:
    """Whether a thread may leave before the last of the loops."""
    parent = loops[0].node.parent
    between = [
        node
        for node in (code(parent) if parent is not None else [])
        if loops[0].node.start_byte <= node.start_byte < loops[-1].node.start_byte
    ]
    return any(cu.has(node, "return_statement", "goto_statement") for node in between)


def _loads(function: cu.Function, loop: cu.Loop, known: Mapping[str, Node]) -> Iterator[Load]:
    """What a loop reads of buffers that the kernel doesn't write."""
    for node in cu.walk(loop.body, "pointer_expression"):
        match = _VECTOR_LOAD.fullmatch(cu.text_of(node))
        subscript = next(cu.walk(node, "subscript_expression"), None)
        if match is not None and subscript is not None and _is_constant(function, match[2]):
            index = polynomial(subscript.named_children[-1].named_children[0], known)
            yield Load(match[2], match[1], VECTOR_BYTES, f"{match[2]} {match[1]} {index}", node)
    for access in cu.accesses(loop.body):
        parameter = function.parameter(access.array)
        if parameter is None or access.writes or len(access.indices) != 1:
            continue
        if parameter.type in ELEMENT_BYTES and _is_constant(function, access.array):
            index = polynomial(access.indices[0], known)
            size = ELEMENT_BYTES[parameter.type]
            yield Load(access.array, parameter.type, size, f"{access.array} {index}", access.node)


def _is_constant(function: cu.Function, name: str) -> bool:
    """Whether a pointer parameter's buffer is only read, element by element or as constant vectors."""
    parameter = function.parameter(name)
    if parameter is None or not parameter.pointer:
        return False
    reads = [a.node for a in function.accesses if a.array == name and not a.writes]
    reads += [
        node
        for node in cu.walk(function.body, "call_expression")
        if re.fullmatch(rf"\w*aligned\w*\(&{name}\[[^\[\]]*\]\)", cu.text_of(node))
    ]
    reads += [
        n for n in cu.walk(function.body, "pointer_expression") if _VECTOR_LOAD.fullmatch(cu.text_of(n))
    ]
    return cu.used_within(function.body, name, reads)


def _text(
    context: Context, function: cu.Function, loops: tuple[cu.Loop, ...], load: Load, known: Mapping[str, Node]
) -> str | None:
    """A load in terms of the loop's variable and of what is known before the first loop; None if that can't be."""
    first = loops[0]
    visible = {p.name for p in function.parameters} | context.source.macro_names | {first.variable}
    visible |= {d.name for d in function.declarations if d.node.end_byte <= first.node.start_byte}
    visible |= BUILT_INS | {load.type, "reinterpret_cast"}
    inside = [d.name for d in function.declarations if any(cu.within(d.node, loop.body) for loop in loops)]
    assigned = cu.assigned_names(function.body).keys() - {first.variable}
    names = {name for name in visible if name not in inside and name not in assigned}
    stable = {name: value for name, value in known.items() if name not in names}
    return inlined(load.node, stable, frozenset(names))


@dataclass(frozen=True)
class Threads:
    """The size of a block along x: the macro that names it, if it may change, its value now and then."""

    macro: str | None
    before: int
    value: int


def _sizes(context: Context, found: Passes) -> Iterator[tuple[Threads, int]]:
    """Sizes of a block, the present one first, and how much of the longest row a thread then keeps."""
    launch, loop = found.launch, found.loops[0]
    macros = context.kernel.macros
    name = str(launch.block[0])
    before = context.constant(name)
    if before is None:
        return
    free = {macro.name for macro in block_macros(context)} if len(launch.block) == 1 else set()
    others = [1024, 512, 256, 128, 64] if name in free else []
    for threads in dict.fromkeys([before, *others]):
        length = _most_iterations(
            context, found, loop, {**macros, name: threads} if name in macros else macros
        )
        if length is not None and FEWEST_THREADS // 2 <= threads <= MOST_THREADS:
            yield Threads(name if name in free else None, before, threads), length


def _most_iterations(context: Context, found: Passes, loop: cu.Loop, macros: Mapping[str, int]) -> int | None:
    """How often the longest loop of the shapes that are timed goes round."""
    bound: Node = loop.bound
    known = definitions(found.function)
    if bound.type == "identifier" and cu.text_of(bound) in known:
        value = known[cu.text_of(bound)]
        bound = cu.field(value, "consequence") if value.type == "conditional_expression" else value
    extent = plan_expression(bound, found.function, found.launch, context.source)
    if extent is None:
        return None
    step = loop.step.replace("blockDim.x", f"({found.launch.block[0]})")
    counts = []
    try:
        for shape in context.task.search_shapes:
            names = {**context.task.names(shape, context.kernel), **macros}
            counts.append(-(-evaluate_int(extent, names) // evaluate_int(step, names)))
    except (ExpressionError, ZeroDivisionError):
        return None
    return max(counts)


def _kept(context: Context, found: Passes, items: int, threads: Threads) -> str:
    source, function, first = context.source, found.function, found.loops[0]
    limit = cu.fresh_name(source, "ROW_ITEMS")
    known = definitions(function)
    wanted = [f"{load.buffer}_kept" for load in found.kept]
    item, *names = cu.fresh_names(cu.names_in_scope(source, function), "item", *wanted)
    step = f"({first.step})" if not first.step.isidentifier() else first.step
    header = [
        "#pragma unroll",
        f"for (int {item} = 0; {item} < {limit}; ++{item}) {{",
        f"    const {first.type} {first.variable} = {cu.text_of(first.start)} + {item} * {step};",
        f"    if ({first.variable} < {cu.text_of(first.bound)}) {{",
    ]
    lines = [f"{load.type} {name}[{limit}];" for load, name in zip(found.kept, names, strict=True)]
    fills = [
        f"{name}[{item}] = {_text(context, function, found.loops, load, known)};"
        for load, name in zip(found.kept, names, strict=True)
    ]
    lines += [*header, *indented(fills, 2), "    }", "}"]
    anchor = first.pragma if first.pragma is not None else first.node
    margin = cu.indentation(source, anchor)
    changes = [cu.insert_before(anchor, "".join(f"{line}\n{margin}" for line in lines))]
    by_key = {load.key: name for load, name in zip(found.kept, names, strict=True)}
    for loop in found.loops:
        swaps = [
            cu.swap(load.node, f"{by_key[load.key]}[{item}]")
            for load in found.loads[loop.node.start_byte]
            if load.key in by_key
        ]
        body = [line for node in code(loop.body) for line in _lines(source, node, swaps)]
        rest = [line for node in code(loop.body) for line in _lines(source, node, [])]
        start = f"{cu.text_of(loop.start)} + {limit} * {step}"
        text = [
            *header,
            *indented(body, 2),
            "    }",
            "}",
            f"for ({loop.type} {loop.variable} = {start}; {loop.variable} < {cu.text_of(loop.bound)}; "
            f"{loop.variable} += {loop.step}) {{",
            *indented(rest),
            "}",
        ]
        begin = loop.pragma.start_byte if loop.pragma is not None else loop.node.start_byte
        margin = cu.indentation(source, loop.node)
        changes.append(cu.Replacement(begin, loop.node.end_byte, f"\n{margin}".join(text)))
    defines: dict[str, int | str] = {limit: items}
    text_with_rows = apply(context, Rewrite(function, defines=defines, more=changes))
    return _with_threads(text_with_rows, threads)


def _lines(source: cu.Source, node: Node, changes: Iterable[cu.Replacement]) -> list[str]:
    """The lines of a statement, or of a pragma, with those changes that lie in it."""
    own = [change for change in changes if node.start_byte <= change.start < node.end_byte]
    lines = changed(source, node, own)
    return [line for line in lines if line.strip()] if node.type == "preproc_call" else lines


def _with_threads(text: str, threads: Threads) -> str:
    if threads.macro is None or threads.value == threads.before:
        return text
    source = cu.parse(text)
    (macro,) = [macro for macro in source.integer_macros if macro.name == threads.macro]
    return cu.replace(source, [cu.Replacement(macro.start, macro.end, str(threads.value))])
