"""Unroll pragmas on loops: they change no result, only what is in flight at once."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.syntax import (
    Function,
    Replacement,
    accesses,
    calls,
    identifiers,
    indentation,
    insert_before,
    replace,
    text_of,
    unroll_pragma,
    walk,
)

FACTORS = (4, 8, 2, 16)
LARGEST_BODY = 2000
"""Bytes of a loop's text beyond which unrolling rather harms the instruction cache."""


def unroll(context: Context) -> Iterator[Edit]:
    """`#pragma unroll` with several factors on every loop, fully where the trip count is a constant."""
    for function in {function.name: function for _, function in context.launched}.values():
        for number, loop in enumerate(walk(function.body, "for_statement"), 1):
            if loop.parent is None or loop.parent.type != "compound_statement":
                continue
            if loop.end_byte - loop.start_byte > LARGEST_BODY or _keeps_registers(context, function, loop):
                continue
            yield from _variants(context, function, loop, number)


def _keeps_registers(context: Context, function: Function, loop: Node) -> bool:
    """Whether a loop is unrolled fully so that the arrays of a thread stay in registers."""
    pragma = unroll_pragma(loop)
    if pragma is None or text_of(pragma).split()[2:] or not _has_constant_trip_count(context, loop):
        return False
    own = {d.name for d in function.declarations if d.extents and not d.shared}
    return any(access.array in own for access in accesses(loop))


def _variants(context: Context, function: Function, loop: Node, number: int) -> Iterator[Edit]:
    innermost = sum(1 for _ in walk(loop, "for_statement")) == 1
    where = f"loop {number} of {function.name} ({_header(loop)})"
    synchronises = bool(calls(loop, "__syncthreads"))
    scale = (1.0 if innermost else 0.5) * (0.5 if synchronises else 1.0)
    if _has_constant_trip_count(context, loop):
        yield _edit(context, loop, "#pragma unroll", f"unroll {where} fully", scale)
    for factor in FACTORS:
        title = f"unroll {where} by {factor}"
        yield _edit(context, loop, f"#pragma unroll {factor}", title, scale / (1 + factor / 16))
    yield _edit(context, loop, "#pragma unroll 1", f"don't unroll {where}", scale * 0.3)


def _edit(context: Context, loop: Node, text: str, title: str, prior: float) -> Edit:
    indent, pragma = indentation(context.source, loop), unroll_pragma(loop)
    if pragma is not None:
        change = Replacement(pragma.start_byte, pragma.end_byte, f"{text}\n")
    elif _starts_line(context, loop):
        change = insert_before(loop, f"{text}\n{indent}")
    else:
        change = insert_before(loop, f"\n{indent}{text}\n{indent}")
    return edit(
        Category.UNROLLING,
        title,
        replace(context.source, [change]),
        rationale="The loads of unrolled iterations are issued together, and the loop's own instructions "
        "are paid once for all of them.",
        expected_effect="More loads in flight, fewer instructions, more registers.",
        prior=prior,
    )


def _starts_line(context: Context, node: Node) -> bool:
    line = context.source.text.encode()[: node.start_byte].rpartition(b"\n")[2]
    return not line.strip()


def _header(loop: Node) -> str:
    body = loop.child_by_field_name("body") or loop
    return " ".join(text_of(loop)[: body.start_byte - loop.start_byte].split())


def _has_constant_trip_count(context: Context, loop: Node) -> bool:
    initializer = loop.child_by_field_name("initializer")
    parts = [initializer, loop.child_by_field_name("condition"), loop.child_by_field_name("update")]
    if initializer is None or initializer.type != "declaration" or None in parts:
        return False
    declarator = initializer.child_by_field_name("declarator")
    inner = declarator.child_by_field_name("declarator") if declarator is not None else None
    variable = text_of(inner) if inner is not None else ""
    constants = {variable, *context.kernel.macros}
    return all(identifiers(part) <= constants for part in parts if part is not None)


RULES = (
    Rule(
        "unroll",
        Category.UNROLLING,
        frozenset(
            {
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.INTEGER_PIPE,
                Bottleneck.DIVERGENCE,
            }
        ),
        unroll,
        prior=0.4,
    ),
)
