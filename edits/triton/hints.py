"""Hints: what is written once and needn't stay in the caches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rule import Rule, edit
from mctskernel.edits.triton.context import TritonContext
from mctskernel.edits.triton.module import Replacement, calls


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


def _plain(call: ast.Call) -> bool:
    """Whether a store carries no hint yet, and has its arguments written out."""
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
)
