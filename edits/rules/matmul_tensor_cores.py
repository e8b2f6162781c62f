"""Matmul of 16-bit floats on tensor cores, with the tiles of several stages in flight.

Fragments go from shared memory to registers in the layout that `mma` wants, and sums stay there until the end: one
barrier a step, and twice as many products for each load from shared memory as through wmma's fragments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mctskernel.core.edit import Category
from mctskernel.edits.device_code import ALIGNED, fragment_functions, with_headers
from mctskernel.edits.indexing import replace_names
from mctskernel.edits.rewrite import Rewrite, apply, each, fresh_names, indented, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.matmul_nest import MatmulNest, Operand, naive_nest
from mctskernel.edits.syntax import fresh_name

HALVES = frozenset({"__nv_bfloat16", "nv_bfloat16", "__half", "half"})
MACROS = ("BM", "BN", "BK", "WM", "WN", "STAGES")
VARIABLES = (
    *("tiles", "step", "stage", "warp", "lane", "warp_row", "warp_col", "left", "right", "sums", "copy"),
    *("i", "j", "e", "at", "line", "part", "inside"),
)
SIZES = (
    (128, 128, 32, 64, 64, 4),
    (128, 256, 32, 64, 64, 3),
    (128, 128, 64, 64, 32, 3),
    (64, 128, 32, 32, 64, 4),
)
"""Of a block: rows, columns and products at a time; of a warp: rows and columns; stages."""


@dataclass(frozen=True)
class Names:
    """The names of macros and variables in the new kernel."""

    BM: str
    BN: str
    BK: str
    WM: str
    WN: str
    threads: str
    aligned: str
    variables: Mapping[str, str]

    def __getitem__(self, variable: str) -> str:
        return self.variables[variable]


@rule(
    Category.TENSOR_CORES,
    3.0,
    "l1_throughput global_latency shared_throughput instruction_issue fp32_pipe",
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
        names, stages = _names(context, nest)
        space = fresh_name(context.source, "fragments")
        macros = (names.BM, names.BN, names.BK, names.WM, names.WN, stages)
        grid = (f"ceil_div({nest.col.extent}, {names.BN})", f"ceil_div({nest.row.extent}, {names.BM})")
        plan = with_launch(context.plan, launch, (*grid, *nest.outer_grid), (names.threads,))
        shared = " + ".join(
            " * ".join(size)
            for size in (
                _tile_size(nest.left, names.BM, names.BK),
                _tile_size(nest.right, names.BN, names.BK),
            )
        )
        launches = (
            dataclasses.replace(each_, shared=f"2 * {stages} * ({shared})")
            if each_.kernel == launch.kernel
            else each_
            for each_ in plan.launches
        )
        plan = dataclasses.replace(plan, launches=tuple(launches))
        functions = f"namespace {space} {{\n\n{fragment_functions(nest.left.type)}\n\n}} // namespace {space}"
        for position, sizes in enumerate(SIZES):
            defines: dict[str, int | str] = dict(zip(macros, sizes, strict=True))
            defines[names.threads] = f"({names.BM} / {names.WM} * ({names.BN} / {names.WN}) * 32)"
            rewrite = Rewrite(
                function,
                body=_body(nest, names, stages, space),
                plan=plan,
                about=f"Tensor cores compute {names.BM} x {names.BN} outputs a block, {names.WM} x {names.WN} a warp, "
                f"while tiles of {stages} - 1 further stages are in flight.",
                defines=defines,
                functions=[ALIGNED.format(name=names.aligned), functions],
                more=with_headers(context.source, "cuda_pipeline_primitives.h"),
            )
            yield Proposal(
                f"mma on tensor cores with cp.async (BM={sizes[0]}, BN={sizes[1]}, BK={sizes[2]}, warp tile "
                f"{sizes[3]}x{sizes[4]}, {sizes[5]} stages){context.where(function.name)}",
                apply(context, rewrite),
                rationale=(
                    f"{nest.left.buffer} and {nest.right.buffer} are 16-bit floats added up in float32: just what "
                    "tensor cores do, and copies of several steps in flight keep them fed."
                ),
                expected_effect="Limited by the rate of the tensor cores.",
                prior=1.0 - 0.1 * position,
            )


def _names(context: Context, nest: MatmulNest) -> tuple[Names, str]:
    """The names in the new kernel, and that of the number of stages."""
    variables = dict(zip(VARIABLES, fresh_names(nest.names, *VARIABLES), strict=True))
    origins = fresh_names(
        nest.names | set(variables.values()), f"{nest.row.name}0", f"{nest.col.name}0", f"{nest.k}0"
    )
    variables |= dict(zip(("row0", "col0", "k0"), origins, strict=True))
    tiles = fresh_names(nest.names, f"{nest.left.buffer}_tile", f"{nest.right.buffer}_tile")
    variables |= dict(zip(("left_tile", "right_tile"), tiles, strict=True))
    BM, BN, BK, WM, WN, stages = (fresh_name(context.source, name) for name in MACROS)
    threads, aligned = fresh_name(context.source, "THREADS"), fresh_name(context.source, "is_aligned")
    return Names(BM, BN, BK, WM, WN, threads, aligned, variables), stages


def _body(nest: MatmulNest, names: Names, stages: str, space: str) -> list[str]:
    v, element = names, nest.left.type
    left_size, right_size = (
        _tile_size(nest.left, names.BM, names.BK),
        _tile_size(nest.right, names.BN, names.BK),
    )
    rows, cols = f"{names.WM} / 16", f"{names.WN} / 8"
    copies = [
        f"if ({v['k0']} < {nest.k_bound}) {{",
        *indented(_copied_tile(nest.left, names, v["left_tile"], (v["row0"], names.BM), nest)),
        *indented(_copied_tile(nest.right, names, v["right_tile"], (v["col0"], names.BN), nest)),
        "}",
        "__pipeline_commit();",
    ]
    ahead = f"({stages} - 1)"
    return [
        f'static_assert({names.WM} % 16 == 0 && {names.WN} % 16 == 0, "warps compute whole fragments");',
        f'static_assert({names.BK} % 16 == 0 && {stages} >= 2, "fragments take 16 products at a time");',
        f'static_assert({names.BM} % {names.WM} == 0 && {names.BN} % {names.WN} == 0, "warps must cover the outputs");',
        f"extern __shared__ uint4 {v['tiles']}[]; // aligned to 16 bytes",
        *_tile(v["left_tile"], element, left_size, v["tiles"]),
        *_tile(v["right_tile"], element, right_size, f"{v['left_tile']} + {stages}"),
        *nest.uniform,
        f"const int {v['row0']} = blockIdx.y * {names.BM};",
        f"const int {v['col0']} = blockIdx.x * {names.BN};",
        f"const int {v['warp']} = threadIdx.x / 32;",
        f"const int {v['lane']} = threadIdx.x % 32;",
        f"const int {v['warp_row']} = {v['warp']} / ({names.BN} / {names.WN}) * {names.WM};",
        f"const int {v['warp_col']} = {v['warp']} % ({names.BN} / {names.WN}) * {names.WN};",
        f"float {v['sums']}[{rows}][{cols}][4];",
        *each(v["i"], rows, *each(v["j"], cols, *each(v["e"], "4", f"{_sum(v)} = {nest.initial};"))),
        f"auto {v['copy']} = [&](int {v['k0']}, int {v['stage']}) {{",
        *indented(copies),
        "};",
        *each(v["step"], ahead, f"{v['copy']}({v['step']} * {names.BK}, {v['step']});"),
        f"for (int {v['k0']} = 0; {v['k0']} < {nest.k_bound}; {v['k0']} += {names.BK}) {{",
        *indented(
            [
                f"const int {v['step']} = {v['k0']} / {names.BK};",
                f"__pipeline_wait_prior({stages} - 2);",
                "// All warps are done with the step before, whose tiles are the next to be overwritten.",
                "__syncthreads();",
                f"{v['copy']}({v['k0']} + {ahead} * {names.BK}, ({v['step']} + {ahead}) % {stages});",
                f"const int {v['stage']} = {v['step']} % {stages};",
                *each(v["e"], names.BK, *_products(nest, names, space), step="16"),
            ]
        ),
        "}",
        "__pipeline_wait_prior(0);",
        *_outputs(nest, names),
    ]


def _tile(name: str, element: str, size: tuple[str, str], place: str) -> list[str]:
    """A tile for each stage, at a place in dynamic shared memory."""
    kind = f"{element} (*)[{size[0]}][{size[1]}]"
    return [f"auto* const {name} = reinterpret_cast<{kind}>({place});"]


def _products(nest: MatmulNest, names: Names, space: str) -> list[str]:
    """16 products for each output of a warp."""
    v = names
    rows, cols = f"{names.WM} / 16", f"{names.WN} / 16"
    i, j = f"{v['warp_row']} + {v['i']} * 16", f"{v['warp_col']} + {v['j']} * 16"
    low, high, middle = f"{v['lane']} % 16", f"{v['lane']} / 16 * 8", f"{v['lane']} / 8 % 2 * 8"
    other = f"{v['lane']} / 16 * 8 + {v['lane']} % 8"
    if nest.left.along_k:
        left = "load_matrices", f"[{i} + {low}][{v['e']} + {high}]"
    else:
        left = "load_transposed", f"[{v['e']} + {other}][{i} + {middle}]"
    if nest.right.along_k:
        right = "load_matrices", f"[{j} + {other}][{v['e']} + {middle}]"
    else:
        right = "load_transposed", f"[{v['e']} + {low}][{j} + {high}]"
    into_left, into_right = f"{v['left']}[{v['i']}]", f"{v['right']}[{v['j']}]"
    first, second = (f"{v['sums']}[{v['i']}][2 * {v['j']}{more}]" for more in ("", " + 1"))
    return [
        f"unsigned {v['left']}[{rows}][4], {v['right']}[{cols}][4];",
        *each(v["i"], rows, f"{space}::{left[0]}({into_left}, &{v['left_tile']}[{v['stage']}]{left[1]});"),
        *each(
            v["j"], cols, f"{space}::{right[0]}({into_right}, &{v['right_tile']}[{v['stage']}]{right[1]});"
        ),
        *each(
            v["i"],
            rows,
            *each(
                v["j"],
                cols,
                f"{space}::multiply({first}, {into_left}, {into_right}[0], {into_right}[1]);",
                f"{space}::multiply({second}, {into_left}, {into_right}[2], {into_right}[3]);",
            ),
        ),
    ]


def _outputs(nest: MatmulNest, names: Names) -> list[str]:
    """The kernel's own epilogue for each sum that a lane holds."""
    v = names
    epilogue = replace_names("\n".join(nest.epilogue), {nest.accumulator: _sum(v)})
    row = f"{v['row0']} + {v['warp_row']} + {v['i']} * 16 + {v['e']} / 2 * 8 + {v['lane']} / 4"
    col = f"{v['col0']} + {v['warp_col']} + {v['j']} * 8 + {v['lane']} % 4 * 2 + {v['e']} % 2"
    return each(
        v["i"],
        f"{names.WM} / 16",
        *each(
            v["j"],
            f"{names.WN} / 8",
            *each(
                v["e"],
                "4",
                f"const int {nest.row.name} = {row};",
                f"const int {nest.col.name} = {col};",
                f"if ({nest.inside}) {{",
                *indented(epilogue.splitlines()),
                "}",
            ),
        ),
    )


def _sum(v: Names) -> str:
    return f"{v['sums']}[{v['i']}][{v['j']}][{v['e']}]"


def _copied_tile(
    operand: Operand, names: Names, tile: str, along: tuple[str, str], nest: MatmulNest
) -> list[str]:
    """A block's copy of one operand's tile, 8 elements at a time, asynchronous where all of them exist."""
    v, (origin, size) = names, along
    lines, width = (size, names.BK) if operand.along_k else (names.BK, size)
    line_origin, part_origin = (origin, v["k0"]) if operand.along_k else (v["k0"], origin)
    line, part = f"{line_origin} + {v['line']}", f"{part_origin} + {v['part']}"
    line_end, part_end = (
        (operand.axis.bound, nest.k_bound) if operand.along_k else (nest.k_bound, operand.axis.bound)
    )

    def element(offset: str) -> str:
        last = f"{part}{offset}"
        index, k_index = (line, last) if operand.along_k else (last, line)
        return operand.element_at(index, nest.k, k_index)

    one = element(f" + {v['e']}")
    target = f"{tile}[{v['stage']}][{v['line']}][{v['part']}"
    header = [
        "#pragma unroll",
        f"for (int {v['at']} = threadIdx.x; {v['at']} < {lines} * ({width} / 8); {v['at']} += {names.threads}) {{",
        f"    const int {v['line']} = {v['at']} / ({width} / 8);",
        f"    const int {v['part']} = {v['at']} % ({width} / 8) * 8;",
    ]
    piece = f"__pipeline_memcpy_async(&{target}], &{element('')}, 16);"
    careful = [
        *header,
        f"    if ({line} < {line_end} && {part} + 8 <= {part_end} && {names.aligned}(&{element('')})) {{",
        f"        {piece}",
        "    } else {",
        f"        for (int {v['e']} = 0; {v['e']} < 8; ++{v['e']}) {{",
        f"            const bool {v['inside']} = {line} < {line_end} && {part} + {v['e']} < {part_end};",
        f"            {target} + {v['e']}] = {v['inside']} ? {one} : static_cast<{operand.type}>(0.0f);",
        "        }",
        "    }",
        "}",
    ]
    if not operand.is_affine(nest.k):
        return careful
    whole = [f"{line_origin} + {lines} <= {line_end}", f"{part_origin} + {width} <= {part_end}"]
    for first in (line_origin, f"{line_origin} + 1"):
        index, k_index = (first, part_origin) if operand.along_k else (part_origin, first)
        whole.append(f"{names.aligned}(&{operand.element_at(index, nest.k, k_index)})")
    return [
        "// Lines are as far apart as the first two, so that what is aligned for both is for all.",
        f"if ({' && '.join(whole)}) {{",
        *indented([*header, f"    {piece}", "}"]),
        "} else {",
        *indented(careful),
        "}",
    ]


def _tile_size(operand: Operand, size: str, depth: str) -> tuple[str, str]:
    """Lines of a tile, and their length: with 8 elements more than are used, fragments meet no bank conflicts."""
    return (size, f"({depth} + 8)") if operand.along_k else (depth, f"({size} + 8)")
