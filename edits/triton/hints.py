"""Hints: which data is read or written once and needn't stay in the caches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import LaunchedFunction, TritonContext
from mctskernel.edits.triton.module import Replacement, argument, calls, names_read


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


def evict_first(context: TritonContext) -> Iterator[Edit]:
    """An input that is read once leaves the cache first."""
    for launched in context.launched:
        for name, bound in launched.bound.items():
            if not context.is_input(str(bound)):
                continue
            loads = [call for call in calls(launched.function, "load") if _reads(call, name) and _plain(call)]
            # A second load of the same data counts on finding it in the cache.
            if len(loads) == 1 and not _looped(launched, loads[0]):
                yield edit(
                    Category.COMPILER_HINTS,
                    f"{launched.function.name}: {name} leaves the cache first",
                    context.written([_with(context, loads[0], 'eviction_policy="evict_first"')]),
                    rationale=f"{name} is loaded in one place and once, so that it needn't stay in the cache.",
                    expected_effect="More of the cache for what is read again.",
                )


def _plain(call: ast.Call) -> bool:
    """Whether a load or store carries no hint yet, and has its arguments written out."""
    names = {keyword.arg for keyword in call.keywords}
    return (
        bool(call.args)
        and None not in names
        and not names & {"cache_modifier", "eviction_policy", "volatile"}
    )


def _reads(call: ast.Call, name: str) -> bool:
    pointer = argument(call, 0, "pointer")
    return pointer is not None and name in names_read(pointer)


def _looped(launched: LaunchedFunction, call: ast.Call) -> bool:
    """Whether a load is in a loop within a loop, where it may come by the same data again."""
    outer = [node for node in ast.walk(launched.function) if isinstance(node, ast.For)]
    return sum(any(node is call for node in ast.walk(loop)) for loop in outer) > 1


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
        "triton-evict-first",
        Category.COMPILER_HINTS,
        frozenset({Bottleneck.DRAM_BANDWIDTH, Bottleneck.L2_BANDWIDTH}),
        evict_first,
        prior=0.3,
    ),
)
