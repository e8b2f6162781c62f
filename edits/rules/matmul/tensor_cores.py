"""Matmul of 16-bit floats on tensor cores: wmma fragments from shared tiles, which asynchronous copies fill ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mctskernel.core.edit import Category, Edit
from mctskernel.core.evaluation import Bottleneck
from mctskernel.edits.affine import polynomial
from mctskernel.edits.headers import with_headers
from mctskernel.edits.indexing import replace_names
from mctskernel.edits.rewrite import Rewrite, apply, fresh_names, indented, only_launches, with_launch
from mctskernel.edits.rule import Context, Rule, edit
from mctskernel.edits.rules.matmul.nest import MatmulNest, naive_nest
from mctskernel.edits.rules.matmul.operands import Operand
from mctskernel.edits.syntax import accesses, fresh_name
from mctskernel.edits.templates import expression
from mctskernel.edits.vectors import ALIGNED

HALVES = frozenset({"__nv_bfloat16", "nv_bfloat16", "__half", "half"})
RELIEVED_BY_TENSOR_CORES = frozenset(
    {
        Bottleneck.FP32_PIPE,
        Bottleneck.INSTRUCTION_ISSUE,
        Bottleneck.L1_THROUGHPUT,
        Bottleneck.SHARED_THROUGHPUT,
        Bottleneck.GLOBAL_LATENCY,
    }
)
"""What tensor cores relieve: the pipes that do the work without them, and what feeds those."""
MACROS = ("BM", "BN", "BK", "WM", "WN")
VARIABLES = (
    *("stage", "now", "warp", "warp_row", "warp_col", "left", "right", "sums", "patch", "copy"),
    *("i", "j", "e", "at", "line", "part", "inside"),
)
SIZES = ((128, 128, 32, 64, 32), (128, 128, 32, 32, 64), (64, 64, 32, 32, 32), (64, 128, 32, 32, 64))
"""Of a block: rows, columns and products at a time; of a warp: rows and columns."""


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


def _propose(context: Context) -> Iterable[Edit]:
    for launch, function in only_launches(context):
        nest = naive_nest(context, launch, function)
        if nest is None or nest.element != "float" or nest.k_start != "0":
            continue
        if nest.left.type not in HALVES or nest.left.type != nest.right.type:
            continue
        if nest.left.element is None or nest.right.element is None:
            continue
        names = _names(context, nest)
        macros = (names.BM, names.BN, names.BK, names.WM, names.WN)
        grid = (f"ceil_div({nest.col.extent}, {names.BN})", f"ceil_div({nest.row.extent}, {names.BM})")
        for position, sizes in enumerate(SIZES):
            defines: dict[str, int | str] = dict(zip(macros, sizes, strict=True))
            defines[names.threads] = f"({names.BM} / {names.WM} * ({names.BN} / {names.WN}) * 32)"
            rewrite = Rewrite(
                function,
                body=_body(nest, names),
                plan=with_launch(context.plan, launch, (*grid, *nest.outer_grid), (names.threads,)),
                about=f"Tensor cores compute {names.BM} x {names.BN} outputs a block, {names.WM} x {names.WN} a warp.",
                defines=defines,
                functions=[ALIGNED.format(name=names.aligned)],
                more=with_headers(context.source, "mma.h", "cuda_pipeline_primitives.h"),
            )
            yield edit(
                Category.TENSOR_CORES,
                f"multiply on tensor cores in {function.name}, {sizes[0]} x {sizes[1]} outputs a block, "
                f"{sizes[3]} x {sizes[4]} a warp",
                apply(context, rewrite),
                rationale=(
                    f"{nest.left.buffer} and {nest.right.buffer} are 16-bit floats added up in float32: just what "
                    "tensor cores do, at 15 times the rate of the other pipes."
                ),
                expected_effect="Limited by how fast tiles reach shared memory instead of by multiplications.",
                prior=1.0 - 0.1 * position,
            )


def _names(context: Context, nest: MatmulNest) -> Names:
    variables = dict(zip(VARIABLES, fresh_names(nest.names, *VARIABLES), strict=True))
    origins = fresh_names(
        nest.names | set(variables.values()), f"{nest.row.name}0", f"{nest.col.name}0", f"{nest.k}0"
    )
    variables |= dict(zip(("row0", "col0", "k0"), origins, strict=True))
    tiles = fresh_names(nest.names, f"{nest.left.buffer}_tile", f"{nest.right.buffer}_tile")
    variables |= dict(zip(("left_tile", "right_tile"), tiles, strict=True))
    BM, BN, BK, WM, WN = (fresh_name(context.source, name) for name in MACROS)
    threads, aligned = fresh_name(context.source, "THREADS"), fresh_name(context.source, "is_aligned")
    return Names(BM, BN, BK, WM, WN, threads, aligned, variables)


def _body(nest: MatmulNest, names: Names) -> list[str]:
    """The body of the kernel: copies of the next tile in flight while warps multiply those of the present one."""
    v, element = names, nest.left.type
    left_size, right_size = (
        tile_size(nest.left, names.BM, names.BK),
        tile_size(nest.right, names.BN, names.BK),
    )
    rows, cols = f"{names.WM} / 16", f"{names.WN} / 16"
    fragment = "nvcuda::wmma::fragment<nvcuda::wmma::{}, 16, 16, 16, {}>"
    left_layout, right_layout = _layout(nest.left, k_last=True), _layout(nest.right, k_last=False)
    left = fragment.format("matrix_a", f"{element}, nvcuda::wmma::{left_layout}_major")
    right = fragment.format("matrix_b", f"{element}, nvcuda::wmma::{right_layout}_major")
    fill_next = [
        *copied_tile(nest.left, names, v["left_tile"], (v["row0"], names.BM), nest),
        *copied_tile(nest.right, names, v["right_tile"], (v["col0"], names.BN), nest),
        "__pipeline_commit();",
    ]
    load_left = _at(nest.left, v["left_tile"], v["now"], f"{v['warp_row']} + {v['i']} * 16", v["e"])
    load_right = _at(nest.right, v["right_tile"], v["now"], f"{v['warp_col']} + {v['j']} * 16", v["e"])
    sums = f"{v['sums']}[{v['i']}][{v['j']}]"
    return [
        f'static_assert({names.WM} % 16 == 0 && {names.WN} % 16 == 0, "warps compute whole fragments");',
        f'static_assert({names.BK} % 16 == 0, "fragments take 16 products at a time");',
        f'static_assert({names.BM} % {names.WM} == 0 && {names.BN} % {names.WN} == 0, "warps must cover the outputs");',
        f"__shared__ alignas(32) {element} {v['left_tile']}[2][{left_size[0]}][{left_size[1]}];",
        f"__shared__ alignas(32) {element} {v['right_tile']}[2][{right_size[0]}][{right_size[1]}];",
        f'static_assert(sizeof({v["left_tile"]}) >= {names.threads} / 32 * 16 * 20 * 4, "sums pass through the tile");',
        *nest.uniform,
        f"const int {v['row0']} = blockIdx.y * {names.BM};",
        f"const int {v['col0']} = blockIdx.x * {names.BN};",
        f"const int {v['warp']} = threadIdx.x / 32;",
        f"const int {v['warp_row']} = {v['warp']} / ({names.BN} / {names.WN}) * {names.WM};",
        f"const int {v['warp_col']} = {v['warp']} % ({names.BN} / {names.WN}) * {names.WN};",
        f"{fragment.format('accumulator', 'float')} {v['sums']}[{rows}][{cols}];",
        *each(v["i"], rows, *each(v["j"], cols, f"nvcuda::wmma::fill_fragment({sums}, {nest.initial});")),
        f"auto {v['copy']} = [&](int {v['k0']}, int {v['stage']}) {{",
        *indented(fill_next),
        "};",
        f"{v['copy']}(0, 0);",
        f"for (int {v['k0']} = 0; {v['k0']} < {nest.k_bound}; {v['k0']} += {names.BK}) {{",
        *indented(
            [
                f"const int {v['now']} = {v['k0']} / {names.BK} % 2;",
                "// Beyond the last product this fills a tile with zeros that nobody reads.",
                f"{v['copy']}({v['k0']} + {names.BK}, 1 - {v['now']});",
                "__pipeline_wait_prior(1);",
                "__syncthreads();",
                *each(
                    v["e"],
                    names.BK,
                    f"{left} {v['left']}[{rows}];",
                    f"{right} {v['right']}[{cols}];",
                    *each(
                        v["i"],
                        rows,
                        f"nvcuda::wmma::load_matrix_sync({v['left']}[{v['i']}], {load_left}, {left_size[1]});",
                    ),
                    *each(
                        v["j"],
                        cols,
                        f"nvcuda::wmma::load_matrix_sync({v['right']}[{v['j']}], {load_right}, {right_size[1]});",
                    ),
                    *each(
                        v["i"],
                        rows,
                        *each(
                            v["j"],
                            cols,
                            f"nvcuda::wmma::mma_sync({sums}, {v['left']}[{v['i']}], {v['right']}[{v['j']}], {sums});",
                        ),
                    ),
                    step="16",
                ),
                "__syncthreads();",
            ]
        ),
        "}",
        "__pipeline_wait_prior(0);",
        "__syncthreads();",
        *_outputs(nest, names, sums),
    ]


def _outputs(nest: MatmulNest, names: Names, sums: str) -> list[str]:
    """Sums leave their fragments through shared memory, 16 x 16 at a time, and meet the kernel's own epilogue."""
    v = names
    patch = f"{v['patch']}[{v['at']} / 16 * 20 + {v['at']} % 16]"
    epilogue = replace_names("\n".join(nest.epilogue), {nest.accumulator: patch})
    return [
        f"float* const {v['patch']} = reinterpret_cast<float*>({v['left_tile']}) + {v['warp']} * (16 * 20);",
        *each(
            v["i"],
            f"{names.WM} / 16",
            *each(
                v["j"],
                f"{names.WN} / 16",
                f"nvcuda::wmma::store_matrix_sync({v['patch']}, {sums}, 20, nvcuda::wmma::mem_row_major);",
                "__syncwarp();",
                "#pragma unroll",
                f"for (int {v['at']} = threadIdx.x % 32; {v['at']} < 256; {v['at']} += 32) {{",
                *indented(
                    [
                        f"const int {nest.row.name} = {v['row0']} + {v['warp_row']} + {v['i']} * 16 + {v['at']} / 16;",
                        f"const int {nest.col.name} = {v['col0']} + {v['warp_col']} + {v['j']} * 16 + {v['at']} % 16;",
                        f"if ({nest.inside}) {{",
                        *indented(epilogue.splitlines()),
                        "}",
                    ]
                ),
                "}",
                "__syncwarp();",
            ),
        ),
    ]


def copied_tile(
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
    if not _is_affine(operand, nest):
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


def _is_affine(operand: Operand, nest: MatmulNest) -> bool:
    """Whether an operand's elements are neighbours along its lines, which are equally far apart."""
    found = accesses(expression(operand.element or operand.text))
    if len(found) != 1 or len(found[0].indices) != 1:
        return False
    index = polynomial(found[0].indices[0])
    along, across = (nest.k, operand.axis.name) if operand.along_k else (operand.axis.name, nest.k)
    step, stride = index.coefficient(along), index.coefficient(across)
    return (
        step is not None and step.constant == 1 and stride is not None and not stride.names & {along, across}
    )


def tile_size(operand: Operand, size: str, depth: str) -> tuple[str, str]:
    """Lines of a tile, and their length: with 8 elements more than are used, fragments meet no bank conflicts."""
    return (size, f"({depth} + 8)") if operand.along_k else (depth, f"({size} + 8)")


def _at(operand: Operand, tile: str, stage: str, index: str, k: str) -> str:
    line, part = (index, k) if operand.along_k else (k, index)
    return f"&{tile}[{stage}][{line}][{part}]"


def _layout(operand: Operand, *, k_last: bool) -> str:
    """How wmma calls a tile's layout: the left operand's rows end in k, the right one's begin with it."""
    return "row" if operand.along_k == k_last else "col"


def each(variable: str, count: str, *body: str, step: str = "1") -> list[str]:
    update = f"++{variable}" if step == "1" else f"{variable} += {step}"
    loop = f"for (int {variable} = 0; {variable} < {count}; {update}) {{"
    return ["#pragma unroll", loop, *indented(body), "}"]


RULES = (
    Rule(
        "matmul-tensor-cores",
        Category.TENSOR_CORES,
        RELIEVED_BY_TENSOR_CORES,
        _propose,
        prior=3.0,
    ),
)
