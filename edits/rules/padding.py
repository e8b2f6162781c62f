"""One more column in shared arrays whose columns a warp walks down."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import ExpressionError, evaluate_int
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.limits import TYPE_BYTES
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import Access, Declaration, Function, replace, swap, text_of, walk

BANKS = 32
BANK_BYTES = 4


def pad(context: Context) -> Iterator[Edit]:
    """`tile[T][T]` -> `tile[T][T + 1]` where neighbouring threads would meet in one bank."""
    for function in {function.name: function for _, function in context.launched}.values():
        for declaration in function.declarations:
            conflict = _conflict(context, function, declaration)
            width = declaration.extents[-1] if declaration.extents else None
            if conflict is None or width is None:
                continue
            yield edit(
                Category.BANK_CONFLICTS,
                f"pad {declaration.name} in {function.name} by one column",
                replace(context.source, [swap(width, f"{text_of(width)} + 1")]),
                rationale=f"Neighbouring threads touch {declaration.name} {conflict} words apart, so up "
                f"to {gcd(conflict, BANKS)} of them meet in one bank; an odd distance spreads them.",
                expected_effect="Shared-memory accesses in one pass instead of several.",
            )


def _conflict(context: Context, function: Function, declaration: Declaration) -> int | None:
    """The distance in words between neighbouring threads' accesses, if one more column would spread them."""
    if not declaration.shared or declaration.extern or len(declaration.extents) != 2:
        return None
    if TYPE_BYTES.get(declaration.type) != BANK_BYTES:
        return None
    width_node = declaration.extents[1]
    try:
        width = evaluate_int(text_of(width_node), context.kernel.macros) if width_node is not None else 0
    except ExpressionError:
        return None
    uses = [access for access in function.accesses if access.array == declaration.name]
    names = [node for node in walk(function.body, "identifier") if text_of(node) == declaration.name]
    if len(names) != len(uses) + 1 or any(len(access.indices) != 2 for access in uses):
        return None
    for access in uses:
        before, after = (_distance(context, function, access, w) for w in (width, width + 1))
        if before and after and gcd(before, BANKS) > gcd(after, BANKS):
            return before
    return None


def _distance(context: Context, function: Function, access: Access, width: int) -> int | None:
    """Words between the accesses of threads that are neighbours in x; None where that isn't a constant."""
    known = definitions(function)
    steps = [polynomial(index, known).coefficient("threadIdx.x") for index in access.indices]
    row, column = (step.at(context.kernel.macros).constant if step is not None else None for step in steps)
    return None if row is None or column is None else abs(row * width + column)


RULES = (
    Rule(
        "pad-shared-arrays",
        Category.BANK_CONFLICTS,
        frozenset({Bottleneck.BANK_CONFLICTS, Bottleneck.SHARED_THROUGHPUT}),
        pad,
        prior=1.0,
    ),
)
