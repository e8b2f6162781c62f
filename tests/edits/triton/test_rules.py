"""What the Triton rules make of small kernels is right at awkward shapes; what they don't understand stays."""

from collections.abc import Callable

import pytest

from mctskernel.edits.patch import unified_diff

from .conftest import with_plan
from .programs import SOFTMAX, SOFTMAX_CODE

Propose = Callable[..., dict[str, str]]
Verify = Callable[[str], None]


def only(proposed: dict[str, str], part: str) -> str:
    """The one proposal with a text in its title."""
    found = [text for title, text in proposed.items() if part in title]
    assert len(found) == 1, list(proposed)
    return found[0]


def test_a_whole_row_is_loaded_once(propose: Propose, verify: Verify) -> None:
    whole = only(propose("triton-whole-rows", SOFTMAX), "num_warps=1")
    assert "def f(x, out, cols: tl.constexpr, BLOCK: tl.constexpr)" in whole
    assert 'BLOCK = "next_pow2(cols)", cols = "cols"' in whole
    assert 'args = ["x", "out"]' in whole
    assert "BLOCK = 64" not in whole
    verify(whole)


# A rule, and changes of the softmax after which it must leave it alone.
LOOK_ALIKES = {
    "triton-whole-rows": [
        ("mask=col < cols)", "mask=col < cols + 1)"),  # a mask that ends elsewhere
        ("range(0, cols, BLOCK)", "range(BLOCK, cols, BLOCK)"),  # not the whole row
        ('grid = ["rows"]', 'grid = ["rows * ceil_div(cols, BLOCK)"]'),  # a grid that counts blocks
    ],
    "triton-several-rows": [
        ("range(0, cols, BLOCK)", "range(0, cols - row, BLOCK)"),  # a loop as long as the row says
        ("tl.max(value, axis=0)", "tl.max(value, axis=-1)"),  # over no known axis
        ("    total = 0.0\n", "    if row > 1:\n        largest += 1.0\n    total = 0.0\n"),
    ],
    "triton-block-sizes": [
        ("col < cols", "col < cols and BLOCK > 1"),  # decides something
        ("row * cols + col,", "row * cols + col // BLOCK * BLOCK + col % BLOCK,"),  # is a fact of the layout
        ("cols, BLOCK: tl", "cols, OTHER: tl"),  # isn't the parameter's name: the code reads the module's
    ],
}


@pytest.mark.parametrize(
    ("rule", "old", "new"), [(rule, *change) for rule, found in LOOK_ALIKES.items() for change in found]
)
def test_a_look_alike_is_left_alone(propose: Propose, rule: str, old: str, new: str) -> None:
    assert old in SOFTMAX
    assert propose(rule, SOFTMAX.replace(old, new)) == {}


def test_what_was_written_meanwhile_is_not_merged(propose: Propose) -> None:
    assert propose("triton-whole-rows", with_plan(SOFTMAX_CODE, args='"out", "out", "cols"')) == {}


def test_several_rows_in_a_program(propose: Propose, verify: Verify) -> None:
    verify(only(propose("triton-several-rows", SOFTMAX), "4 rows"))
    whole = only(propose("triton-whole-rows", SOFTMAX), "num_warps=1")
    verify(only(propose("triton-several-rows", whole), "2 rows"))


def changed(before: str, after: str) -> list[str]:
    """The lines that a change takes away and adds."""
    return [line for line in unified_diff(before, after).splitlines() if line.startswith(("-", "+"))]


def test_a_block_size_changes_in_its_own_line(propose: Propose, verify: Verify) -> None:
    larger = propose("triton-block-sizes", SOFTMAX)["BLOCK 64 -> 128"]
    assert changed(SOFTMAX, larger) == ["-BLOCK = 64  # columns", "+BLOCK = 128  # columns"]
    verify(larger)
