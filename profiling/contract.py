"""Whether a task's numerical contract can be met at all: the reference itself must meet it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.task import Denormals, Propagation, Shape, Task, TaskError, shape_label
from mctskernel.profiling.comparison import in_float64
from mctskernel.profiling.input_values import Values, applicable, places
from mctskernel.profiling.propagation import settle
from mctskernel.profiling.verify import check_outputs, draw_case

SEEDS = range(3)

_ASKED: Mapping[str, tuple[Values, ...]] = {
    "nan": (Values.NAN,),
    "infinity": (Values.INFINITY,),
    "denormals": (Values.DENORMAL,),
    "scales": (Values.LARGE, Values.SMALL),
}


def contradictions(task: Task) -> Iterator[str]:
    """What a contract asks that its own reference doesn't do, each in a sentence."""
    shape = max(task.verify_shapes, key=task.compulsory_bytes)
    where = f"{task.folder / 'task.toml'}: [numerics]"
    for key in sorted(task.numerics.stated):
        for values in _ASKED.get(key, ()):
            found = next(filter(None, (_contradiction(task, shape, seed, values) for seed in SEEDS)), "")
            if found:
                yield f"{where} {key}: {found}"


def _contradiction(task: Task, shape: Shape, seed: int, values: Values) -> str:
    if not applicable(task, values):
        asked = {
            Values.NAN: task.numerics.nan is not Propagation.UNSPECIFIED,
            Values.INFINITY: task.numerics.infinity is not Propagation.UNSPECIFIED,
            Values.DENORMAL: task.numerics.denormals is not Denormals.UNSPECIFIED,
        }
        return "no input can have such values." if asked.get(values, False) else ""
    try:
        case = draw_case(task, shape, seed, values)
    except TaskError as error:
        return f"the reference can't take {values} inputs: {error}"
    if values is Values.NAN and task.numerics.nan is Propagation.PROPAGATE:
        swallowed = _swallowed(task, shape, seed)
        if swallowed:
            return swallowed
    noise = case.noise.of_outputs if case.noise is not None else {}
    if any(np.max(noise.get(name, 0.0)) > np.abs(truth).max() > 0 for name, truth in case.expected.items()):
        return (
            f"with {values} inputs at {shape_label(shape)}, rounding them changes all that could be checked."
        )
    check = check_outputs(case, case.plain)
    return (
        "" if check.passed else f"the reference itself doesn't meet it in its own precision. {check.message}"
    )


def _swallowed(task: Task, shape: Shape, seed: int) -> str:
    """A sentence about an output that depends on a NaN and isn't one."""
    drawn = task.draw_inputs(shape, seed)
    name, special = places(task, drawn, Values.NAN, np.random.default_rng(seed))
    settled = settle(task, shape, in_float64(drawn), name, special)
    for output in task.outputs:
        truth = settled.expected[output.name]
        if is_floating(numpy_dtype(output.dtype)) and truth.dtype.kind == "f":
            numbers = settled.depends[output.name] & ~np.isnan(truth)
            if numbers.any():
                index = ", ".join(str(int(i)) for i in np.argwhere(numbers)[0])
                return (
                    f"the reference itself swallows a NaN in '{name}': at {shape_label(shape)}, {output.name}[{index}] "
                    'depends on it and is a number. Perhaps nan = "local" or "unspecified" is meant.'
                )
    return ""
