"""Hints, unrolling, coarsening, padding and literal blocks: where they apply, and where they must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mctskernel.core.evaluation import Resources

Propose = Callable[..., dict[str, str]]
WithPlan = Callable[..., str]

COPY = """\
#define BLOCK 256
__global__ void f(float* x, float* out, int rows, int cols) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < rows * cols) {
        out[i] = 2.0f * x[i];
    }
}
"""
COPY_PLAN = {"grid": '"ceil_div(rows * cols, BLOCK)"', "block": '"BLOCK"'}
TRANSPOSE = """\
#define TILE 32
__global__ void f(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE];
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row < rows && col < cols) tile[threadIdx.y][threadIdx.x] = x[row * cols + col];
    __syncthreads();
    col = blockIdx.x * TILE + threadIdx.y, row = blockIdx.y * TILE + threadIdx.x;
    if (row < rows && col < cols) out[col * rows + row] = tile[threadIdx.x][threadIdx.y];
}
"""
TRANSPOSE_PLAN = {"grid": '"ceil_div(cols, TILE)", "ceil_div(rows, TILE)"', "block": '"TILE", "TILE"'}


def test_pointers_are_restricted_and_const_where_only_read(
    propose: Propose, with_plan_text: WithPlan
) -> None:
    source = with_plan_text(COPY, **COPY_PLAN)
    assert propose("pointer-qualifiers", source) == {
        "__restrict__ and const on the pointers of f": source.replace(
            "(float* x, float* out", "(const float* __restrict__ x, float* __restrict__ out"
        )
    }


@pytest.mark.parametrize(
    "use",
    ["x[i] = 0.0f;", "*x = 1.0f;", "float* p = x; p[i] = 0.0f;", "atomicAdd(&x[i], 1.0f);", "x[i] += 1.0f;"],
)
def test_a_pointer_that_may_be_written_through_is_not_const(
    propose: Propose, with_plan_text: WithPlan, use: str
) -> None:
    source = with_plan_text(COPY.replace("out[i] = 2.0f * x[i];", f"{use} out[i] = x[i];"), **COPY_PLAN)
    assert list(propose("pointer-qualifiers", source)) == ["__restrict__ on the pointers of f"]


def test_a_buffer_that_is_passed_twice_is_not_restricted(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(COPY, **COPY_PLAN).replace('"x", "out"', '"out", "out"')
    assert list(propose("pointer-qualifiers", source)) == ["const on the pointers of f"]


def test_launch_bounds_name_the_block(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(COPY, **COPY_PLAN)
    assert propose("launch-bounds", source) == {
        "__launch_bounds__(BLOCK) on f": source.replace("void f(", "void __launch_bounds__(BLOCK) f(")
    }
    tight = propose("launch-bounds", source, resources=(Resources("f", registers=64, shared_bytes=0),))
    assert "__launch_bounds__(BLOCK, 5) on f" in tight
    assert "__launch_bounds__(BLOCK, 4) on f" not in tight


def test_a_block_that_depends_on_the_shape_has_no_bounds(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(COPY, grid='"ceil_div(rows * cols, BLOCK)"', block='"min(BLOCK, rows * cols)"')
    assert propose("launch-bounds", source) == {}


def test_loops_are_unrolled_by_pragmas(propose: Propose, with_plan_text: WithPlan) -> None:
    code = COPY.replace(
        "        out[i] = 2.0f * x[i];\n",
        "        for (int k = 0; k < 4; ++k) {\n            out[i] += x[i];\n        }\n",
    )
    source = with_plan_text(code, **COPY_PLAN)
    proposed = propose("unroll", source)
    full = proposed["unroll loop 1 of f (for (int k = 0; k < 4; ++k)) fully"]
    assert full == source.replace("        for (int k", "        #pragma unroll\n        for (int k")
    again = propose("unroll", full)
    four = again["unroll loop 1 of f (for (int k = 0; k < 4; ++k)) by 4"]
    assert four == full.replace("#pragma unroll\n", "#pragma unroll 4\n")


def test_a_loop_without_braces_around_it_is_left_alone(propose: Propose, with_plan_text: WithPlan) -> None:
    code = COPY.replace("out[i] = 2", "if (i) for (int k = 0; k < 4; ++k) out[i] = 2")
    assert propose("unroll", with_plan_text(code, **COPY_PLAN)) == {}


def test_a_loop_over_an_array_in_registers_stays_unrolled(propose: Propose, with_plan_text: WithPlan) -> None:
    loop = "float own[4];\n#pragma unroll\nfor (int k = 0; k < 4; ++k) {{ own[k] = x[i]; }}\nout[i] = own[1];"
    code = COPY.replace("out[i] = 2.0f * x[i];", loop.replace("{{", "{").replace("}}", "}"))
    assert propose("unroll", with_plan_text(code, **COPY_PLAN)) == {}


def test_threads_are_coarsened_under_their_guard(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(COPY, **COPY_PLAN)
    proposed = propose("coarsen-threads", source)["4 elements a thread along x in f"]
    assert 'grid = ["ceil_div(rows * cols, BLOCK * ITEMS)"]' in proposed
    assert (
        proposed.partition("*/\n")[2]
        == """\
#define BLOCK 256
#define ITEMS 4
__global__ void f(float* x, float* out, int rows, int cols) {
    #pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        int i = (blockIdx.x * ITEMS + item) * BLOCK + threadIdx.x;
        if (i < rows * cols) {
            out[i] = 2.0f * x[i];
        }
    }
}
"""
    )


def test_an_early_return_becomes_a_step_to_the_next_element(
    propose: Propose, with_plan_text: WithPlan
) -> None:
    code = COPY.replace(
        "    if (i < rows * cols) {\n        out[i] = 2.0f * x[i];\n    }\n",
        "    if (i >= rows * cols) return;\n    out[i] = 2.0f * x[i];\n",
    )
    proposed = propose("coarsen-threads", with_plan_text(code, **COPY_PLAN))
    assert "if (i >= rows * cols) continue;" in proposed["2 elements a thread along x in f"]


def test_a_grid_of_fixed_size_strides(propose: Propose, with_plan_text: WithPlan) -> None:
    proposed = propose("grid-stride-loop", with_plan_text(COPY, **COPY_PLAN))
    (text,) = proposed.values()
    assert 'grid = ["min(GRID, ceil_div(rows * cols, BLOCK))"]' in text
    loop = "for (int i = blockIdx.x * BLOCK + threadIdx.x; i < rows * cols; i += gridDim.x * BLOCK) {"
    assert loop in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        out[i]", "        __syncwarp();\n        out[i]"),
        ("    int i", "    __shared__ float s[1];\n    int i"),
        ("out[i] = 2.0f * x[i];", "out[i] = blockIdx.x;"),
        ("out[i] = 2.0f * x[i];", "if (i > 5) return; out[i] = x[i];"),
        ("    if (i < rows * cols) {", "    float y = x[i];\n    if (i < rows * cols) {"),
        ("i < rows * cols", "i < rows"),
        ("    if (i < rows * cols) {", "    i += 1;\n    if (i < rows * cols) {"),
        ("    if (i < rows * cols) {\n", "    {\n"),
    ],
)
def test_kernels_that_are_not_elementwise_are_not_coarsened(
    propose: Propose, with_plan_text: WithPlan, old: str, new: str
) -> None:
    assert old in COPY
    source = with_plan_text(COPY.replace(old, new), **COPY_PLAN)
    assert propose("coarsen-threads", source) == {}
    assert propose("grid-stride-loop", source) == {}


def test_a_tile_that_warps_walk_down_is_padded(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(TRANSPOSE, **TRANSPOSE_PLAN)
    proposed = propose("pad-shared-arrays", source)
    padded = source.replace("tile[TILE][TILE]", "tile[TILE][TILE + 1]")
    assert proposed == {"pad tile in f by one column": padded}
    assert propose("pad-shared-arrays", padded) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tile[threadIdx.x][threadIdx.y]", "tile[threadIdx.y][threadIdx.x]"),
        ("float tile[TILE][TILE]", "double tile[TILE][TILE]"),
        ("__syncthreads();", "__syncthreads(); float* flat = (float*)tile; flat[0] = 1.0f;"),
    ],
)
def test_tiles_without_conflicts_or_with_another_view_are_not_padded(
    propose: Propose, with_plan_text: WithPlan, old: str, new: str
) -> None:
    assert old in TRANSPOSE
    assert propose("pad-shared-arrays", with_plan_text(TRANSPOSE.replace(old, new), **TRANSPOSE_PLAN)) == {}


LITERAL = COPY.replace("#define BLOCK 256\n", "").replace("BLOCK", "256")


@pytest.mark.parametrize("extent", ["256", "blockDim.x"])
def test_a_literal_block_becomes_a_macro(propose: Propose, with_plan_text: WithPlan, extent: str) -> None:
    code = LITERAL.replace("* 256", f"* {extent}")
    proposed = propose(
        "name-block-size", with_plan_text(code, grid='"ceil_div(rows * cols, 256)"', block="256")
    )
    text = proposed["BLOCK = 128 instead of 256 threads along x"]
    assert "#define BLOCK 128\n" in text
    assert 'block = ["BLOCK"]' in text
    assert 'grid = ["ceil_div(rows * cols, BLOCK)"]' in text
    assert "256" not in text


@pytest.mark.parametrize(
    "code",
    [
        LITERAL.replace("out[i] = 2.0f * x[i];", "out[i] = x[i] + 256;"),
        LITERAL.replace("out[i] = 2.0f * x[i];", "out[i] = x[i] + (threadIdx.x == 255);"),
        LITERAL.replace("    int i", "    __shared__ float s[64];\n    int i"),
        "#define OTHER 256\n" + LITERAL.replace("* 256", "* OTHER"),
    ],
)
def test_a_literal_block_whose_number_means_more_is_left_alone(
    propose: Propose, with_plan_text: WithPlan, code: str
) -> None:
    source = with_plan_text(code, grid='"ceil_div(rows * cols, 256)"', block="256")
    assert propose("name-block-size", source) == {}
