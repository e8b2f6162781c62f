"""The results that a task accepts, in sentences for the author of its kernels."""

from __future__ import annotations

import math

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.task import (
    Bound,
    Denormals,
    Precision,
    Propagation,
    Task,
    Tensor,
    Tolerance,
    shape_label,
)


def contract_sentences(task: Task) -> tuple[str, ...]:
    """The tolerance of each output, and what the task's numerical contract requires."""
    numerics = task.numerics
    sentences = [*(_tolerance_sentence(task, output) for output in task.outputs), *_sentences_at(task)]
    special = {
        "nan": _special_sentence("A NaN", numerics.nan, " A maximum, a minimum or a comparison may drop it."),
        "infinity": _special_sentence(
            "An infinity", numerics.infinity, " It may become a NaN, as inf - inf does."
        ),
        "denormals": _DENORMALS[numerics.denormals],
        "scales": "Random inputs are also tried multiplied by {:g} and by {:g}.".format(*numerics.scales),
    }
    sentences += [words for key, words in special.items() if task.receivers(key)]
    if task.ranged:
        sentences.append(
            f"{', '.join(tensor.name for tensor in task.ranged)}: also tried with numbers beyond the range and of both "
            "signs, wherever the reference's results are finite."
        )
    sentences.append(precision_sentence(task))
    if task.in_place:
        sentences.append(f"Changed in place, in the buffer of the input: {', '.join(sorted(task.in_place))}.")
    return tuple(filter(None, sentences))


def precision_sentence(task: Task) -> str:
    """The policy on products in lower precision; empty for a task without 32-bit floats."""
    if all(tensor.dtype != "float32" for tensor in task.inputs):
        return ""
    if task.precision is Precision.RELAXED:
        return "Precision is relaxed: the benchmark's tolerance alone decides."
    found = "Products of TF32, bfloat16 or float16 numbers are too imprecise for float32 inputs"
    if task.numerics.tf32:
        words = " and ".join(f"{each}s" for each in sorted(task.numerics.tf32))
        found += f", but {words} may be computed in TF32, as PyTorch does"
    return f"{found}."


def narrowest_tolerance(task: Task) -> float:
    """The least of the relative and absolute parts of the tolerances of floating-point outputs, at any shape."""
    shapes = task.shapes if task.tolerances_at else (None,)
    tolerances = {
        task.tolerance_of(output.name, shape)
        for output in task.outputs
        if is_floating(numpy_dtype(output.dtype))
        for shape in shapes
    }
    bounds = {each.element for each in tolerances if each.element is not None}
    return min((min(each.relative, each.absolute) for each in tolerances | bounds), default=0.0)


def _tolerance_sentence(task: Task, output: Tensor) -> str:
    name = f"An element of '{output.name}'"
    if not is_floating(numpy_dtype(output.dtype)):
        most = task.tolerances.get(output.name, Tolerance(relative=0.0, absolute=0.0)).absolute
        return f"{name} may be off by {most:g}." if most >= 1 else f"{name} must equal the reference's."
    tolerance = task.tolerance_of(output.name)
    if not tolerance.relative and not tolerance.absolute:
        return f"{name} must equal the reference's."
    measure = "its own size, or that of the terms it is made of" if len(output.shape) == 1 else _ROW
    sentence = f"{name} may be off by {tolerance.absolute:g} + {tolerance.relative:g} times {measure}"
    if math.isfinite(tolerance.ratio):
        sentence += (
            f", and the largest error may be {tolerance.ratio:g} times that of the reference in the inputs' own "
            "precision"
        )
    if tolerance.element is not None:
        sentence += f"; by itself by at most {_bound_words(tolerance.element)}"
    return sentence + "."


def _sentences_at(task: Task) -> list[str]:
    """What differs at some shapes, the same said once; of many the first few, since they are much alike."""
    shapes: dict[str, list[str]] = {}
    for entry in task.tolerances_at:
        numbers = [f"{name} {value:g}" for name, value in entry.changes.items() if name != "element"]
        if "element" in entry.changes:
            numbers.append(f"an element by itself off by at most {_bound_words(entry.changes['element'])}")
        if numbers:
            shapes.setdefault(", ".join(numbers), []).append(shape_label(entry.shape))
    sentences = []
    for changed, where in [*shapes.items()][:_LISTED]:
        others = f" and {len(where) - _LISTED} other shapes" if len(where) > _LISTED else ""
        sentences.append(f"At {'; '.join(where[:_LISTED])}{others}: {changed}.")
    left = len(shapes) - _LISTED
    return sentences + ([f"{left} more tolerances are of other shapes."] if left > 0 else [])


def _bound_words(bound: Bound) -> str:
    words = f"{bound.absolute:g} + {bound.relative:g} times its size"
    return f"{words} and never more than {bound.most:g}" if math.isfinite(bound.most) else words


_LISTED = 4

_ROW = "the largest value of its row"


def _special_sentence(what: str, propagation: Propagation, local: str) -> str:
    match propagation:
        case Propagation.PROPAGATE:
            return f"{what} in the inputs must have the same effect on the outputs as in the reference."
        case Propagation.LOCAL:
            return (
                f"{what} in the inputs must change only the outputs that depend on it, as in the reference: padding "
                f"that holds one must not be multiplied by zero.{local}"
            )
        case Propagation.UNSPECIFIED:
            return ""


_DENORMALS = {
    Denormals.PRESERVE: "Denormal numbers must keep their digits: they may not be flushed to zero.",
    Denormals.UNSPECIFIED: "",
}
