"""How far off a kernel for a problem may be: against tables worked out by hand."""

import numpy as np
import pytest

from mctskernel.core.task import Bound, Tensor
from mctskernel.problems.tolerance import rounding_error, tolerance_table

SINGLE = Tensor("single", "float32", ("rows", "cols"))
HALF = Tensor("half", "float16", ("rows",))
INDEX = Tensor("index", "int32", ("rows",))
NARROW = Bound(1e-4, 1e-5)


def test_an_output_of_another_type_has_a_table_of_its_own() -> None:
    table = tolerance_table([INDEX, SINGLE, HALF], {}, [({}, NARROW)])
    assert table["relative"] == 1e-5
    assert table["half"] == {"relative": 5.2e-4, "absolute": 1e-6, "ratio": 16.0}
    assert "index" not in table


def test_errors_are_shares_of_a_row_s_largest_value() -> None:
    exact = np.array([[1.0, -10.0], [0.1, 0.0]])
    found = rounding_error(exact + np.array([[0.5, 0.0], [0.0, 0.01]]), exact)
    assert found == pytest.approx((0.1, 0.25, 0.5))
