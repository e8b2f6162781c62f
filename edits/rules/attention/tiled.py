"""A block for many queries of attention: scores and weights stay in registers, sums are rescaled as maxima grow.

The algorithm is FlashAttention-2 (Dao, 2023, arXiv:2307.08691), for the tensor cores of sm_80 and later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from string import Template

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.expression import ExpressionError, evaluate_int
from mctskernel.core.launch_plan import Launch, LaunchPlan
from mctskernel.edits.fragments import fragment_functions
from mctskernel.edits.headers import with_headers
from mctskernel.edits.rewrite import Rewrite, apply, only_launches, with_launch
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.attention.pattern import Attention, attention_of
from mctskernel.edits.rules.attention.tiled_text import BLOCK, ONE_TILE
from mctskernel.edits.syntax import Function, fresh_name, identifiers, parse
from mctskernel.edits.vectors import ALIGNED

SIZES = ((64, 64), (128, 64), (64, 32), (128, 32))
"""Of a block: queries, and keys at a time."""
MOST_DIMS = 128
"""Of a head, that a warp has sums for in registers."""
MACROS = ("QUERIES", "KEYS", "DIMS", "THREADS")
WORDS = {
    "__nv_bfloat16": ("__floats2bfloat162_rn", "__bfloat162float", "__float2bfloat16"),
    "__half": ("__floats2half2_rn", "__half2float", "__float2half"),
}
"""Two floats to two elements, an element to float, and back."""


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        found = attention_of(context, launch, function)
        dims = _dims(context, found) if found is not None else None
        if found is None or dims is None:
            continue
        for position, (queries, keys) in enumerate(SIZES):
            text = _tiled(context, launch, function, found, (queries, keys, dims))
            if text is None:
                continue
            yield edit(
                Category.ALGORITHM,
                f"attend to {keys} keys at a time for {queries} queries a block in {function.name}, "
                "on tensor cores in one pass",
                text,
                rationale=(
                    "Every query reads all of its keys and values by itself, and its weights go through shared "
                    "memory. A block of many queries reads a tile of keys and values once for all of them; maxima "
                    "and sums that are rescaled as they grow need no second pass, so that scores and weights never "
                    "leave the registers of the tensor cores' warps."
                ),
                expected_effect=f"{queries} times fewer reads of {found.keys} and {found.values}, products at the "
                "rate of tensor cores.",
                prior=1.0 - 0.1 * position,
            )


def _dims(context: Context, found: Attention) -> int | None:
    """The dimensions that a tile takes: all of those that are timed, in steps of 16, up to MOST_DIMS."""
    try:
        names = [context.task.names(shape, context.kernel) for shape in context.task.search_shapes]
        largest = max(evaluate_int(found.planned_dim, each) for each in names)
    except (ExpressionError, ValueError):
        return None
    return min(MOST_DIMS, -(-largest // 16) * 16)


def _tiled(
    context: Context, launch: Launch, function: Function, found: Attention, sizes: tuple[int, int, int]
) -> str | None:
    source = context.source
    names = {macro: fresh_name(source, macro) for macro in MACROS}
    aligned, space = fresh_name(source, "is_aligned"), fresh_name(source, "tiled_attention")
    pair, widen, narrow = WORDS[found.element]
    words = {
        **names,
        "space": space,
        "aligned": aligned,
        "element": found.element,
        "fragments": fragment_functions(found.element),
        "to_pair": pair,
        "to_float": widen,
        "from_float": narrow,
        "end": f"min(length, query0 + {names['QUERIES']})" if found.causal else "length",
        "whole": f"key0 + {names['KEYS']} <= {'query0 + 1' if found.causal else 'length'}",
        "visible": "key <= query" if found.causal else "key < length",
    }
    functions = Template(BLOCK).substitute(words)
    if (identifiers(parse(functions).root) - set(names.values())) & source.macro_names:
        return None
    body = Template(ONE_TILE).substitute(
        words,
        queries=found.queries,
        keys=found.keys,
        values=found.values,
        out=found.out,
        length=found.length,
        dim=found.dim,
        scale=found.scale,
        **_tile_names(found),
    )
    queries, keys, dims = sizes
    Q, K, D, threads = (names[macro] for macro in MACROS)
    grid = (f"ceil_div({found.planned_length}, {Q})", launch.grid[1], f"ceil_div({found.planned_dim}, {D})")
    rewrite = Rewrite(
        function,
        body=body.strip().splitlines(),
        plan=_without_dynamic_shared(with_launch(context.plan, launch, grid, (threads,)), launch.kernel),
        about=f"A block attends to all keys of {Q} queries, {K} at a time; a warp has 16 of the queries.",
        defines={Q: queries, K: keys, D: dims, threads: f"({Q} / 16 * 32)"},
        functions=[ALIGNED.format(name=aligned), functions],
        more=with_headers(source, "cuda_pipeline_primitives.h"),
    )
    return apply(context, rewrite)


def _without_dynamic_shared(plan: LaunchPlan, kernel: str) -> LaunchPlan:
    """The plan for a kernel whose tiles have fixed sizes."""
    launches = (
        dataclasses.replace(each, shared=0) if each.kernel == kernel else each for each in plan.launches
    )
    return dataclasses.replace(plan, launches=tuple(launches))


def _tile_names(found: Attention) -> dict[str, str]:
    taken = {found.queries, found.keys, found.values, found.out, found.length, found.dim}
    names = {}
    for tile in ("key_tile", "value_tile"):
        names[tile] = tile if tile not in taken else f"{tile}_"
    return names


RULES = (
    Rule(
        "tiled-attention",
        Category.ALGORITHM,
        frozenset(
            {
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.FP32_PIPE,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.SHARED_THROUGHPUT,
                Bottleneck.BARRIERS,
            }
        ),
        _propose,
        prior=3.0,
    ),
)
