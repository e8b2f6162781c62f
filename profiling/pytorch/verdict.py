"""Whether what a call left behind is right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mctskernel.core.dtypes import is_floating
from mctskernel.core.evaluation import Check, Guard
from mctskernel.core.task import Array, Tolerance
from mctskernel.profiling.pytorch.reference import Round
from mctskernel.profiling.pytorch.seat import Call
from mctskernel.profiling.pytorch.structures import Slot, arrays, slots
from mctskernel.profiling.verify import Comparison, compare

TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-13, 64.0),
    "float32": Tolerance(1e-5, 1e-6, 64.0),
    "float16": Tolerance(5.2e-4, 1e-6, 16.0),
    "bfloat16": Tolerance(4.1e-3, 1e-6, 16.0),
    "float8_e4m3fn": Tolerance(6.6e-2, 1e-6, 16.0),
    "float8_e5m2": Tolerance(1.3e-1, 1e-6, 16.0),
}
"""One rounding to 16 or 8 bits, or sums of some thousand 32-bit floats."""

FACTOR = 4.0
"""How many times the plain reference's own error an element may be off where that is more than the tolerance."""


@dataclass(frozen=True)
class Judgement:
    """A check, and what noticed where it fails."""

    check: Check
    guard: Guard | None = None


def judge_call(drawn: Round, call: Call, seed: int) -> Judgement:
    """The verdict on one call."""
    label = "as given"
    if not call.left.settled:
        message = "The outputs still changed after the module's process said that they were there."
        return Judgement(
            Check(label, seed, passed=False, error=float("inf"), message=message), Guard.TIMED_OUTPUTS
        )
    judgement = judge_bytes(drawn, call.left.outputs, seed)
    if judgement.check.passed and not drawn.changed and not np.array_equal(call.left.inputs, drawn.content):
        message = "An input was changed in place."
        return Judgement(
            Check(label, seed, passed=False, error=float("inf"), message=message), Guard.UNTOUCHED_INPUTS
        )
    return judgement


def judge_bytes(drawn: Round, outputs: Array, seed: int) -> Judgement:
    """The verdict on a window of outputs."""
    label, worst = "as given", 0.0
    wanted = list(slots(drawn.outputs))
    truths = arrays(drawn.truth, list(slots(drawn.expected)))
    for number, (slot, actual, truth, plain) in enumerate(
        zip(wanted, arrays(outputs, wanted), truths, arrays(drawn.plain, wanted), strict=True)
    ):
        comparison = compare_tensor(slot, actual, truth, plain)
        if not comparison.passed:
            message = f"Output {number} ({slot}) is wrong: {comparison.message}"
            unwritten = "never written" in comparison.message
            return Judgement(
                Check(label, seed, passed=False, error=comparison.error, message=message),
                Guard.POISON if unwritten else Guard.COMPARISON,
            )
        worst = max(worst, comparison.error)
    return Judgement(Check(label, seed, passed=True, error=worst))


def compare_tensor(slot: Slot, actual: Array, truth: Array, plain: Array) -> Comparison:
    """One output against the reference in 64-bit floats, with the plain reference's own error as a yardstick."""
    if slot.numpy.kind == "c":
        real = Slot({"complex64": "float32", "complex128": "float64"}[slot.dtype], (*slot.shape, 2))
        parts = [
            each.astype(kind).reshape(-1).view(part).reshape(real.shape)
            for each, kind, part in (
                (actual, slot.numpy, real.numpy),
                (truth, np.complex128, np.float64),
                (plain, slot.numpy, real.numpy),
            )
        ]
        return compare_tensor(real, *parts)
    if not is_floating(slot.numpy):
        bits = np.dtype(f"u{slot.numpy.itemsize}")
        # Where 64-bit floats decide otherwise, as in the index of a largest value, the plain answer is as good.
        ours, theirs, other = (each.astype(slot.numpy).view(bits) for each in (actual, plain, truth))
        return compare(ours, np.where(ours == other, other, theirs), theirs, Tolerance())
    return compare(actual, truth, plain, _tolerance(slot, truth, plain))


def _tolerance(slot: Slot, truth: Array, plain: Array) -> Tolerance:
    """The type's tolerance; wider by what the plain reference itself needs, where it needs more."""
    stated = TOLERANCES[slot.dtype]
    strict = compare(plain, truth, plain, stated)
    wider = max(1.0, FACTOR * strict.error) if np.isfinite(strict.error) else 1.0
    # Where all outputs are small, what is small beside 1 is not small beside them.
    largest = float(np.abs(truth, where=np.isfinite(truth), out=np.zeros(truth.shape)).max(initial=0.0))
    absolute = stated.absolute * wider * min(1.0, largest)
    return Tolerance(stated.relative * wider, absolute, stated.ratio)
