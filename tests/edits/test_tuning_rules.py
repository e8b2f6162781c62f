"""Macros that are choices get other values; macros that are facts don't."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mctskernel.core.evaluation import Resources

Propose = Callable[..., dict[str, str]]
WithPlan = Callable[..., str]

LINE = """\
#define BLOCK 256 // a power of two
#define RADIUS 2
__global__ void f(const float* x, float* out, int rows, int cols) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < rows * cols) {
        float sum = 0.0f;
        for (int k = -RADIUS; k <= RADIUS; ++k) sum += x[min(max(i + k, 0), rows * cols - 1)];
        out[i] = sum;
    }
}
"""
PLANE = """\
#define BLOCK_X 16
#define BLOCK_Y 16
__global__ void f(const float* x, float* out, int rows, int cols) {
    int col = blockIdx.x * BLOCK_X + threadIdx.x, row = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (row < rows && col < cols) out[row * cols + col] = x[row * cols + col];
}
"""
TILED = """\
#define TILE 16
#define ROWS 16
__global__ void f(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[ROWS][TILE];
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * ROWS + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = row < rows && col < cols ? x[row * cols + col] : 0.0f;
    __syncthreads();
    if (row < rows && col < cols) out[row * cols + col] = tile[threadIdx.y][threadIdx.x];
}
"""
LINE_PLAN = {"grid": '"ceil_div(rows * cols, BLOCK)"', "block": '"BLOCK"'}
PLANE_PLAN = {
    "grid": '"ceil_div(cols, BLOCK_X)", "ceil_div(rows, BLOCK_Y)"',
    "block": '"BLOCK_X", "BLOCK_Y"',
}
TILED_PLAN = {"grid": '"ceil_div(cols, TILE)", "ceil_div(rows, ROWS)"', "block": '"TILE", "ROWS"'}


def test_block_sizes_change_by_powers_of_two_in_whole_warps(
    propose: Propose, with_plan_text: WithPlan
) -> None:
    source = with_plan_text(LINE, **LINE_PLAN)
    smaller = propose("smaller-blocks", source)
    assert list(smaller) == ["BLOCK 256 -> 128", "BLOCK 256 -> 64", "BLOCK 256 -> 32"]
    assert smaller["BLOCK 256 -> 64"] == source.replace("BLOCK 256 //", "BLOCK 64 //")
    assert list(propose("larger-blocks", source)) == ["BLOCK 256 -> 512", "BLOCK 256 -> 1024"]
    assert list(propose("smaller-blocks", source.replace("256", "64"))) == ["BLOCK 64 -> 32"]


def test_blocks_stay_within_the_registers_there_are(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(LINE, **LINE_PLAN)
    resources = (Resources("f", registers=100, shared_bytes=0),)
    assert list(propose("larger-blocks", source, resources=resources)) == ["BLOCK 256 -> 512"]


def test_facts_of_the_problem_are_left_alone(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(LINE, **LINE_PLAN)
    for rule in ("items-and-tiles", "grid-size", "unroll-factor", "reshaped-blocks"):
        assert propose(rule, source) == {}


def test_a_block_that_is_also_written_as_a_number_is_left_alone(
    propose: Propose, with_plan_text: WithPlan
) -> None:
    code = LINE.replace(
        "float sum = 0.0f;", "__shared__ float seen[8]; seen[threadIdx.x / 32] = 0.0f; float sum = 0;"
    )
    assert propose("smaller-blocks", with_plan_text(code, **LINE_PLAN)) == {}


def test_blocks_of_two_axes_are_reshaped(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(PLANE, **PLANE_PLAN)
    reshaped = propose("reshaped-blocks", source)
    wide = reshaped["BLOCK_X 16 -> 32, BLOCK_Y 16 -> 8"]
    assert wide == source.replace("BLOCK_X 16", "BLOCK_X 32").replace("BLOCK_Y 16", "BLOCK_Y 8")


def test_axes_that_a_shared_tile_may_tie_are_left_alone(propose: Propose, with_plan_text: WithPlan) -> None:
    source = with_plan_text(TILED, **TILED_PLAN)
    for rule in ("reshaped-blocks", "smaller-blocks", "larger-blocks"):
        assert propose(rule, source) == {}


def test_items_a_thread_and_capped_grids_are_choices(propose: Propose, with_plan_text: WithPlan) -> None:
    code = """\
#define BLOCK 128
#define ITEMS 4
#define GRID 264
__global__ void f(const float* x, float* out, int rows, int cols) {
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < rows * cols; i += gridDim.x * BLOCK) out[i] = x[i];
}
"""
    items = with_plan_text(code, grid='"ceil_div(rows * cols, BLOCK * ITEMS)"', block='"BLOCK"')
    assert "ITEMS 4 -> 8" in propose("items-and-tiles", items)
    assert propose("grid-size", items) == {}
    capped = with_plan_text(code, grid='"min(GRID, ceil_div(rows * cols, BLOCK))"', block='"BLOCK"')
    assert "GRID 264 -> 132" in propose("grid-size", capped)
    assert propose("items-and-tiles", capped) == {}


def test_tiles_behind_a_computed_block_scale_together(propose: Propose, with_plan_text: WithPlan) -> None:
    code = """\
#define BM 64
#define TM 4
#define THREADS (BM / TM)
__global__ void f(const float* x, float* out, int rows, int cols) {
    for (int i = 0; i < TM; ++i) {
        int row = blockIdx.x * BM + threadIdx.x * TM + i;
        for (int col = 0; row < rows && col < cols; ++col) out[row * cols + col] = x[row * cols + col];
    }
}
"""
    proposed = propose(
        "items-and-tiles", with_plan_text(code, grid='"ceil_div(rows, BM)"', block='"THREADS"')
    )
    assert "BM 64 -> 128, TM 4 -> 8" in proposed
    assert "TM 4 -> 2" in proposed


@pytest.mark.parametrize("used", [False, True])
def test_a_macro_that_only_unrolls_is_a_choice(
    propose: Propose, with_plan_text: WithPlan, *, used: bool
) -> None:
    code = LINE.replace("        for (int k", "        #pragma unroll FACTOR\n        for (int k")
    code = "#define FACTOR 2\n" + code.replace("sum = 0.0f", "sum = FACTOR - 2" if used else "sum = 0.0f")
    proposed = propose("unroll-factor", with_plan_text(code, **LINE_PLAN))
    assert ("FACTOR 2 -> 4" in proposed) is not used
