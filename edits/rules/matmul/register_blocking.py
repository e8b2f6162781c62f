"""Register blocking of a matmul: a thread computes TM x TN outputs of its block's BM x BN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.indexing import replace_names
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names, indented, only_launches, with_launch
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.matmul.nest import MatmulNest, naive_nest
from mctskernel.edits.rules.matmul.operands import Operand
from mctskernel.edits.rules.matmul.staged import staged_nest
from mctskernel.edits.syntax import fresh_name

SIZES = {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "VEC": 4}
LARGE_SIZES = {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "VEC": 4}


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        nest = naive_nest(context, launch, function) or staged_nest(context, launch, function)
        if nest is None:
            continue
        names = tuple(fresh_name(context.source, name) for name in (*SIZES, "THREADS", "PAD"))
        BM, BN, BK, TM, TN, _, threads, pad = names
        grid = (f"ceil_div({nest.col.extent}, {BN})", f"ceil_div({nest.row.extent}, {BM})", *nest.outer_grid)
        for sizes in (SIZES, LARGE_SIZES):
            defines: dict[str, int | str] = dict(zip(names, sizes.values(), strict=False))
            if nest.left.along_k or nest.right.along_k:
                defines[pad] = 4
            defines[threads] = f"({BM} / {TM} * ({BN} / {TN}))"
            rewrite = Rewrite(
                function,
                body=blocked_body(nest, names),
                plan=with_launch(context.plan, launch, grid, (threads,)),
                about=f"A block computes {BM} x {BN} outputs, {BK} products at a time; a thread {TM} x {TN} of them.",
                defines=defines,
            )
            tm, tn = sizes["TM"], sizes["TN"]
            yield edit(
                Category.REGISTER_BLOCKING,
                f"compute {tm} x {tn} outputs a thread in {function.name}",
                apply(context, rewrite),
                rationale=(
                    f"A thread that keeps {tm} values of {nest.left.buffer} and {tn} of {nest.right.buffer} in "
                    f"registers makes {tm * tn} products of {tm + tn} loads."
                ),
                expected_effect=f"{2 * tm * tn // (tm + tn)} times fewer shared-memory loads per product.",
            )


def blocked_body(nest: MatmulNest, macros: Sequence[str]) -> list[str]:
    """The body of the register-blocked kernel; `macros` name BM, BN, BK, TM, TN, VEC, THREADS and PAD.

    Tiles are stored with k first, so that a thread reads along their rows. Of the TM rows and TN columns of a
    thread VEC at a time are neighbours, and the next thread's follow: a warp then reads consecutive vectors.
    """
    BM, BN, BK, TM, TN, vec, threads, pad = macros
    k = nest.k
    left, right, tx, ty, row0, col0, k0, i, j, m, n, q, a, b = fresh_names(
        nest.names,
        f"{nest.left.buffer}_tile",
        f"{nest.right.buffer}_tile",
        "tx",
        "ty",
        f"{nest.row.name}0",
        f"{nest.col.name}0",
        f"{k}0",
        "i",
        "j",
        "m",
        "n",
        "q",
        f"{nest.left.buffer}_part",
        f"{nest.right.buffer}_part",
    )

    def tile(operand: Operand, name: str, size: str) -> str:
        width = f"{size} + {pad}" if operand.along_k else size
        return f"__shared__ alignas(16) {nest.element} {name}[{BK}][{width}];"

    def stage(operand: Operand, name: str, size: str, origin: str, index: str) -> list[str]:
        width = BK if operand.along_k else size
        across, along = (index, k) if operand.along_k else (k, index)
        position, k_index = f"{origin} + {index}", f"{k0} + {k}"
        inside = f"{position} < {operand.axis.bound} && {k_index} < {nest.k_bound}"
        return [
            "#pragma unroll",
            f"for (int {i} = threadIdx.x; {i} < {BK} * {size}; {i} += {threads}) {{",
            f"    const int {across} = {i} / {width};",
            f"    const int {along} = {i} % {width};",
            f"    {name}[{k}][{index}] = {inside} ? {operand.at(position, k, k_index)} : {nest.zero};",
            "}",
        ]

    def each(variable: str, count: str, *body: str) -> list[str]:
        loop = f"for (int {variable} = 0; {variable} < {count}; ++{variable}) {{"
        return ["#pragma unroll", loop, *indented(body), "}"]

    total, stored = f"{nest.accumulator}[{i}][{j}]", f"{nest.accumulator}[{i}][{q} * {vec} + {j}]"
    row = f"({i} / {vec} * ({BM} / {TM}) + {ty}) * {vec} + {i} % {vec}"
    epilogue = "\n".join(nest.epilogue)
    return [
        f'static_assert({BM} % {TM} == 0 && {BN} % {TN} == 0, "threads must cover the block\'s outputs");',
        f'static_assert({TM} % {vec} == 0 && {TN} % {vec} == 0, "vectors must cover a thread\'s outputs");',
        tile(nest.left, left, BM),
        tile(nest.right, right, BN),
        *nest.uniform,
        f"const int {tx} = threadIdx.x % ({BN} / {TN});",
        f"const int {ty} = threadIdx.x / ({BN} / {TN});",
        f"const int {row0} = blockIdx.y * {BM};",
        f"const int {col0} = blockIdx.x * {BN};",
        f"{nest.element} {nest.accumulator}[{TM}][{TN}];",
        *each(i, TM, *each(j, TN, f"{total} = {nest.initial};")),
        f"for (int {k0} = {nest.k_start}; {k0} < {nest.k_bound}; {k0} += {BK}) {{",
        *indented(
            [
                *stage(nest.left, left, BM, row0, m),
                *stage(nest.right, right, BN, col0, n),
                "__syncthreads();",
                *each(
                    k,
                    BK,
                    f"{nest.element} {a}[{TM}], {b}[{TN}];",
                    *each(i, TM, f"{a}[{i}] = {left}[{k}][{row}];"),
                    *each(
                        j,
                        TN,
                        f"{b}[{j}] = {right}[{k}][({j} / {vec} * ({BN} / {TN}) + {tx}) * {vec} + {j} % {vec}];",
                    ),
                    *each(i, TM, *each(j, TN, f"{total} += {a}[{i}] * {b}[{j}];")),
                ),
                "__syncthreads();",
            ]
        ),
        "}",
        *each(
            i,
            TM,
            *each(
                q,
                f"{TN} / {vec}",
                *each(
                    j,
                    vec,
                    f"const int {nest.row.name} = {row0} + {row};",
                    f"const int {nest.col.name} = {col0} + ({q} * ({BN} / {TN}) + {tx}) * {vec} + {j};",
                    f"if ({nest.inside}) {{",
                    *indented(replace_names(epilogue, {nest.accumulator: stored}).splitlines()),
                    "}",
                ),
            ),
        ),
    ]


RULES = (
    Rule(
        "matmul-register-blocking",
        Category.REGISTER_BLOCKING,
        frozenset(
            {
                Bottleneck.SHARED_THROUGHPUT,
                Bottleneck.L1_THROUGHPUT,
                Bottleneck.INSTRUCTION_ISSUE,
                Bottleneck.GLOBAL_LATENCY,
                Bottleneck.L2_BANDWIDTH,
            }
        ),
        _propose,
        prior=2.0,
    ),
)
