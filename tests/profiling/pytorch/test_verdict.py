"""The comparison of a module's outputs with the reference's."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from mctskernel.core.evaluation import Guard
from mctskernel.core.task import Array
from mctskernel.profiling.pytorch.memory import HostMemory, Left
from mctskernel.profiling.pytorch.reference import Round
from mctskernel.profiling.pytorch.seat import Call
from mctskernel.profiling.pytorch.structures import Row, Slot, arrays, places
from mctskernel.profiling.pytorch.verdict import compare_tensor, judge_call

INPUT, OUTPUT, WIDE = Slot("float32", (8, 16)), Slot("float32", (8, 16)), Slot("float64", (8, 16))
RNG = np.random.default_rng(0)


def filled(slot: Slot, values: Array) -> Array:
    window = np.zeros(places([slot])[1], np.uint8)
    arrays(window, [slot])[0][...] = values
    return window


TRUTH = RNG.normal(size=(8, 16))
DRAWN = Round(
    Row("list", (INPUT,)),
    filled(INPUT, RNG.normal(size=(8, 16))),
    WIDE,
    filled(WIDE, TRUTH),
    OUTPUT,
    filled(OUTPUT, TRUTH.astype(np.float32)),
    changed=False,
)


def judged(
    outputs: Array, *, inputs: Array | None = None, settled: bool = True, drawn: Round = DRAWN
) -> Guard | None:
    left = Left(outputs, drawn.content if inputs is None else inputs, settled)
    return judge_call(drawn, Call(1.0, left), 0).guard


def test_what_the_reference_gives_is_right() -> None:
    assert judged(DRAWN.plain) is None


def test_a_rounding_more_is_right_and_one_in_sixteen_bits_is_not() -> None:
    assert judged(filled(OUTPUT, TRUTH.astype(np.float32) * np.float32(1 + 2**-22))) is None
    assert judged(filled(OUTPUT, TRUTH.astype(ml_dtypes.bfloat16).astype(np.float32))) is Guard.COMPARISON


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_one_wrong_element_is_seen(value: float) -> None:
    wrong = TRUTH.astype(np.float32)
    wrong[3, 5] = value
    assert judged(filled(OUTPUT, wrong)) is Guard.COMPARISON


def test_outputs_that_nobody_wrote_are_told_as_such() -> None:
    memory = HostMemory([OUTPUT])
    memory.poison()
    assert judged(memory.outputs()) is Guard.POISON
    memory.close()


def test_outputs_that_change_after_the_clock_has_stopped_are_wrong_even_if_they_are_right() -> None:
    assert judged(DRAWN.plain, settled=False) is Guard.TIMED_OUTPUTS


def test_an_input_that_was_changed_is_wrong_unless_the_reference_changes_it_too() -> None:
    changed = DRAWN.content.copy()
    changed[0] ^= 1
    assert judged(DRAWN.plain, inputs=changed) is Guard.UNTOUCHED_INPUTS
    assert judged(DRAWN.plain, inputs=changed, drawn=replace(DRAWN, changed=True)) is None


@pytest.mark.parametrize("scale", [1e-9, 1e-20, 1e-30])
def test_zeros_are_no_answer_where_all_is_tiny(scale: float) -> None:
    truth = TRUTH * scale
    plain = truth.astype(np.float32)
    assert compare_tensor(OUTPUT, plain * np.float32(1 + 2**-22), truth, plain).passed
    assert not compare_tensor(OUTPUT, np.zeros_like(plain), truth, plain).passed


def test_an_index_may_be_the_plain_reference_s_or_the_exact_one_s() -> None:
    slot = Slot("int64", (4,))
    exact, plain = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 7])
    for right in (exact, plain):
        assert compare_tensor(slot, right, exact, plain).passed
    assert not compare_tensor(slot, np.array([0, 1, 2, 4]), exact, plain).passed


def test_truth_values_and_complex_numbers_are_compared() -> None:
    yes = np.array([True, False])
    assert compare_tensor(Slot("bool", (2,)), yes, yes, yes).passed
    assert not compare_tensor(Slot("bool", (2,)), ~yes, yes, yes).passed
    waves = np.exp(1j * np.arange(6)).reshape(2, 3)
    slot, plain = Slot("complex64", (2, 3)), waves.astype(np.complex64)
    assert compare_tensor(slot, plain, waves, plain).passed
    assert not compare_tensor(slot, plain.conj(), waves, plain).passed
