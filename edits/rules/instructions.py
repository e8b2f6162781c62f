"""Fewer instructions: fast-math intrinsics, approximate division, unrolled loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.edits import syntax as cu
from mctskernel.edits.rewrite import Rewrite, apply
from mctskernel.edits.rule import Context, Proposal, rule

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
    """Whether an expression certainly is a float."""
    node = cu.strip_parentheses(node)
    match node.type:
        case "identifier":
            return types.get(cu.text_of(node)) == "float"
        case "number_literal":
            return cu.text_of(node).endswith("f") and "." in cu.text_of(node)
        case "call_expression":
            return _name(node) in {*APPROXIMATE, *APPROXIMATE.values(), "sqrtf", "rsqrtf", "fmaxf", "fminf"}
        case "binary_expression":
            sides = [node.child_by_field_name(side) for side in ("left", "right")]
            return any(side is not None and _is_float(side, types) for side in sides)
    return False


def _name(call: Node) -> str:
    return cu.text_of(call.children[0])


FACTORS = (4, 8, 2, 16)
LARGEST_BODY = 2000
"""Bytes of a loop's text beyond which unrolling rather harms the instruction cache."""


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
    if _has_constant_trip_count(context, loop):
        yield _edit_of_unrolling(context, loop, "#pragma unroll", f"fully unroll {where}", scale)
    for factor in FACTORS:
        title = f"unroll {where} by {factor}"
        yield _edit_of_unrolling(context, loop, f"#pragma unroll {factor}", title, scale / (1 + factor / 16))
    yield _edit_of_unrolling(context, loop, "#pragma unroll 1", f"don't unroll {where}", scale * 0.3)


def _edit_of_unrolling(context: Context, loop: Node, text: str, title: str, prior: float) -> Proposal:
    indent, pragma = cu.indentation(context.source, loop), cu.unroll_pragma(loop)
    if pragma is not None:
        change = cu.Replacement(pragma.start_byte, pragma.end_byte, f"{text}\n")
    elif _starts_line(context, loop):
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
    )


def _starts_line(context: Context, node: Node) -> bool:
    line = context.source.text.encode()[: node.start_byte].rpartition(b"\n")[2]
    return not line.strip()


def _has_constant_trip_count(context: Context, loop: Node) -> bool:
    initializer = loop.child_by_field_name("initializer")
    parts = [initializer, loop.child_by_field_name("condition"), loop.child_by_field_name("update")]
    if initializer is None or initializer.type != "declaration" or None in parts:
        return False
    declarator = initializer.child_by_field_name("declarator")
    inner = declarator.child_by_field_name("declarator") if declarator is not None else None
    variable = cu.text_of(inner) if inner is not None else ""
    constants = {variable, *context.kernel.macros}
    return all(cu.identifiers(part) <= constants for part in parts if part is not None)
