"""Whether a module's source is refused, its outputs are right, and its speed-up over the reference."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.task import Array
from mctskernel.profiling.pytorch.client import ModuleError, Round, Value
from mctskernel.profiling.pytorch.memory import HostMemory, Snapshot
from mctskernel.profiling.pytorch.protocol import Structure, TensorSpec, arrays, places
from mctskernel.profiling.pytorch.verdict import (
    MAX_SOURCE_CHARACTERS,
    check_call,
    check_source,
    compare_tensor,
    speedup_of,
)

INPUT, OUTPUT, WIDE = (
    TensorSpec("float32", (8, 16)),
    TensorSpec("float32", (8, 16)),
    TensorSpec("float64", (8, 16)),
)
RNG = np.random.default_rng(0)


def filled(spec: TensorSpec, values: Array) -> Array:
    window = np.zeros(places([spec])[1], np.uint8)
    arrays(window, [spec])[0][...] = values
    return window


TRUTH = RNG.normal(size=(8, 16))
DRAWN = Round(
    Value(Structure("[...]", (INPUT,)), filled(INPUT, RNG.normal(size=(8, 16)))),
    Value(Structure("...", (WIDE,)), filled(WIDE, TRUTH)),
    Value(Structure("...", (OUTPUT,)), filled(OUTPUT, TRUTH.astype(np.float32))),
    changed=False,
)


def judged(
    outputs: Array, *, inputs: Array | None = None, settled: bool = True, drawn: Round = DRAWN
) -> Guard | None:
    snapshot = Snapshot(outputs, drawn.inputs.content if inputs is None else inputs, settled)
    return check_call(drawn, snapshot, 0).guard


def test_what_the_reference_gives_is_right() -> None:
    assert judged(DRAWN.plain.content) is None


def test_a_rounding_more_is_right_and_one_in_sixteen_bits_is_not() -> None:
    assert judged(filled(OUTPUT, TRUTH.astype(np.float32) * np.float32(1 + 2**-22))) is None
    assert judged(filled(OUTPUT, TRUTH.astype(ml_dtypes.bfloat16).astype(np.float32))) is Guard.COMPARISON


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_one_wrong_element_is_seen(value: float) -> None:
    wrong = TRUTH.astype(np.float32)
    wrong[3, 5] = value
    assert judged(filled(OUTPUT, wrong)) is Guard.COMPARISON


def test_unwritten_outputs_are_named() -> None:
    memory = HostMemory([OUTPUT], 4096)
    memory.poison()
    assert judged(memory.outputs()) is Guard.POISON
    memory.close()


def test_outputs_that_change_after_the_clock_has_stopped_are_wrong_even_if_they_are_right() -> None:
    assert judged(DRAWN.plain.content, settled=False) is Guard.TIMED_OUTPUTS


def test_an_input_that_was_changed_is_wrong_unless_the_reference_changes_it_too() -> None:
    changed = DRAWN.inputs.content.copy()
    changed[0] ^= 1
    assert judged(DRAWN.plain.content, inputs=changed) is Guard.UNTOUCHED_INPUTS
    assert judged(DRAWN.plain.content, inputs=changed, drawn=replace(DRAWN, changed=True)) is None


@pytest.mark.parametrize("scale", [1e-9, 1e-20, 1e-30])
def test_zeros_are_no_answer_where_all_is_tiny(scale: float) -> None:
    truth = TRUTH * scale
    plain = truth.astype(np.float32)
    assert compare_tensor(OUTPUT, plain * np.float32(1 + 2**-22), truth, plain).passed
    assert not compare_tensor(OUTPUT, np.zeros_like(plain), truth, plain).passed


def test_a_few_sums_in_order_are_right_on_widened_inputs_and_a_product_in_tf32_is_not() -> None:
    in_order, in_tf32 = (TRUTH.astype(np.float32) for _ in range(2))
    in_order[0, 0] += 400 * np.abs(in_order - TRUTH).max()
    in_tf32 *= np.float32(1 + 2**-11)
    widened = replace(DRAWN, widened=True)
    assert judged(filled(OUTPUT, in_order)) is not None
    assert judged(filled(OUTPUT, in_order), drawn=widened) is None
    assert judged(filled(OUTPUT, in_tf32), drawn=widened) is Guard.COMPARISON


def test_an_index_may_be_the_plain_reference_s_or_the_exact_one_s() -> None:
    spec = TensorSpec("int64", (4,))
    exact, plain = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 7])
    for right in (exact, plain):
        assert compare_tensor(spec, right, exact, plain).passed
    assert not compare_tensor(spec, np.array([0, 1, 2, 4]), exact, plain).passed


def test_truth_values_and_complex_numbers_are_compared() -> None:
    yes = np.array([True, False])
    assert compare_tensor(TensorSpec("bool", (2,)), yes, yes, yes).passed
    assert not compare_tensor(TensorSpec("bool", (2,)), ~yes, yes, yes).passed
    waves = np.exp(1j * np.arange(6)).reshape(2, 3)
    spec, plain = TensorSpec("complex64", (2, 3)), waves.astype(np.complex64)
    assert compare_tensor(spec, plain, waves, plain).passed
    assert not compare_tensor(spec, plain.conj(), waves, plain).passed


TRIP = 100e-6


def samples(
    ours: float, baseline: float, *, noise: float = 1e-6, beside: float = 1.0, trip: float = TRIP
) -> tuple[list[float], tuple[list[float], list[float]], tuple[list[float], list[float]]]:
    """Rounds of a module and a baseline of so many seconds; beside the module others take `beside` times as long."""
    rng = np.random.default_rng(0)

    def around(seconds: float) -> list[float]:
        return list(seconds + rng.normal(0.0, noise, 30))

    ours_beside, baseline_beside, echo_beside = TRIP + ours, beside * (trip + baseline), beside * trip
    return (
        around(ours_beside),
        (around(baseline_beside), around(echo_beside)),
        (around(trip + baseline), around(trip)),
    )


def test_the_round_trip_is_taken_off_both() -> None:
    found = speedup_of(*samples(200e-6, 600e-6))
    assert found.ratio == pytest.approx(3.0, rel=0.02)
    assert found.low <= 3.0 <= found.high
    assert found.timing.seconds == pytest.approx(200e-6, rel=0.02)
    assert found.timing.baseline_seconds == pytest.approx(600e-6, rel=0.02)


def test_the_least_speedup_charges_the_module_the_whole_round_trip() -> None:
    found = speedup_of(*samples(200e-6, 600e-6))
    assert found.at_least == pytest.approx(600 / 300, rel=0.02)


def test_a_module_that_shortens_its_round_trip_gains_no_more_than_that() -> None:
    honest = speedup_of(*samples(200e-6, 600e-6))
    shortened = speedup_of(*samples(200e-6 - TRIP / 2, 600e-6))
    assert shortened.ratio > 1.3 * honest.ratio
    assert shortened.at_least <= 600 / 250 * 1.02


def test_a_module_shorter_than_the_noise_of_the_round_trip_gets_no_time() -> None:
    found = speedup_of(*samples(1e-6, 600e-6, noise=20e-6))
    assert "too short" in found.doubt
    assert found.ratio == 0.0


def test_a_module_that_slows_others_down_gains_nothing_by_it() -> None:
    found = speedup_of(*samples(600e-6, 600e-6, beside=4.0))
    assert found.ratio == pytest.approx(1.0, rel=0.05)
    assert "slower beside this module" in found.flags[0]


PLAIN = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"

TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def relu(x, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.maximum(tl.load(x + at, mask=at < n), 0), mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), 256)
        return out
"""

EXTENSION = """
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline("m", cpp_sources="", functions=["f"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.f(x)
"""


@pytest.mark.parametrize("source", [TRITON, EXTENSION])
def test_a_module_with_kernels_of_its_own_is_accepted(source: str) -> None:
    check_source(source, own_kernels=True)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PLAIN, "defines none"),
        (
            TRITON.replace("relu[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), 256)", "out = x.relu()"),
            "launches none",
        ),
        (
            TRITON.replace(
                "        return out", "        try:\n            return out\n        except Exception:\n"
            )
            + "            return torch.relu(x)\n",
            "falls back",
        ),
    ],
)
def test_a_module_without_is_refused(source: str, words: str) -> None:
    check_source(source, own_kernels=False)
    with pytest.raises(ModuleError, match=words) as refused:
        check_source(source, own_kernels=True)
    assert (refused.value.outcome, refused.value.guard) == (Outcome.REJECTED, Guard.FOREIGN_CALLS)


@pytest.mark.parametrize(
    ("source", "guard"),
    [(each, Guard.COMPILER) for each in ("class", "x = 1\0", "(" * 5000, "-" * 200_000 + "1")]
    + [("#" * (MAX_SOURCE_CHARACTERS + 1), Guard.SOURCE_RULES)],
    ids=["no Python", "null", "too deep", "deep expression", "huge"],
)
def test_a_source_that_cannot_be_a_module_is_refused(source: str, guard: Guard) -> None:
    with pytest.raises(ModuleError) as refused:
        check_source(source, own_kernels=False)
    assert refused.value.guard is guard
