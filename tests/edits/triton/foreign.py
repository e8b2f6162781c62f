"""Kernels in the forms that people write: products over pointers with strides, and whole rows."""

MATMUL = '''"""
[[launch]]
kernel = "matmul"
grid = ["ceil_div(M, TILE_M) * ceil_div(N, TILE_N)"]
args = ["a", "b", "c", "M", "N", "K", "K", 1, "N", 1, "N", 1]
constexprs = { BLOCK_M = "TILE_M", BLOCK_N = "TILE_N", BLOCK_K = "TILE_K", GROUP = 2 }
"""

import triton
import triton.language as tl

TILE_M = 128
TILE_N = 128
TILE_K = 32


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr = 8,
):
    pid = tl.program_id(axis=0).to(tl.int64)
    width = GROUP * tl.cdiv(N, BLOCK_N)
    first = pid // width * GROUP
    size = min(tl.cdiv(M, BLOCK_M) - first, GROUP)
    pid_m = first + pid % width % size
    pid_n = pid % width // size
    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, total.to(tl.bfloat16), mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))
'''
"""A product with groups of tiles, indices that wrap around, and pointers that move on."""

RMSNORM = '''"""
[[launch]]
kernel = "rms"
grid = ["rows"]
args = ["out", "cols", "x", "weight", "cols", "eps"]
constexprs = { BLOCK = "next_pow2(cols)" }
"""

import triton
import triton.language as tl


@triton.jit
def scaled(x, scale):
    return x * scale


@triton.jit
def rms(y_ptr, stride, x_ptr, w_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    y_ptr += row * stride
    x_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + cols, mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / n_cols + eps)
    x = scaled(x, scale)
    tl.store(y_ptr + cols, x * w, mask=mask)
'''
"""A row in one block, with a pointer of its own and a function."""
