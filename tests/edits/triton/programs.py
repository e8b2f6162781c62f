"""Kernels that the tests of the Triton rules begin with."""

from tests.edits.triton.conftest import with_plan

SOFTMAX_CODE = """\
BLOCK = 64  # columns


@triton.jit
def f(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = float("-inf")
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        # é: a letter of two bytes before what is replaced
        value = tl.load(x + row * cols + col, mask=col < cols, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(value, axis=0))
    total = 0.0
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=float("-inf"))
        total += tl.sum(tl.exp(value - largest), axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + col, mask=col < cols, other=float("-inf"))
        tl.store(out + row * cols + col, tl.exp(value - largest) / total, mask=col < cols)
"""
SOFTMAX = with_plan(SOFTMAX_CODE)
