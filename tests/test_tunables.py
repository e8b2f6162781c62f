"""The numbers of a kernel: found, replaced, combined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import plan_of
from mctskernel.experiments.tunables import TunableError, combinations, default_space, tunables, with_tunables

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


def test_options_are_replaced_in_every_launch() -> None:
    changed = with_tunables(TRITON, {"num_warps": 8, "ROWS": 4})
    options = [launch.triton for launch in plan_of(changed).launches]
    assert [each.num_warps for each in options if each is not None] == [8, 8]
    assert "ROWS: tl.constexpr = 4  # rows" in changed.source


@given(st.fixed_dictionaries({"BLOCK": st.integers(1, 4096), "DEPTH": st.integers(1, 512)}))
def test_what_was_set_is_found_again(values: dict[str, int]) -> None:
    assert tunables(with_tunables(TRITON, values)) == {**tunables(TRITON), **values}
    assert with_tunables(TRITON, tunables(TRITON)).identity == TRITON.identity


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TunableError, match=r"'BLOK' \(known: BLOCK, FLAG\)"):
        with_tunables(CUDA, {"BLOK": 1})
    with pytest.raises(TunableError, match="BLOK"):
        next(combinations(CUDA, {"BLOK": (1, 2)}, 5, 0))


def test_values_are_halves_and_doubles_within_bounds() -> None:
    space = default_space(TRITON)
    assert space["BLOCK"] == (16, 32, 64, 128, 256, 512, 1024)
    assert space["ROWS"] == (1, 2, 4, 8, 16)
    assert default_space(CUDA)["FLAG"] == (0, 1)


@given(st.integers(0, 40), st.integers(0, 5))
def test_combinations_begin_with_the_kernel_and_never_repeat(most: int, seed: int) -> None:
    space = {"BLOCK": (64, 128, 256), "FLAG": (0, 1)}
    found = list(combinations(CUDA, space, most, seed))
    assert found[0] == {"BLOCK": 64, "FLAG": 0}
    assert len(found) == len({tuple(each.values()) for each in found}) <= most + 1
    assert found == list(combinations(CUDA, space, most, seed))
    if most >= 6:
        assert len(found) == 6


def test_a_huge_space_is_sampled() -> None:
    space = {name: tuple(range(1, 1000)) for name in ("BLOCK", "ROWS", "DEPTH")}
    found = list(combinations(TRITON, space, 10, 0))
    assert len(found) == 11
    assert len({each["DEPTH"] for each in found}) > 5
