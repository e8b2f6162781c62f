"""The text of float4 copies beside the scalar ones: flags, loops in two forms, and bounds on the registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.launch_plan import Launch
from mctskernel.edits.extents import as_c
from mctskernel.edits.indexing import code
from mctskernel.edits.rewrite import Rewrite, apply, changed, dedented, fresh_names, indented
from mctskernel.edits.rule import Context
from mctskernel.edits.rules.hints import REGISTERS_PER_SM
from mctskernel.edits.syntax import (
    Function,
    Loop,
    Replacement,
    enclosing,
    fresh_name,
    indentation,
    insert_before,
    names_in_scope,
    text_of,
    unroll_pragma,
    within,
)
from mctskernel.edits.vectors import ALIGNED

REGISTER_GRANULE = 8
"""Registers are allocated in so many for each thread."""
ENOUGH_THREADS = 1024
"""Half of what a multiprocessor holds: more blocks than that are not worth spilled registers."""


@dataclass(frozen=True)
class Wide:
    """A loop with a form that moves four elements at once where all of `conditions` hold; it `fills` a tile or not."""

    loop: Loop
    buffer: str
    conditions: tuple[str, ...]
    lines: tuple[str, ...]
    fills: bool


def with_wide_loops(context: Context, launch: Launch, function: Function, found: list[Wide]) -> str:
    """The text with both forms of each loop, and flags that choose one at run time."""
    aligned = fresh_name(context.source, "is_aligned")
    taken = names_in_scope(context.source, function)
    flags: dict[str, str] = {}
    flagged: list[tuple[str, Wide]] = []
    for wide in found:
        (flag,) = fresh_names(taken, f"wide_{wide.buffer}")
        condition = f"{aligned}({wide.buffer}) && {' && '.join(wide.conditions)}"
        if flags.setdefault(flag, condition) == condition:
            flagged.append((flag, wide))
    outer = _loop_around([wide for _, wide in flagged if wide.fills])
    changes = [] if outer is None else [_two_loops(context, outer, flagged)]
    for flag, wide in flagged:
        if outer is None or not within(wide.loop.node, outer):
            node = wide.loop.node
            lines = _two_forms(
                flag, [*_pragma(node), *wide.lines], [*_pragma(node), *dedented(context.source, [node])]
            )
            changes.append(_replaced(context, node, lines))
    declarations = [f"const bool {flag} = {condition};" for flag, condition in flags.items()]
    first = next(
        n for n in code(function.body) if n.type in {"for_statement", "preproc_call", "if_statement"}
    )
    margin = indentation(context.source, first)
    changes.append(insert_before(first, "".join(f"{line}\n{margin}" for line in declarations)))
    changes += _kept_occupancy(context, launch, function)
    return apply(context, Rewrite(function, functions=[ALIGNED.format(name=aligned)], more=changes))


def _loop_around(fills: list[Wide]) -> Node | None:
    """The loop whose every iteration fills all the tiles."""
    around = [enclosing(wide.loop.node, "for_statement", "while_statement", "do_statement") for wide in fills]
    if not around or around[0] is None or around[0].type != "for_statement":
        return None
    return around[0] if all(node == around[0] for node in around) else None


def _two_loops(context: Context, outer: Node, flagged: list[tuple[str, Wide]]) -> Replacement:
    """The loop once with wide fills and once as it was: a branch inside it would hold the registers of both."""
    inside = [(flag, wide) for flag, wide in flagged if within(wide.loop.node, outer)]
    changes = [
        _replaced(context, wide.loop.node, [*_pragma(wide.loop.node), *wide.lines]) for _, wide in inside
    ]
    flag = " && ".join(dict.fromkeys(flag for flag, _ in inside))
    lines = _two_forms(
        flag,
        [*_pragma(outer), *changed(context.source, outer, changes)],
        [*_pragma(outer), *dedented(context.source, [outer])],
    )
    return _replaced(context, outer, lines)


def _two_forms(flag: str, wide: Iterable[str], narrow: Iterable[str]) -> list[str]:
    return [f"if ({flag}) {{", *indented(wide), "} else {", *indented(narrow), "}"]


def _pragma(loop: Node) -> list[str]:
    pragma = unroll_pragma(loop)
    return [] if pragma is None else [text_of(pragma).strip()]


def _replaced(context: Context, loop: Node, lines: Iterable[str]) -> Replacement:
    """Lines in place of a loop and the pragma before it."""
    margin = indentation(context.source, loop)
    start = unroll_pragma(loop) or loop
    return Replacement(start.start_byte, loop.end_byte, f"\n{margin}".join(lines))


def _kept_occupancy(context: Context, launch: Launch, function: Function) -> list[Replacement]:
    """Launch bounds that keep as many blocks resident as the narrow form had.

    Wide copies hold more values at once: without bounds an 8 x 8 matmul grows from 127 to more than 128 registers
    and loses the second block of each multiprocessor, which costs more than the wide accesses gain.
    """
    block = as_c(launch.block[0], context.source.macro_names)
    if function.launch_bounds is not None or len(launch.block) != 1 or block is None:
        return []
    threads = context.resolved[0].launches[context.plan.launches.index(launch)].threads
    for found in context.evaluation.resources:
        allocated = -(-found.registers // REGISTER_GRANULE) * REGISTER_GRANULE
        if found.kernel != function.name or not allocated:
            continue
        blocks = min(REGISTERS_PER_SM // (allocated * threads), ENOUGH_THREADS // threads)
        declarator = function.node.child_by_field_name("declarator")
        if blocks > 1 and declarator is not None:
            return [insert_before(declarator, f"__launch_bounds__({block}, {blocks}) ")]
    return []
