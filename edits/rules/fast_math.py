"""Cheaper arithmetic of float32: the hardware's own approximations instead of the library's functions.

Whether a task can bear them is for its tolerance to say: `__expf` is off by a few units in the last place more for
each power of two, `__tanhf` by 2^-11, and `__fdividef` gives 0 for divisors beyond 2^126.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rewrite import Rewrite, apply
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import (
    Function,
    Replacement,
    calls,
    fresh_name,
    insert_after,
    insert_before,
    replace,
    strip_parentheses,
    swap,
    text_of,
    walk,
)

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


def intrinsics(context: Context) -> Iterator[Edit]:
    """All calls of the library's functions become intrinsics, alone and together with the divisions."""
    source = context.source
    functions = [function for function in source.functions if function.clean]
    called = {name for function in functions for call in calls(function.body) for name in [_name(call)]}
    names = sorted(name for name in called if name in APPROXIMATE)
    swaps = [
        swap(call.children[0], APPROXIMATE[_name(call)])
        for function in functions
        for call in calls(function.body, *names)
        if names
    ]
    if "tanhf" in names:
        yield _by_exponential(context, functions)
    quotients = [change for function in functions for change in _divisions(function)]
    listed = " and ".join(names)
    if swaps:
        yield _edit(f"intrinsics for {listed}", replace(source, swaps), 1.0)
    if quotients:
        yield _edit("approximate divisions", replace(source, quotients), 0.7)
    if swaps and quotients:
        both = replace(source, [*swaps, *quotients])
        yield _edit(f"intrinsics for {listed}, and approximate divisions", both, 1.1)


def _by_exponential(context: Context, functions: Sequence[Function]) -> Edit:
    """`tanhf` by way of `__expf`: older compilers have no `__tanhf`, and its 2^-11 may be too much."""
    name = fresh_name(context.source, "tanh_by_exp")
    calling = [f for f in functions if calls(f.body, "tanhf")]
    swaps = [swap(call.children[0], name) for f in calling for call in calls(f.body, "tanhf")]
    text = apply(context, Rewrite(calling[0], functions=[TANH.format(name=name)], more=swaps))
    return _edit("tanhf by way of __expf", text, 0.9)


def _edit(title: str, text: str, prior: float) -> Edit:
    return edit(
        Category.PRECISION,
        title,
        text,
        rationale=(
            "The library's functions and the division spend ten and more instructions on the last bits and on "
            "extreme arguments; the hardware's approximations take one to three."
        ),
        expected_effect="Fewer instructions for each element, with errors that the tolerance must allow.",
        prior=prior,
    )


def _divisions(function: Function) -> Iterator[Replacement]:
    """`a / b` of floats as `__fdividef(a, b)`; outermost quotients only, so that no change lies in another."""
    types = {d.name: d.type for d in function.declarations if not d.extents and not d.pointer}
    types |= {p.name: p.type for p in function.parameters if not p.pointer}
    if "double" in types.values():
        return
    done = 0
    for node in walk(function.body, "binary_expression"):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None or text_of(operator) != "/":
            continue
        if node.start_byte < done or not (_is_float(left, types) or _is_float(right, types)):
            continue
        done = node.end_byte
        yield insert_before(node, "__fdividef(")
        yield Replacement(left.end_byte, right.start_byte, ", ")
        yield insert_after(node, ")")


def _is_float(node: Node, types: Mapping[str, str]) -> bool:
    """Whether an expression certainly is a float."""
    node = strip_parentheses(node)
    match node.type:
        case "identifier":
            return types.get(text_of(node)) == "float"
        case "number_literal":
            return text_of(node).endswith("f") and "." in text_of(node)
        case "call_expression":
            return _name(node) in {*APPROXIMATE, *APPROXIMATE.values(), "sqrtf", "rsqrtf", "fmaxf", "fminf"}
        case "binary_expression":
            sides = [node.child_by_field_name(side) for side in ("left", "right")]
            return any(side is not None and _is_float(side, types) for side in sides)
    return False


def _name(call: Node) -> str:
    return text_of(call.children[0])


RULES = (
    Rule(
        "fast-math",
        Category.PRECISION,
        frozenset(
            {
                Bottleneck.SPECIAL_FUNCTIONS,
                Bottleneck.FP32_PIPE,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.INTEGER_PIPE,
            }
        ),
        intrinsics,
        prior=0.8,
    ),
)
