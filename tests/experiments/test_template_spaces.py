"""Which configurations of a template a space has."""

from mctskernel.core.kernel import Kernel
from mctskernel.experiments.template_spaces import allowed, levels

TEMPLATE = Kernel("""\
#define TILE 64
#define STAGES 3
#define BLOCKS 132
static_assert(TILE == 64 || TILE == 128);
static_assert(STAGES >= 2 && STAGES * TILE <= 512);
""")


def test_a_space_has_listed_values_multiples_and_small_numbers_in_between() -> None:
    found = levels(TEMPLATE, 1000)
    assert found["TILE"] == [64, 128]
    assert found["STAGES"] == [3, 4, 2, 6]
    assert found["BLOCKS"] == [132, 66, 264, 33, 528, 1056]


def test_assertions_decide_which_combinations_exist() -> None:
    assert {"TILE": 128, "STAGES": 6} not in allowed(TEMPLATE, {"TILE": [64, 128], "STAGES": [4, 6]})
    assert len(allowed(TEMPLATE, {"TILE": [64, 128], "STAGES": [4, 6]})) == 3


def test_a_large_space_loses_the_values_furthest_from_the_defaults() -> None:
    found = levels(TEMPLATE, 8)
    assert len(allowed(TEMPLATE, found)) <= 8
    assert [each[0] for each in found.values()] == [64, 3, 132]
