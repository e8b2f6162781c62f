"""What is accepted of an output, whatever its type: the truth rounded, and no more than a tolerance beyond it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.dtypes import DTYPE_BYTES, is_floating, numpy_dtype, rounding_unit
from mctskernel.core.task import Array, Tolerance
from mctskernel.profiling.comparison import compare, nearest_truth
from mctskernel.profiling.input_values import as_bits, is_poison, poison

DTYPES = list(DTYPE_BYTES)
FLOATS = [name for name in DTYPE_BYTES if is_floating(numpy_dtype(name))]
WHOLE = [name for name in DTYPE_BYTES if name not in FLOATS]
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 9))
EXAMPLES = 100
SEEDS = st.integers(0, 2**32 - 1)


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """A truth in float64, or in integers that the type holds."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    if is_floating(kind):
        return rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


def rounding(dtype: str) -> Tolerance:
    """What rounding to a type moves a result by."""
    kind = numpy_dtype(dtype)
    return Tolerance(relative=0.5001 * rounding_unit(kind) if is_floating(kind) else 0.0, absolute=0.0)


@settings(max_examples=EXAMPLES, deadline=None)
@given(dtype=st.sampled_from(DTYPES), shape=SHAPES, seed=SEEDS)
def test_the_truth_rounded_to_the_output_s_type_passes(dtype: str, shape: tuple[int, int], seed: int) -> None:
    truth = drawn(dtype, shape, seed)
    actual = truth.astype(numpy_dtype(dtype))
    assert compare(actual, truth, actual, rounding(dtype)).passed


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    dtype=st.sampled_from(FLOATS), shape=SHAPES, seed=SEEDS, value=st.sampled_from([np.nan, np.inf, -np.inf])
)
def test_nothing_special_passes_where_a_number_is_due(
    dtype: str, shape: tuple[int, int], seed: int, value: float
) -> None:
    truth = drawn(dtype, shape, seed)
    actual = truth.astype(numpy_dtype(dtype))
    actual.reshape(-1)[seed % truth.size] = value
    lax = Tolerance(relative=1e300, absolute=1e300, ratio=float("inf"))
    assert not compare(actual, truth, truth.astype(actual.dtype), lax).passed


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    dtype=st.sampled_from(FLOATS), shape=SHAPES, seed=SEEDS, due=st.sampled_from([np.nan, np.inf, 0.5, 1e300])
)
def test_poison_passes_nowhere(dtype: str, shape: tuple[int, int], seed: int, due: float) -> None:
    truth = drawn(dtype, shape, seed)
    truth.reshape(-1)[seed % truth.size] = due
    with np.errstate(over="ignore"):
        actual = truth.astype(numpy_dtype(dtype))
    assert not is_poison(actual).any()
    actual.reshape(-1)[seed % truth.size] = poison(dtype, (1,))[0]
    lax = Tolerance(relative=1e300, absolute=1e300, ratio=float("inf"))
    unsettled = np.ones(shape, np.bool_)
    assert not compare(actual, truth, truth.astype(np.float64), lax).passed
    assert not compare(actual, nearest_truth(actual, truth, [truth], unsettled), truth, lax).passed


@settings(max_examples=EXAMPLES, deadline=None)
@given(dtype=st.sampled_from(WHOLE), shape=SHAPES, seed=SEEDS)
def test_one_bit_of_an_integer_is_too_much(dtype: str, shape: tuple[int, int], seed: int) -> None:
    truth = drawn(dtype, shape, seed)
    bits = as_bits(truth.copy())
    bits.reshape(-1)[seed % truth.size] ^= 1
    assert not compare(bits.view(truth.dtype), truth, truth, Tolerance()).passed


def test_a_truth_value_is_a_byte_of_0_or_1() -> None:
    truth = np.array([True, False, True])
    actual = np.array([1, 0, 2], np.uint8).view(np.bool_)
    wrong = compare(actual, truth, truth, Tolerance())
    assert "1 of 3 elements, the first at [2]: got 2, expected True" in wrong.message


def test_each_element_may_be_what_any_truth_says() -> None:
    first, second = np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, np.inf])
    for written, right in (([1, 2, np.inf], True), ([1, np.nan, 3], True), ([1, np.inf, 3], False)):
        actual = np.array(written, np.float32)
        truth = nearest_truth(actual, first, [second])
        assert compare(actual, truth, truth, Tolerance()).passed is right
