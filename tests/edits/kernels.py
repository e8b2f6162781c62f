"""Kernels that tests of the rules begin with, beside those of the built-in tasks."""

from __future__ import annotations

from dataclasses import replace

from mctskernel.core.task import Task


def verified_everywhere(task: Task) -> Task:
    """The task with its held-out shapes among those that every kernel is verified at."""
    return replace(task, verify_shapes=(*task.verify_shapes, *task.held_out_shapes), held_out_shapes=())


PLAN = """\
/*
[[launch]]
kernel = "f"
grid = [{grid}]
block = [{block}]
args = ["x", "out", "rows", "cols"]
*/
"""


def planned(code: str, grid: str, block: str) -> str:
    """A kernel `f(x, out, rows, cols)` with its launch plan."""
    return PLAN.format(grid=grid, block=block) + code


COPY = planned(
    """\
#define BLOCK 256
__global__ void f(float* x, float* out, int rows, int cols) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < rows * cols) {
        out[i] = 2.0f * x[i];
    }
}
""",
    '"ceil_div(rows * cols, BLOCK)"',
    '"BLOCK"',
)
TILE = planned(
    """\
#define TILE 32
__global__ void f(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE];
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row < rows && col < cols) tile[threadIdx.y][threadIdx.x] = x[row * cols + col];
    __syncthreads();
    col = blockIdx.x * TILE + threadIdx.y, row = blockIdx.y * TILE + threadIdx.x;
    if (row < rows && col < cols) out[col * rows + row] = tile[threadIdx.x][threadIdx.y];
}
""",
    '"ceil_div(cols, TILE)", "ceil_div(rows, TILE)"',
    '"TILE", "TILE"',
)
LINE = planned(
    """\
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
""",
    '"ceil_div(rows * cols, BLOCK)"',
    '"BLOCK"',
)
PLANE = planned(
    """\
#define BLOCK_X 16
#define BLOCK_Y 16
__global__ void f(const float* x, float* out, int rows, int cols) {
    int col = blockIdx.x * BLOCK_X + threadIdx.x, row = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (row < rows && col < cols) out[row * cols + col] = x[row * cols + col];
}
""",
    '"ceil_div(cols, BLOCK_X)", "ceil_div(rows, BLOCK_Y)"',
    '"BLOCK_X", "BLOCK_Y"',
)
LITERAL = planned(
    COPY.partition("*/\n")[2].replace("#define BLOCK 256\n", "").replace("BLOCK", "256"),
    '"ceil_div(rows * cols, 256)"',
    "256",
)
