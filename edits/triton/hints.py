"""Hints: what needn't stay in the caches, and what is read again soon."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import TritonContext
from mctskernel.edits.triton.module import Replacement, argument, calls, names_assigned, names_read, same


def streaming_stores(context: TritonContext) -> Iterator[Edit]:
    """Outputs written past the caches, for a kernel that doesn't read them again."""
    for launched in context.launched:
        stores = [call for call in calls(launched.function, "store") if _plain(call)]
        if stores:
            yield edit(
                Category.COMPILER_HINTS,
                f"{launched.function.name}: streaming stores",
                context.written(_with(context, call, 'cache_modifier=".cs"') for call in stores),
                rationale="What is written isn't read again, so it needn't push anything else out of the cache.",
                expected_effect="More of the L2 cache for what is read.",
            )


def eviction(context: TritonContext) -> Iterator[Edit]:
    """Loads that say whether their data is read again: by this program later, by other programs, or by nobody."""
    for launched in context.launched:
        function = launched.function
        if any(True for _ in calls(function, "swizzle2d")):
            continue
        loads = sorted((call for call in calls(function, "load") if _plain(call)), key=context.module.span)
        axes = _axes(function)
        grid = frozenset(range(len(launched.launch.grid)))
        changes = [
            _with(context, call, f'eviction_policy="{_policy(call, loads[place + 1 :], axes, grid)}"')
            for place, call in enumerate(loads)
        ]
        if changes:
            yield edit(
                Category.COMPILER_HINTS,
                f"{function.name}: loads say what is read again",
                context.written(changes),
                rationale="What only this program reads, and for the last time, can leave the caches first; what it or "
                "others read again should leave them last.",
                expected_effect="More hits for what is read again.",
            )


def _policy(
    call: ast.Call, later: list[ast.Call], axes: Mapping[str, frozenset[int]], grid: frozenset[int]
) -> str:
    """How long to keep what a load reads: what programs share, or a program loads again, leaves last."""
    pointer = argument(call, 0, "pointer")
    if pointer is None or not grid <= frozenset[int]().union(*(axes.get(n, ()) for n in names_read(pointer))):
        return "evict_last"
    again = any(same(found, pointer) for each in later if (found := argument(each, 0, "pointer")))
    return "evict_last" if again else "evict_first"


def _axes(function: ast.FunctionDef) -> Mapping[str, frozenset[int]]:
    """The axes of the grid that names depend on."""
    found: dict[str, frozenset[int]] = {}
    while True:
        before = dict(found)
        for node in ast.walk(function):
            match node:
                case ast.Assign(value=value) | ast.AugAssign(value=value):
                    names = names_assigned(node)
                case ast.For(target=target, iter=value):
                    names = names_assigned(target)
                case _:
                    continue
            asked = {
                int(ast.unparse(call.args[0]))
                for call in calls(value, "program_id")
                if call.args and isinstance(call.args[0], ast.Constant)
            }
            inherited = (found.get(name, frozenset[int]()) for name in names_read(value))
            own = frozenset(asked).union(*inherited)
            for name in names:
                found[name] = found.get(name, frozenset()) | own
        if found == before:
            return found


def _plain(call: ast.Call) -> bool:
    """Whether a load or store carries no hint yet, and has its arguments written out."""
    names = {keyword.arg for keyword in call.keywords}
    return (
        bool(call.args)
        and None not in names
        and not names & {"cache_modifier", "eviction_policy", "volatile"}
    )


def _with(context: TritonContext, call: ast.Call, hint: str) -> Replacement:
    _, end = context.module.span(call)
    last = max(context.module.span(each)[1] for each in (*call.args, *(k.value for k in call.keywords)))
    return Replacement(last, end, f", {hint})")


RULES: tuple[Rule[TritonContext], ...] = (
    Rule(
        "triton-streaming-stores",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH}),
        streaming_stores,
        prior=0.4,
    ),
    Rule(
        "triton-eviction",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH, Bottleneck.L1_THROUGHPUT}),
        eviction,
        prior=0.4,
    ),
)
