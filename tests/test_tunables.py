"""The numbers of a kernel: found, replaced, combined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.kernel import Kernel, Language
from mctskernel.experiments.tunables import combinations, tunables, with_tunables

CUDA = Kernel(
    """\
/*
#define NOT_CODE 3
[[launch]]
kernel = "k"
grid = [1]
block = ["BLOCK"]
*/
#define BLOCK 64
  #  define FLAG 0   // a switch
#define WARPS (BLOCK / 32)
#define SCALE 2.5f
#define NAME(x) x
extern "C" __global__ void k() { int BLOCKS = BLOCK; }
"""
)

TRITON = Kernel(
    '''\
"""
[[launch]]
kernel = "k"
grid = [1]
num_warps = 4

[[launch]]
kernel = "k"
grid = [2]
num_warps = 4
num_stages = 2
"""

import triton
import triton.language as tl

BLOCK = 128
ROWS: tl.constexpr = 2  # rows
DEPTH = tl.constexpr(32)
HALF = BLOCK // 2


@triton.jit
def k():
    BLOCK_HERE = 7
''',
    Language.TRITON,
)


def test_macros_with_whole_numbers_are_tunable() -> None:
    assert tunables(CUDA) == {"BLOCK": 64, "FLAG": 0}


def test_constants_and_what_every_launch_states_alike_are_tunable() -> None:
    assert tunables(TRITON) == {"BLOCK": 128, "ROWS": 2, "DEPTH": 32, "num_warps": 4}


def test_a_number_is_replaced_where_it_is_defined_and_nowhere_else() -> None:
    changed = with_tunables(CUDA, {"BLOCK": 256})
    assert changed.source == CUDA.source.replace("BLOCK 64", "BLOCK 256")
    assert changed.macros["WARPS"] == 8


@given(st.integers(0, 40), st.integers(0, 5))
def test_combinations_begin_with_the_kernel_and_never_repeat(most: int, seed: int) -> None:
    space = {"BLOCK": (64, 128, 256), "FLAG": (0, 1)}
    found = list(combinations(CUDA, space, most, seed))
    assert found[0] == {"BLOCK": 64, "FLAG": 0}
    assert len(found) == len({tuple(each.values()) for each in found}) <= most + 1
    assert found == list(combinations(CUDA, space, most, seed))
    if most >= 6:
        assert len(found) == 6
