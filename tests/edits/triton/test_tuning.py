"""Which constants count as choices, and within which bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mctskernel.edits.patch import unified_diff

from .conftest import with_plan
from .programs import SOFTMAX, SOFTMAX_CODE

Propose = Callable[..., dict[str, str]]
Verify = Callable[[str], None]


def changed(before: str, after: str) -> list[str]:
    """The lines that a change takes away and adds."""
    lines = unified_diff(before, after, context=0).splitlines()
    return [line for line in lines if not line.startswith("@@")]


def test_a_block_size_changes_in_its_own_line(propose: Propose, verify: Verify) -> None:
    larger = propose("triton-block-sizes", SOFTMAX)["BLOCK 64 -> 128"]
    assert changed(SOFTMAX, larger) == ["-BLOCK = 64  # columns", "+BLOCK = 128  # columns"]
    verify(larger)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("col < cols", "col < cols and BLOCK > 1"),  # decides something
        ("row * cols + col,", "row * cols + col // BLOCK * BLOCK + col % BLOCK,"),  # is a fact of the layout
        (
            "cols, BLOCK: tl",
            "cols, OTHER: tl",
        ),  # isn't the parameter's name, so that the code reads the module's
    ],
)
def test_a_constant_that_is_more_than_a_size_stays(propose: Propose, old: str, new: str) -> None:
    assert old in SOFTMAX_CODE
    assert propose("triton-block-sizes", with_plan(SOFTMAX_CODE.replace(old, new))) == {}


def test_a_size_that_nothing_is_covered_with_stays(propose: Propose) -> None:
    code = """\
BINS = 64


@triton.jit
def f(x, out, cols, BINS: tl.constexpr):
    col = tl.arange(0, BINS)
    tl.store(out + col, tl.load(x + col, mask=col < cols), mask=col < cols)
"""
    assert propose("triton-block-sizes", with_plan(code, constexprs='BINS = "BINS"')) == {}


def test_threads_get_a_bounded_number_of_elements(propose: Propose) -> None:
    warps = propose("triton-warps", SOFTMAX.replace("BLOCK = 64 ", "BLOCK = 1024 "))
    assert set(warps) == {"set num_warps=2", "set num_warps=4"}
    sizes = propose("triton-block-sizes", SOFTMAX.replace("BLOCK = 64 ", "BLOCK = 4096 "))
    assert all(int(title.rpartition(" ")[2]) < 4096 for title in sizes)
    assert "BLOCK 64 -> 8" not in propose("triton-block-sizes", SOFTMAX)


def test_warps_are_written_into_the_plan_of_their_launch(propose: Propose) -> None:
    four = propose("triton-warps", SOFTMAX)["set num_warps=2"]
    assert changed(SOFTMAX, four) == ["-num_warps = 1", "+num_warps = 2"]


def test_stages_are_for_loops_that_multiply_tiles(propose: Propose) -> None:
    assert propose("triton-stages", SOFTMAX) == {}
    code = """\
BLOCK = 16


@triton.jit
def f(x, out, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tile = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        left = tl.load(x + i[:, None] * cols + start + i[None, :])
        tile = tl.dot(left, left, tile)
    tl.store(out + i[:, None] * cols + i[None, :], tile)
"""
    source = with_plan(code, warps=4)
    assert "set num_stages=4" in propose("triton-stages", source)
    assert min(int(title.split()[-1]) for title in propose("triton-block-sizes", source)) >= 16


def test_the_cap_of_a_grid_is_a_choice(propose: Propose) -> None:
    code = "PROGRAMS = 264\n" + SOFTMAX_CODE
    assert "PROGRAMS 264 -> 132" in propose("triton-grid-size", with_plan(code, grid='"min(PROGRAMS, rows)"'))
    assert propose("triton-grid-size", with_plan(code, grid='"ceil_div(rows, PROGRAMS)"')) == {}
