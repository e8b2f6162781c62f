"""Changes of a word or a line: hints to the compiler and the caches, fast math, unrolled loops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tree_sitter import Node

from mctskernel.core.edit import Category, Factor
from mctskernel.edits import syntax as cu
from mctskernel.edits.rewrite import Rewrite, apply
from mctskernel.edits.rule import Context, Proposal, rule


@rule(Category.COMPILER_HINTS, 0.6, "l1_throughput global_latency instruction_issue")
def pointer_qualifiers(context: Context) -> Iterator[Proposal]:
    """`__restrict__` on all pointers of a kernel, and `const` on those that it only reads."""
    for function in context.functions:
        changes: list[cu.Replacement] = []
        restricted = _distinct_buffers(context, function.name)
        for parameter in function.parameters:
            changes += _qualified(context, function, parameter, restrict=restricted)
        if not changes:
            continue
        added = ", ".join(sorted({change.text.strip() for change in changes}))
        yield Proposal(
            f"add {added} to the pointers{context.where(function.name)}",
            cu.replace(context.source, changes),
            rationale="Without __restrict__ and const the compiler keeps loads in "
            "order after stores and may not use the read-only path.",
            expected_effect="Loads issued earlier and together.",
        )


def _distinct_buffers(context: Context, name: str) -> bool:
    """Whether no launch passes the same buffer twice."""
    for launch in context.plan.launches:
        buffers = [argument for argument in launch.args if context.is_buffer(argument)]
        if launch.kernel == name and len(set(buffers)) < len(buffers):
            return False
    return True


def _qualified(
    context: Context, function: cu.Function, parameter: cu.Parameter, *, restrict: bool
) -> list[cu.Replacement]:
    declarator = cu.field(parameter.node, "declarator")
    name = cu.field(declarator, "declarator")
    # Pointers to data, not to another pointer or to an array.
    if declarator.type != "pointer_declarator" or name.type != "identifier":
        return []
    changes = []
    if restrict and not parameter.restrict:
        gap = "" if context.source.text.encode()[: name.start_byte].endswith((b" ", b"*")) else " "
        changes.append(cu.insert_before(name, f"{gap}__restrict__ "))
    if not parameter.const and _only_read(context, function, parameter.name):
        changes.append(cu.insert_before(parameter.node, "const "))
    return changes


def _only_read(context: Context, function: cu.Function, name: str) -> bool:
    """Whether every use of a pointer is an element that is read, and no macro may hide another."""
    if name in context.source.macro_words:
        return False
    read = [
        access.node for access in cu.accesses(function.body) if access.array == name and not access.writes
    ]
    uses = [node for node in cu.walk(function.body, "identifier") if cu.text_of(node) == name]
    shadowed = any(declaration.name == name for declaration in function.declarations)
    if shadowed or not uses:
        return False
    return all(
        any(cu.within(use, node) and use.start_byte == node.start_byte for node in read) for use in uses
    )


TYPES = frozenset(
    {"float", "int", "unsigned", "unsigned int", "float4", "int4", "uint4", "float2", "int2", "uint2"}
)
"""Types that `__stcs` takes without a further header."""
_VECTOR = re.compile(r"\*\s*reinterpret_cast<\s*(?:const\s+)?(\w+)\s*\*\s*>\((&(\w+)\[[^\[\]]*\])\)")


@rule(Category.COMPILER_HINTS, 0.4, "dram_bandwidth l2_bandwidth l1_throughput")
def streaming_hints(context: Context) -> Iterator[Proposal]:
    """`__stcs` on stores to what a kernel only writes."""
    for function in context.functions:
        stores = list(_stores(function))
        if not stores:
            continue
        yield Proposal(
            f"streaming stores (__stcs){context.where(function.name)}",
            cu.replace(context.source, stores),
            rationale=(
                "What is written and not read again pushes other data out of the caches; with a streaming hint it "
                "is the first to go."
            ),
            expected_effect="More hits for what is read again, such as the weights of every row.",
        )


def _stores(function: cu.Function) -> Iterator[cu.Replacement]:
    """`__stcs` for plain assignments to elements or vectors of parameters that are nowhere read."""
    for assignment in cu.walk(function.body, "assignment_expression"):
        left, operator, right = cu.operands(assignment) or (assignment, "", assignment)
        parent = assignment.parent
        if operator != "=":
            continue
        target = _target(function, left)
        if target is None or parent is None or parent.type != "expression_statement":
            continue
        address, array = target
        uses = [access for access in function.accesses if access.array == array]
        named = cu.used_within(function.body, array, (access.node for access in uses))
        if named and all(access.writes for access in uses):
            yield cu.swap(assignment, f"__stcs({address}, {cu.text_of(right)})")


def _target(function: cu.Function, node: Node) -> tuple[str, str] | None:
    """The address and the array of an element or vector of a parameter, if hints exist for its type."""
    match = _VECTOR.fullmatch(cu.text_of(node))
    if match is not None:
        pointer = cu.text_of(node).removeprefix("*").strip()
        parameter = function.parameter(match[3])
        known = match[1] in TYPES and parameter is not None and parameter.pointer
        return (pointer, match[3]) if known else None
    found = cu.accesses(node)
    if len(found) < 1 or found[0].node != node or len(found[0].indices) != 1:
        return None
    parameter = function.parameter(found[0].array)
    if parameter is None or not parameter.pointer or parameter.type not in TYPES:
        return None
    return f"&{cu.text_of(node)}", parameter.name


APPROXIMATE: Mapping[str, str] = {
    "expf": "__expf",
    "exp10f": "__exp10f",
    "logf": "__logf",
    "log2f": "__log2f",
    "log10f": "__log10f",
    "sinf": "__sinf",
    "cosf": "__cosf",
    "powf": "__powf",
    "tanhf": "__tanhf",
}
"""Functions of the library and the intrinsics that approximate them."""


TANH = """
// The hyperbolic tangent to within 2^-22 of 1.
__device__ float {name}(float x) {{
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x));
}}
"""


@rule(Category.PRECISION, 0.8, "instruction_issue fp32_pipe integer_pipe special_functions")
def fast_math(context: Context) -> Iterator[Proposal]:
    """All calls of the library's functions become intrinsics, alone and together with the divisions."""
    source = context.source
    functions = [function for function in source.functions if function.clean]
    called = {name for function in functions for call in cu.calls(function.body) for name in [_name(call)]}
    names = sorted(name for name in called if name in APPROXIMATE)
    swaps = [
        cu.swap(call.children[0], APPROXIMATE[_name(call)])
        for function in functions
        for call in cu.calls(function.body, *names)
        if names
    ]
    if "tanhf" in names:
        yield _by_exponential(context, functions)
    quotients = [change for function in functions for change in _divisions(function)]
    listed = " and ".join(names)
    if swaps:
        yield _edit(f"intrinsics for {listed}", cu.replace(source, swaps), 1.0)
    if quotients:
        yield _edit("approximate division (__fdividef)", cu.replace(source, quotients), 0.7)
    if swaps and quotients:
        both = cu.replace(source, [*swaps, *quotients])
        yield _edit(f"fast-math intrinsics for {listed}, approximate division", both, 1.1)


def _by_exponential(context: Context, functions: Sequence[cu.Function]) -> Proposal:
    """`tanhf` by way of `__expf`: older compilers have no `__tanhf`, and its 2^-11 may be too much."""
    name = cu.fresh_name(context.source, "tanh_by_exp")
    calling = [f for f in functions if cu.calls(f.body, "tanhf")]
    swaps = [cu.swap(call.children[0], name) for f in calling for call in cu.calls(f.body, "tanhf")]
    text = apply(context, Rewrite(calling[0], functions=[TANH.format(name=name)], more=swaps))
    return _edit("tanhf by way of __expf", text, 0.9)


def _edit(title: str, text: str, prior: float) -> Proposal:
    return Proposal(
        title,
        text,
        rationale=(
            "The library's functions and the division spend ten and more instructions on the last bits and on "
            "extreme arguments; the hardware's approximations take one to three."
        ),
        expected_effect="Fewer instructions for each element, with errors that the tolerance must allow.",
        prior=prior,
    )


def _divisions(function: cu.Function) -> Iterator[cu.Replacement]:
    """`a / b` of floats as `__fdividef(a, b)`; outermost quotients only, so that no change lies in another."""
    types = {d.name: d.type for d in function.declarations if not d.extents and not d.pointer}
    types |= {p.name: p.type for p in function.parameters if not p.pointer}
    if "double" in types.values():
        return
    done = 0
    for node in cu.walk(function.body, "binary_expression"):
        left, operator, right = cu.operands(node) or (node, "", node)
        if operator != "/":
            continue
        if node.start_byte < done or not (_is_float(left, types) or _is_float(right, types)):
            continue
        done = node.end_byte
        yield cu.insert_before(node, "__fdividef(")
        yield cu.Replacement(left.end_byte, right.start_byte, ", ")
        yield cu.insert_after(node, ")")


def _is_float(node: Node, types: Mapping[str, str]) -> bool:
    node = cu.strip_parentheses(node)
    match node.type:
        case "identifier":
            return types.get(cu.text_of(node)) == "float"
        case "number_literal":
            return cu.text_of(node).endswith("f") and "." in cu.text_of(node)
        case "call_expression":
            return _name(node) in {*APPROXIMATE, *APPROXIMATE.values(), "sqrtf", "rsqrtf", "fmaxf", "fminf"}
        case "binary_expression":
            return any(_is_float(cu.field(node, side), types) for side in ("left", "right"))
    return False


def _name(call: Node) -> str:
    return cu.text_of(call.children[0])


FACTORS = (4, 8, 2, 16)
FULLY = 1 << 20  # stands for all turns of a loop: more than any number of them that is chosen
LARGEST_BODY = 2000  # bytes of a loop's text beyond which unrolling rather harms the instruction cache


@rule(Category.UNROLLING, 0.4, "global_latency instruction_issue integer_pipe divergence")
def unroll(context: Context) -> Iterator[Proposal]:
    """`#pragma unroll` with several factors on every loop, fully where the trip count is a constant."""
    for function in context.functions:
        for number, loop in enumerate(cu.walk(function.body, "for_statement"), 1):
            if loop.parent is None or loop.parent.type != "compound_statement":
                continue
            if loop.end_byte - loop.start_byte > LARGEST_BODY or _keeps_registers(context, function, loop):
                continue
            yield from _variants(context, function, loop, number)


def _keeps_registers(context: Context, function: cu.Function, loop: Node) -> bool:
    """Whether a loop is unrolled fully so that the arrays of a thread stay in registers."""
    pragma = cu.unroll_pragma(loop)
    if pragma is None or cu.text_of(pragma).split()[2:] or not _has_constant_trip_count(context, loop):
        return False
    own = {d.name for d in function.declarations if d.extents and not d.shared}
    return any(access.array in own for access in cu.accesses(loop))


def _variants(context: Context, function: cu.Function, loop: Node, number: int) -> Iterator[Proposal]:
    innermost = sum(1 for _ in cu.walk(loop, "for_statement")) == 1
    found = cu.as_loop(loop)
    over = f" over {found.variable}" if found is not None else ""
    where = f"loop {number}{over}{context.where(function.name)}"
    synchronises = bool(cu.calls(loop, "__syncthreads"))
    scale = (1.0 if innermost else 0.5) * (0.5 if synchronises else 1.0)
    variants = [(f"unroll {where} by {factor}", factor, 1 / (1 + factor / 16)) for factor in FACTORS]
    if _has_constant_trip_count(context, loop):
        variants.insert(0, (f"fully unroll {where}", FULLY, 1.0))
    for title, factor, prior in (*variants, (f"don't unroll {where}", 1, 0.3)):
        decided = Factor(f"unroll {where}", factor)
        yield _edit_of_unrolling(context, loop, title, decided, scale * prior)


def _edit_of_unrolling(context: Context, loop: Node, title: str, decided: Factor, prior: float) -> Proposal:
    text = "#pragma unroll" if decided.level == FULLY else f"#pragma unroll {decided.level:g}"
    indent, pragma = cu.indentation(context.source, loop), cu.unroll_pragma(loop)
    if pragma is not None:
        change = cu.Replacement(pragma.start_byte, pragma.end_byte, f"{text}\n")
    elif not context.source.text.encode()[: loop.start_byte].rpartition(b"\n")[2].strip():
        change = cu.insert_before(loop, f"{text}\n{indent}")
    else:
        change = cu.insert_before(loop, f"\n{indent}{text}\n{indent}")
    return Proposal(
        title,
        cu.replace(context.source, [change]),
        rationale="The loads of unrolled iterations are issued together, and the loop's own instructions "
        "are paid once for all of them.",
        expected_effect="More loads in flight, fewer instructions, more registers.",
        prior=prior,
        factors=(decided,),
    )


def _has_constant_trip_count(context: Context, loop: Node) -> bool:
    parts = [cu.field(loop, name) for name in ("initializer", "condition", "update")]
    if parts[0].type != "declaration" or loop in parts:
        return False
    variable = cu.text_of(cu.field(cu.field(parts[0], "declarator"), "declarator"))
    return all(cu.identifiers(part) <= {variable, *context.kernel.macros} for part in parts)
