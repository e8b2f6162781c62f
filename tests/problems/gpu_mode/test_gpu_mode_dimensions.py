"""Dimensions from the sizes that are seen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.expression import evaluate_int
from mctskernel.problems.gpu_mode.dimensions import Dimensions

SIZES = st.lists(st.integers(1, 4096), min_size=3, max_size=3).map(tuple)


def offered(**sizes: tuple[int, ...]) -> Dimensions:
    return Dimensions(sizes, frozenset({"case"}))


@settings(max_examples=25, deadline=None)
@given(st.fixed_dictionaries({"m": SIZES, "n": SIZES}), st.lists(SIZES, min_size=1, max_size=3))
def test_an_extent_has_the_sizes_that_were_seen(
    arguments: dict[str, tuple[int, ...]], seen: list[tuple[int, ...]]
) -> None:
    dimensions = Dimensions(arguments, frozenset({"case"}))
    for number, sizes in enumerate(seen):
        extent = dimensions.extent(sizes, f"x_{number}")
        for case, size in enumerate(sizes):
            shape = {name: vector[case] for name, vector in dimensions.sizes.items()}
            assert evaluate_int(extent, shape) == size


def test_an_extent_is_called_after_the_argument_that_it_is() -> None:
    dimensions = offered(rows=(2, 3, 5), cols=(7, 7, 9))
    assert dimensions.extent((7, 7, 9), "x_0") == "cols"
    assert dimensions.sizes == {"cols": (7, 7, 9)}


def test_what_never_changes_is_a_number() -> None:
    assert offered(channels=(3, 3)).extent((3, 3), "x_0") == 3


def test_an_extent_that_follows_from_others_is_an_expression() -> None:
    dimensions = offered(size=(16, 18, 64), kernel=(4, 5, 8))
    assert dimensions.extent((13, 14, 57), "out_0") == "size - kernel + 1"
    assert dimensions.extent((32, 36, 128), "out_1") == "2 * size"
    assert dimensions.extent((64, 90, 512), "out_2") == "kernel * size"


def test_an_argument_of_zero_divides_nothing() -> None:
    dimensions = offered(padding=(0, 1, 2), size=(16, 18, 64))
    assert dimensions.extent((17, 19, 65), "x_0") == "size + 1"


def test_an_extent_that_follows_from_nothing_is_a_dimension_of_its_own() -> None:
    dimensions = offered(size=(16, 18, 64))
    assert dimensions.known((5, 11, 2)) is None
    assert dimensions.extent((5, 11, 2), "case") == "case_"
