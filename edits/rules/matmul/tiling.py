"""Tiling of a matmul through shared memory: one output a thread, TILE x TILE outputs a block."""

from __future__ import annotations

from collections.abc import Iterable

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names, indented, only_launches, with_launch
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.matmul.nest import MatmulNest, naive_nest
from mctskernel.edits.rules.matmul.operands import Operand
from mctskernel.edits.syntax import fresh_name


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        nest = naive_nest(context, launch, function)
        if nest is None:
            continue
        tile = fresh_name(context.source, "TILE")
        grid = (
            f"ceil_div({nest.col.extent}, {tile})",
            f"ceil_div({nest.row.extent}, {tile})",
            *nest.outer_grid,
        )
        rewrite = Rewrite(
            function,
            body=tiled_body(nest, tile),
            plan=with_launch(context.plan, launch, grid, (tile, tile)),
            about=f"One thread per output; a block's operands pass through shared memory in {tile} x {tile} tiles.",
            defines={tile: 16},
        )
        yield edit(
            Category.SHARED_TILING,
            f"tile {function.name} through shared memory",
            apply(context, rewrite),
            rationale=(
                f"Every element of {nest.left.buffer} and {nest.right.buffer} is read by many threads of a block; "
                f"staging {tile} x {tile} tiles in shared memory reads each once a block."
            ),
            expected_effect=f"{tile} times fewer global loads.",
        )


def tiled_body(nest: MatmulNest, tile: str) -> list[str]:
    """The body of the tiled kernel."""
    k = nest.k
    left, right, tx, ty, k0 = fresh_names(
        nest.names, f"{nest.left.buffer}_tile", f"{nest.right.buffer}_tile", "tx", "ty", f"{k}0"
    )
    read_left = f"{left}[{ty}][{k}]" if nest.left.along_k else f"{left}[{k}][{ty}]"
    read_right = f"{right}[{tx}][{k}]" if nest.right.along_k else f"{right}[{k}][{tx}]"
    pad = " + 1" if nest.right.along_k else ""

    def stage(operand: Operand, shared: str, origin: str, own: str) -> list[str]:
        axis = operand.axis
        across, along = (ty, tx) if operand.along_k else (tx, ty)
        index, k_index, lines = axis.name, f"{k0} + {along}", []
        if across != own:
            (index,) = fresh_names(nest.names, f"staged_{axis.name}")
            lines = [f"const int {index} = {origin} + {across};"]
        inside = f"{index} < {axis.bound} && {k_index} < {nest.k_bound}"
        return [*lines, f"{shared}[{ty}][{tx}] = {inside} ? {operand.at(index, k, k_index)} : {nest.zero};"]

    return [
        f"__shared__ {nest.element} {left}[{tile}][{tile}];",
        f"__shared__ {nest.element} {right}[{tile}][{tile}{pad}];",
        f"const int {tx} = threadIdx.x;",
        f"const int {ty} = threadIdx.y;",
        *nest.uniform,
        f"const int {nest.row.name} = blockIdx.y * {tile} + {ty};",
        f"const int {nest.col.name} = blockIdx.x * {tile} + {tx};",
        f"{nest.element} {nest.accumulator} = {nest.initial};",
        f"for (int {k0} = {nest.k_start}; {k0} < {nest.k_bound}; {k0} += {tile}) {{",
        *indented(
            [
                *stage(nest.left, left, f"blockIdx.y * {tile}", ty),
                *stage(nest.right, right, f"blockIdx.x * {tile}", tx),
                "__syncthreads();",
                "#pragma unroll",
                f"for (int {k} = 0; {k} < {tile}; ++{k}) {{",
                f"    {nest.accumulator} += {read_left} * {read_right};",
                "}",
                "__syncthreads();",
            ]
        ),
        "}",
        f"if ({nest.inside}) {{",
        *indented(nest.epilogue),
        "}",
    ]


RULES = (
    Rule(
        "matmul-shared-tiling",
        Category.SHARED_TILING,
        frozenset(
            {
                Bottleneck.DRAM_BANDWIDTH,
                Bottleneck.L2_BANDWIDTH,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.UNCOALESCED_ACCESS,
                Bottleneck.GLOBAL_LATENCY,
            }
        ),
        _propose,
        prior=2.0,
    ),
)
