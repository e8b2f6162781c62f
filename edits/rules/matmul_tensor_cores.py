"""Matmul of 16-bit floats on tensor cores, with the tiles of several stages in flight.

Fragments go from shared memory to registers in the layout that `mma` wants, and sums stay there until the end: one
barrier a step, and twice as many products for each load from shared memory as through wmma's fragments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from mctskernel.core.edit import Category
from mctskernel.edits.device_code import ALIGNED, fragment_functions, with_headers
from mctskernel.edits.indexing import replace_names
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.matmul_nest import MatmulNest, Operand, naive_nest
from mctskernel.edits.syntax import fresh_name
from mctskernel.edits.templating import filled, renamed

HALVES = frozenset({"__nv_bfloat16", "nv_bfloat16", "__half", "half"})
MACROS = ("BM", "BN", "BK", "WM", "WN", "STAGES")
SIZES = (
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
        BM, BN, BK, WM, WN, stages = (names[macro] for macro in MACROS)
        threads, space = names["THREADS"], names["fragments"]
        tiles = [_tile_size(nest.left, BM, BK), _tile_size(nest.right, BN, BK)]
        shared = " + ".join(" * ".join(size) for size in tiles)
        rewrite = Rewrite(
            function,
            body=_body(nest, names, tiles),
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
        for position, sizes in enumerate(SIZES):
            defines: dict[str, int | str] = {
                names[macro]: size for macro, size in zip(MACROS, sizes, strict=True)
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
    macros = (*MACROS, "THREADS", "is_aligned", "fragments")
    return names | {name: fresh_name(context.source, name) for name in macros}


def _body(nest: MatmulNest, names: Mapping[str, str], tiles: Sequence[tuple[str, str]]) -> list[str]:
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
