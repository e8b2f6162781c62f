"""Kernels that tests of the rules begin with, beside those of the built-in tasks."""

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
