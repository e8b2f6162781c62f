"""A matmul through tiles in shared memory, with TM x TN outputs of the block's BM x BN per thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mctskernel.core.edit import Category
from mctskernel.edits.device_code import ALIGNED
from mctskernel.edits.indexing import replace_names
from mctskernel.edits.rewrite import Rewrite, apply, each, fresh_names, indented, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.matmul_nest import MatmulNest, Operand, naive_nest
from mctskernel.edits.syntax import fresh_name

MACROS = ("BM", "BN", "BK", "TM", "TN", "VEC", "THREADS", "PAD")
SIZES = ((64, 64, 16, 4, 4, 4), (128, 128, 16, 8, 8, 4))
"""BM, BN, BK, TM, TN and VEC, the neighbouring rows or columns of a thread."""


@rule(
    Category.SHARED_TILING,
    2.0,
    "dram_bandwidth l2_bandwidth l1_throughput uncoalesced_access global_latency",
)
def matmul_shared_tiles(context: Context) -> Iterable[Proposal]:
    """One output per thread, from tiles in shared memory."""
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
            body=_tiled_body(nest, tile),
            plan=with_launch(context.plan, launch, grid, (tile, tile)),
            about=f"One thread per output; a block's operands pass through shared memory in {tile} x {tile} tiles.",
            defines={tile: 16},
        )
        yield Proposal(
            f"tile {nest.left.buffer}, {nest.right.buffer} through shared memory (TILE=16)"
            f"{context.where(function.name)}",
            apply(context, rewrite),
            rationale=(
                f"Every element of {nest.left.buffer} and {nest.right.buffer} is read by many threads of a block; "
                f"tiles of {tile} x {tile} in shared memory are loaded once per block."
            ),
            expected_effect="16 times fewer global loads.",
        )


@rule(
    Category.REGISTER_BLOCKING,
    2.0,
    "l2_bandwidth l1_throughput global_latency shared_throughput instruction_issue",
)
def matmul_register_blocks(context: Context) -> Iterable[Proposal]:
    """Several outputs per thread, from tiles in shared memory that are loaded as float4 where possible."""
    for launch, function in only_launches(context):
        nest = naive_nest(context, launch, function)
        if nest is None:
            continue
        names = tuple(fresh_name(context.source, name) for name in MACROS)
        aligned = fresh_name(context.source, "is_aligned")
        BM, BN, BK, TM, TN, _, threads, pad = names
        grid = (f"ceil_div({nest.col.extent}, {BN})", f"ceil_div({nest.row.extent}, {BM})", *nest.outer_grid)
        wide = [operand.buffer for operand in (nest.left, nest.right) if _is_wide(operand, nest)]
        for sizes in SIZES:
            bm, bn, bk, tm, tn, _ = sizes
            defines: dict[str, int | str] = dict(zip(names, sizes, strict=False))
            if nest.left.along_k or nest.right.along_k:
                defines[pad] = 4
            defines[threads] = f"({BM} / {TM} * ({BN} / {TN}))"
            rewrite = Rewrite(
                function,
                body=_body(nest, names, aligned),
                plan=with_launch(context.plan, launch, grid, (threads,)),
                about=f"A block computes {BM} x {BN} outputs, {BK} products at a time; a thread {TM} x {TN} of them.",
                defines=defines,
                functions=[ALIGNED.format(name=aligned)] if wide else [],
            )
            loads = f", {', '.join(wide)} loaded as float4" if wide else ""
            yield Proposal(
                f"compute {tm}x{tn} outputs per thread from tiles in shared memory (BM={bm}, BN={bn}, BK={bk})"
                f"{loads}{context.where(function.name)}",
                apply(context, rewrite),
                rationale=(
                    f"A thread that keeps {tm} values of {nest.left.buffer} and {tn} of {nest.right.buffer} in "
                    f"registers makes {tm * tn} products of {tm + tn} loads from shared memory."
                ),
                expected_effect=f"{2 * tm * tn // (tm + tn)} times fewer shared-memory loads per product.",
            )


def _is_wide(operand: Operand, nest: MatmulNest) -> bool:
    """Whether tiles of an operand can be loaded as float4."""
    is_float = operand.type == nest.element == "float" and operand.element == operand.text
    return is_float and operand.is_affine(nest.k)


def _tiled_body(nest: MatmulNest, tile: str) -> list[str]:
    """The body of a kernel with one output per thread, whose block loads TILE x TILE elements of each operand."""
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


def _body(nest: MatmulNest, macros: Sequence[str], aligned: str) -> list[str]:
    """The body of the kernel. `macros` are the names of MACROS, `aligned` the function for float4 loads, if any.

    Tiles are stored with k first, so that a thread reads along their rows. Of the TM rows and TN columns of a
    thread VEC at a time are neighbours, and the next thread's follow: a warp then reads consecutive vectors. Whole
    tiles are loaded as float4 by a loop of their own: a branch inside it would hold the registers of both ways.
    """
    BM, BN, BK, TM, TN, vec, threads, pad = macros
    k = nest.k
    left, right, tx, ty, row0, col0, k0, i, j, m, n, q, a, b, part, e = fresh_names(
        nest.names,
        f"{nest.left.buffer}_tile",
        f"{nest.right.buffer}_tile",
        *("tx", "ty", f"{nest.row.name}0", f"{nest.col.name}0", f"{k}0", "i", "j", "m", "n", "q"),
        f"{nest.left.buffer}_part",
        f"{nest.right.buffer}_part",
        *("part", "e"),
    )
    total, stored = f"{nest.accumulator}[{i}][{j}]", f"{nest.accumulator}[{i}][{q} * {vec} + {j}]"
    row = f"({i} / {vec} * ({BM} / {TM}) + {ty}) * {vec} + {i} % {vec}"
    epilogue = "\n".join(nest.epilogue)
    sides = ((nest.left, left, BM, row0, m), (nest.right, right, BN, col0, n))

    def stage(operand: Operand, name: str, size: str, origin: str, index: str, *, wide: bool) -> list[str]:
        count, width = (4 if wide and _is_wide(operand, nest) else 1), BK if operand.along_k else size
        across, along = (index, k) if operand.along_k else (k, index)
        position, k_index = f"{origin} + {index}", f"{k0} + {k}"
        element = operand.at(position, k, k_index)
        inside = f"{position} < {operand.axis.bound} && {k_index} < {nest.k_bound}"
        copy = [f"{name}[{k}][{index}] = {inside} ? {element} : {nest.zero};"]
        if count == 4:
            target = f"[{k} + {e}][{index}]" if operand.along_k else f"[{k}][{index} + {e}]"
            copy = [
                f"alignas(16) float {part}[4];",
                f"*reinterpret_cast<float4*>({part}) = *reinterpret_cast<const float4*>(&{element});",
                *each(e, "4", f"{name}{target} = {part}[{e}];"),
            ]
        share = f" / {count}" if count > 1 else ""
        return [
            "#pragma unroll",
            f"for (int {i} = threadIdx.x; {i} < {BK} * {size}{share}; {i} += {threads}) {{",
            f"    const int {across} = {i} / {f'({width}{share})' if share else width};",
            f"    const int {along} = {i} % {f'({width}{share}) * {count}' if share else width};",
            *indented(copy),
            "}",
        ]

    def products(header: str, *, wide: bool) -> list[str]:
        return [
            f"for ({header}; {k0} += {BK}) {{",
            *indented(
                [
                    *(line for side in sides for line in stage(*side, wide=wide)),
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
        ]

    def whole(operand: Operand, size: str, origin: str) -> list[str]:
        first = [(origin, nest.k_start), (f"{origin} + 1", nest.k_start)]
        if not operand.along_k:
            first[1] = (origin, f"{nest.k_start} + 1")
        lines = (f"{aligned}(&{operand.at(position, k, k_index)})" for position, k_index in first)
        return [f"{origin} + {size} <= {operand.axis.bound}", *lines]

    conditions = [
        condition
        for operand, _, size, origin, _ in sides
        if _is_wide(operand, nest)
        for condition in whole(operand, size, origin)
    ]
    if conditions:
        loops = [
            f"int {k0} = {nest.k_start};",
            "// Lines are as far apart as the first two, so that what is aligned for both is for all.",
            f"if ({' && '.join(conditions)}) {{",
            *indented(products(f"; {k0} + {BK} <= {nest.k_bound}", wide=True)),
            "}",
            *products(f"; {k0} < {nest.k_bound}", wide=False),
        ]
    else:
        loops = products(f"int {k0} = {nest.k_start}; {k0} < {nest.k_bound}", wide=False)
    left_size, right_size = (f"{size} + {pad}" if operand.along_k else size for operand, _, size, *_ in sides)
    return [
        f'static_assert({BM} % {TM} == 0 && {BN} % {TN} == 0, "threads must cover the block\'s outputs");',
        f"static_assert({TM} % {vec} == 0 && {TN} % {vec} == 0 && {BM} % 4 == 0 && {BN} % 4 == 0 && {BK} % 4 == 0, "
        '"vectors must cover tiles");',
        f"__shared__ alignas(16) {nest.element} {left}[{BK}][{left_size}];",
        f"__shared__ alignas(16) {nest.element} {right}[{BK}][{right_size}];",
        *nest.uniform,
        f"const int {tx} = threadIdx.x % ({BN} / {TN});",
        f"const int {ty} = threadIdx.x / ({BN} / {TN});",
        f"const int {row0} = blockIdx.y * {BM};",
        f"const int {col0} = blockIdx.x * {BN};",
        f"{nest.element} {nest.accumulator}[{TM}][{TN}];",
        *each(i, TM, *each(j, TN, f"{total} = {nest.initial};")),
        *loops,
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
