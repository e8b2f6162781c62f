"""A matmul through tiles in shared memory: one output per thread, several in registers, or on tensor cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from mctskernel.core.edit import Category
from mctskernel.edits.device_code import ALIGNED, filled, fragment_functions, renamed, with_headers
from mctskernel.edits.indexing import replace_names
from mctskernel.edits.rewrite import Rewrite, apply, each, indented, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.matmul_nest import MatmulNest, Operand, naive_nest
from mctskernel.edits.syntax import fresh_name, fresh_names

MACROS = ("BM", "BN", "BK", "TM", "TN", "VEC", "THREADS", "PAD")
SIZES = ((64, 64, 16, 4, 4, 4), (128, 128, 16, 8, 8, 4))
"""BM, BN, BK, TM, TN and VEC, the neighbouring rows or columns of a thread."""


@rule(
    Category.SHARED_TILING, 2.0, "dram_bandwidth l2_bandwidth l1_throughput uncoalesced_access global_latency"
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
        names = {macro: fresh_name(context.source, macro) for macro in MACROS}
        aligned = fresh_name(context.source, "is_aligned")
        BM, BN, BK, TM, TN, _, threads, pad = names.values()
        grid = (f"ceil_div({nest.col.extent}, {BN})", f"ceil_div({nest.row.extent}, {BM})", *nest.outer_grid)
        wide = [operand.buffer for operand in (nest.left, nest.right) if _is_wide(operand, nest)]
        for sizes in SIZES:
            bm, bn, bk, tm, tn, _ = sizes
            defines: dict[str, int | str] = dict(zip(names.values(), sizes, strict=False))
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

    def stage(operand: Operand, shared: str, origin: str, own: str) -> list[str]:
        axis = operand.axis
        across, along = (ty, tx) if operand.along_k else (tx, ty)
        index, k_index, lines = axis.name, f"{k0} + {along}", []
        if across != own:
            (index,) = fresh_names(nest.names, f"staged_{axis.name}")
            lines = [f"const int {index} = {origin} + {across};"]
        inside = f"{index} < {axis.bound} && {k_index} < {nest.k_bound}"
        return [*lines, f"{shared}[{ty}][{tx}] = {inside} ? {operand.at(index, k, k_index)} : {nest.zero};"]

    return filled(
        "matmul_shared_tiles",
        {"TILE": tile, "left_tile": left, "right_tile": right, "tx": tx, "ty": ty, "k0": k0},
        {
            **nest.holes,
            "pad": " + 1" if nest.right.along_k else "",
            "stage_left": stage(nest.left, left, f"blockIdx.y * {tile}", ty),
            "stage_right": stage(nest.right, right, f"blockIdx.x * {tile}", tx),
            "left_at": f"[{ty}][{k}]" if nest.left.along_k else f"[{k}][{ty}]",
            "right_at": f"[{tx}][{k}]" if nest.right.along_k else f"[{k}][{tx}]",
        },
    )


def _body(nest: MatmulNest, macros: Mapping[str, str], aligned: str) -> list[str]:
    """The body of the kernel. `macros` are the names of MACROS, `aligned` the function for float4 loads, if any.

    Tiles are stored with k first, so that a thread reads along their rows. Of the TM rows and TN columns of a
    thread VEC at a time are neighbours, and the next thread's follow: a warp then reads consecutive vectors. Whole
    tiles are loaded as float4 by a loop of their own: a branch inside it would hold the registers of both ways.
    """
    k, buffers = nest.k, (nest.left.buffer, nest.right.buffer)
    wanted = {
        "left_tile": f"{buffers[0]}_tile",
        "right_tile": f"{buffers[1]}_tile",
        **{name: name for name in ("tx", "ty")},
        "row0": f"{nest.row.name}0",
        "col0": f"{nest.col.name}0",
        "k0": f"{k}0",
        **{name: name for name in ("i", "j", "m", "n", "q")},
        "left_part": f"{buffers[0]}_part",
        "right_part": f"{buffers[1]}_part",
        **{name: name for name in ("part", "e")},
    }
    names = {**macros, **dict(zip(wanted, fresh_names(nest.names, *wanted.values()), strict=True))}
    k0, e, part, BK = names["k0"], names["e"], names["part"], macros["BK"]
    sides = (
        (nest.left, names["left_tile"], macros["BM"], names["row0"], names["m"]),
        (nest.right, names["right_tile"], macros["BN"], names["col0"], names["n"]),
    )

    def stage(operand: Operand, name: str, size: str, origin: str, index: str, *, wide: bool) -> list[str]:
        vector, width = wide and _is_wide(operand, nest), BK if operand.along_k else size
        across, along = (index, k) if operand.along_k else (k, index)
        position, k_index = f"{origin} + {index}", f"{k0} + {k}"
        element = operand.at(position, k, k_index)
        inside = f"{position} < {operand.axis.bound} && {k_index} < {nest.k_bound}"
        copy = [f"{name}[{k}][{index}] = {inside} ? {element} : {nest.zero};"]
        if vector:
            target = f"[{k} + {e}][{index}]" if operand.along_k else f"[{k}][{index} + {e}]"
            copy = [
                f"alignas(16) float {part}[4];",
                f"*reinterpret_cast<float4*>({part}) = *reinterpret_cast<const float4*>(&{element});",
                *each(e, "4", f"{name}{target} = {part}[{e}];"),
            ]
        holes = {
            "size": size,
            "share": " / 4" if vector else "",
            "across": across,
            "along": along,
            "rows": f"({width} / 4)" if vector else width,
            "columns": f"({width} / 4) * 4" if vector else width,
            "copy": copy,
        }
        return filled("staged_share", names, holes)

    def products(header: str, *, wide: bool) -> list[str]:
        left, right = (stage(*side, wide=wide) for side in sides)
        holes = {**nest.holes, "header": header, "stage_left": left, "stage_right": right}
        return filled("matmul_register_products", names, holes)

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
    loops = products(f"int {k0} = {nest.k_start}; {k0} < {nest.k_bound}", wide=False)
    if conditions:
        loops = [
            f"int {k0} = {nest.k_start};",
            "// Lines are as far apart as the first two, so that what is aligned for both is for all.",
            f"if ({' && '.join(conditions)}) {{",
            *indented(products(f"; {k0} + {BK} <= {nest.k_bound}", wide=True)),
            "}",
            *products(f"; {k0} < {nest.k_bound}", wide=False),
        ]
    left_size, right_size = (
        f"{size} + {macros['PAD']}" if operand.along_k else size for operand, _, size, *_ in sides
    )
    stored = nest.accumulator + renamed("[i][q * VEC + j]", names)
    holes = {
        **nest.holes,
        "left_size": left_size,
        "right_size": right_size,
        "products": loops,
        "epilogue": replace_names("\n".join(nest.epilogue), {nest.accumulator: stored}).splitlines(),
    }
    return filled("matmul_register_blocks", names, holes)


HALVES = frozenset({"__nv_bfloat16", "nv_bfloat16", "__half", "half"})
TENSOR_MACROS = ("BM", "BN", "BK", "WM", "WN", "STAGES")
TENSOR_SIZES = (
    (128, 128, 32, 64, 64, 4),
    (128, 256, 32, 64, 64, 3),
    (128, 128, 64, 64, 32, 3),
    (64, 128, 32, 32, 64, 4),
)
"""Of a block: rows, columns and products at a time; of a warp: rows and columns; stages."""


@rule(
    Category.TENSOR_CORES, 3.0, "l1_throughput global_latency shared_throughput instruction_issue fp32_pipe"
)
def matmul_tensor_cores(context: Context) -> Iterable[Proposal]:
    """A product of 16-bit floats on tensor cores."""
    for launch, function in only_launches(context):
        nest = naive_nest(context, launch, function)
        if nest is None or nest.element != "float" or nest.k_start != "0" or launch.shared != 0:
            continue
        if nest.left.type not in HALVES or nest.left.type != nest.right.type:
            continue
        if nest.left.element is None or nest.right.element is None:
            continue
        names = _names(context, nest)
        BM, BN, BK, WM, WN, stages = (names[macro] for macro in TENSOR_MACROS)
        threads, space = names["THREADS"], names["fragments"]
        tiles = [_tile_size(nest.left, BM, BK), _tile_size(nest.right, BN, BK)]
        shared = " + ".join(" * ".join(size) for size in tiles)
        rewrite = Rewrite(
            function,
            body=_tensor_body(nest, names, tiles),
            plan=with_launch(
                context.plan,
                launch,
                (
                    f"ceil_div({nest.col.extent}, {BN})",
                    f"ceil_div({nest.row.extent}, {BM})",
                    *nest.outer_grid,
                ),
                (threads,),
                shared=f"2 * {stages} * ({shared})",
            ),
            about=f"Tensor cores compute {BM} x {BN} outputs a block, {WM} x {WN} a warp, while tiles of {stages} - 1 "
            "further stages are in flight.",
            functions=[
                ALIGNED.format(name=names["is_aligned"]),
                f"namespace {space} {{\n\n{fragment_functions(nest.left.type)}\n\n}} // namespace {space}",
            ],
            more=with_headers(context.source, "cuda_pipeline_primitives.h"),
        )
        for position, sizes in enumerate(TENSOR_SIZES):
            defines: dict[str, int | str] = {
                names[macro]: size for macro, size in zip(TENSOR_MACROS, sizes, strict=True)
            }
            defines[threads] = f"({BM} / {WM} * ({BN} / {WN}) * 32)"
            yield Proposal(
                f"mma on tensor cores with cp.async (BM={sizes[0]}, BN={sizes[1]}, BK={sizes[2]}, warp tile "
                f"{sizes[3]}x{sizes[4]}, {sizes[5]} stages){context.where(function.name)}",
                apply(context, dataclasses.replace(rewrite, defines=defines)),
                rationale=(
                    f"{nest.left.buffer} and {nest.right.buffer} are 16-bit floats added up in float32: just what "
                    "tensor cores do, and copies of several steps in flight keep them fed."
                ),
                expected_effect="Limited by the rate of the tensor cores.",
                prior=1.0 - 0.1 * position,
            )


def _names(context: Context, nest: MatmulNest) -> dict[str, str]:
    """What identifiers of the templates are called in the new kernel."""
    fixed = (
        "tiles step stage warp lane warp_row warp_col left right sums copy i j e at line part inside".split()
    )
    names = dict(zip(fixed, fresh_names(nest.names, *fixed), strict=True))
    wanted = f"{nest.row.name}0", f"{nest.col.name}0", f"{nest.k}0"
    origins = fresh_names(nest.names | set(names.values()), *wanted)
    tiles = fresh_names(nest.names, f"{nest.left.buffer}_tile", f"{nest.right.buffer}_tile")
    names |= dict(zip(("row0", "col0", "k0", "left_tile", "right_tile"), (*origins, *tiles), strict=True))
    macros = (*TENSOR_MACROS, "THREADS", "is_aligned", "fragments")
    return names | {name: fresh_name(context.source, name) for name in macros}


def _tensor_body(nest: MatmulNest, names: Mapping[str, str], tiles: Sequence[tuple[str, str]]) -> list[str]:
    left, right = "left[i], &left_tile[stage]", "right[j], &right_tile[stage]"
    row, col, other = "warp_row + i * 16", "warp_col + j * 16", "lane / 16 * 8 + lane % 8"
    if nest.left.along_k:
        load_left = f"load_matrices({left}[{row} + lane % 16][e + lane / 16 * 8])"
    else:
        load_left = f"load_transposed({left}[e + {other}][{row} + lane / 8 % 2 * 8])"
    if nest.right.along_k:
        load_right = f"load_matrices({right}[{col} + {other}][e + lane / 8 % 2 * 8])"
    else:
        load_right = f"load_transposed({right}[e + lane % 16][{col} + lane / 16 * 8])"
    total = renamed("sums[i][j][e]", names)
    (left_lines, left_length), (right_lines, right_length) = tiles
    return filled(
        "matmul_tensor_cores",
        names,
        {
            **nest.holes,
            "element": nest.left.type,
            "left_lines": left_lines,
            "left_length": left_length,
            "right_lines": right_lines,
            "right_length": right_length,
            "copy_left": _copied_tile(nest, nest.left, names, "row0", "BM"),
            "copy_right": _copied_tile(nest, nest.right, names, "col0", "BN"),
            "load_left": renamed(load_left, names),
            "load_right": renamed(load_right, names),
            "epilogue": replace_names("\n".join(nest.epilogue), {nest.accumulator: total}).splitlines(),
        },
    )


def _copied_tile(
    nest: MatmulNest, operand: Operand, names: Mapping[str, str], origin: str, size: str
) -> list[str]:
    """A block's copy of one operand's tile, 8 elements at a time, asynchronous where all of them exist."""
    bounds = operand.axis.bound, nest.k_bound
    (lines, width), (line0, part0), (line_end, part_end) = (
        (pair if operand.along_k else pair[::-1]) for pair in ((size, "BK"), (origin, "k0"), bounds)
    )

    def element(line: str, part: str) -> str:
        line, part = renamed(line, names), renamed(part, names)
        index, k_index = (line, part) if operand.along_k else (part, line)
        return operand.element_at(index, nest.k, k_index)

    holes = {
        "lines": names[lines],
        "width": names[width],
        "line0": names[line0],
        "part0": names[part0],
        "line_end": line_end,
        "part_end": part_end,
        "tile": names["left_tile" if operand is nest.left else "right_tile"],
        "type": operand.type,
        "element": element(f"{line0} + line", f"{part0} + part"),
        "one": element(f"{line0} + line", f"{part0} + part + e"),
        "first": element(line0, part0),
        "second": element(f"{line0} + 1", part0),
    }
    careful = filled("copied_tile", names, holes)
    if not operand.is_affine(nest.k):
        return careful
    return filled("copied_tile_aligned", names, {**holes, "careful": careful})


def _tile_size(operand: Operand, size: str, depth: str) -> tuple[str, str]:
    """Lines of a tile, and their length: with 8 elements more than are used, fragments meet no bank conflicts."""
    return (size, f"({depth} + 8)") if operand.along_k else (depth, f"({size} + 8)")
