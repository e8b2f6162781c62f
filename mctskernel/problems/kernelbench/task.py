"""A problem in a Python file with a class `Model`, as a task: looked at before anything of its full size is made."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mctskernel.core.task import TaskError
from mctskernel.plain_cuda.schedule import LONG
from mctskernel.problems.device_memory import Memory, available_memory
from mctskernel.problems.kernelbench.checks import check_calls, modes_differ, used_state
from mctskernel.problems.kernelbench.dimensions import shaped_operands
from mctskernel.problems.kernelbench.drawing import Watched, watch
from mctskernel.problems.kernelbench.operands import Maker, Operand, Operands, weight_operands
from mctskernel.problems.kernelbench.reference import (
    Argument,
    ModuleProblem,
    Origin,
    Plain,
    made_model,
    run_problem,
    without_running_statistics,
)
from mctskernel.problems.tolerance import own_error
from mctskernel.problems.torch_task import Draft, TorchTask, independent_dimension

RELATIVE, ABSOLUTE, RATIO = 1e-5, 1e-6, 64.0
"""The tolerance of a task in float32, where the problem's own results in float32 allow it."""

OWN_ERRORS = 4.0
"""How many times as far off as the problem's own result in float32 a kernel may be, besides the tolerance."""

_EVALUATION = (
    "It is searched in training mode, as KernelBench's harness runs it. In evaluation mode it gives something else: "
    "there a solution's module calls the original's forward."
)
_WHOLE = "KernelBench's harness hands whole numbers over as 32-bit floats; a solution's module makes them whole again."
_IMPRECISE = (
    "In 32-bit floats the problem itself is off by about as much as KernelBench's harness allows, so a kernel that is "
    "right here may be refused there."
)
_OF_ONE_SIZE = (
    "None of its sizes can vary: it is verified at its own alone, which takes long where there is no GPU."
)


MOST_DIMENSIONS = 16

UNIT = 2.0**-24
"""What adding a number up in float32 may cost, relative to the sum.

Of n numbers, one after the other, that is n at the most, and in pairs, as PyTorch adds up, the logarithm of n (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2): a plain kernel may be off by so much more than PyTorch.
"""


def drafted(
    path: Path,
    beside: Mapping[str, bytes],
    *,
    benchmark: str,
    tolerance: float,
    most_dimensions: int = MOST_DIMENSIONS,
) -> Draft:
    """The task of a problem's file; its harness lets outputs differ by this relative tolerance. Raises TaskError.

    Where more dimensions could vary than `most_dimensions`, the first does alone.
    """
    memory = available_memory()
    names = run_problem(path)
    watched = watch(names["get_inputs"], memory.size)
    arguments, given = _arguments(names["Model"], watched)
    _require_room(names, given, memory, path.name)
    original = made_model(names)
    pure = without_running_statistics(copy.deepcopy(original))
    members = (*given, *weight_operands(pure, {each.name for each in given}))
    maker = Maker(names["get_inputs"], watched.sizes)
    operands = shaped_operands(path.name, pure, arguments, members, maker, most_dimensions=most_dimensions)
    memory.require(operands.nbytes, path.name)
    values = operands.values(operands.smallest, seed=0)
    check_calls(pure, operands.function, values, operands.weights, path.name)
    operands = operands.keeping(used_state(operands.function, values, operands.weights))
    values = {each.name: values[each.name] for each in operands.members}
    evaluated = replace(operands, model=copy.deepcopy(original).eval())
    problem = ModuleProblem(
        benchmark,
        _task_name(path),
        arguments,
        operands.state,
        (*operands.scalars, *(["out"] if operands.gives_scalar else [])),
        tuple(_origin(each, operands) for each in operands.members) if operands.are_made else (),
        operands.factories if operands.are_made else (),
        modes_differ(operands.function, evaluated.function, values),
    )
    task = replace(_task(operands, problem, tolerance), beside=beside)
    return Draft(task, problem, tuple(_remarks(operands, problem, task.tolerance)))


def _task(operands: Operands, problem: ModuleProblem, tolerance: float) -> TorchTask:
    verify, held_out = operands.awkward_shapes
    errors = [own_error(operands.function, operands.values(shape, seed=1)) for shape in verify[:3]]
    own = max(each.of_row for each in errors)
    reachable = all(OWN_ERRORS * each.of_element <= tolerance for each in errors)
    shapes = (operands.sizes, *verify, *held_out)
    sums = [operands.longest_sums(shape) for shape in shapes]
    added = max(map(max, sums))
    in_order = max(2, min(max(each.of_numbers for each in sums), LONG))
    relative = min(tolerance, max(RELATIVE, OWN_ERRORS * own, added * UNIT))
    return TorchTask(
        name=problem.name,
        summary=f"{problem.name}, of {problem.benchmark}.",
        function=operands.function,
        inputs=operands.inputs,
        outputs=operands.outputs,
        search=(operands.sizes,),
        verify=verify,
        held_out=held_out,
        granularity=operands.granularity,
        tolerance={
            "relative": float(f"{relative:.2g}"),
            "absolute": ABSOLUTE,
            "ratio": max(RATIO, math.ceil(OWN_ERRORS * in_order / math.log2(in_order))),
            **({"element": {"relative": tolerance, "absolute": tolerance}} if reachable else {}),
        },
        independent=independent_dimension(
            operands.function,
            lambda shape: operands.values(shape, seed=2),
            operands.inputs,
            operands.outputs,
            operands.granularity,
        ),
        reference=_reference(operands, problem),
    )


def _remarks(operands: Operands, problem: ModuleProblem, tolerance: Mapping[str, Any]) -> Sequence[str]:
    given = [each for each in operands.members if not each.place]
    return [
        *([_EVALUATION] if problem.modes_differ else []),
        *([_WHOLE] if any("int" in each.dtype for each in given) else []),
        *([_OF_ONE_SIZE] if not operands.sizes else []),
        *([] if "element" in tolerance else [_IMPRECISE]),
    ]


def _reference(operands: Operands, problem: ModuleProblem) -> str:
    names = ", ".join(each.name for each in operands.inputs)
    made = ""
    if operands.are_made:
        dimensions = list(operands.sizes)
        passed = "".join(f", {each}={each}" for each in dimensions)
        made = (
            f"\n\ndef make_inputs({', '.join(['rng', *dimensions])}):\n"
            f"    return make_problem_inputs(Path(__file__).parent, rng{passed})\n"
        )
    imported = "call_problem, make_problem_inputs" if made else "call_problem"
    return (
        f'"""{problem.name} of {problem.benchmark}: the forward of its Model, in the mode in which that is made."""\n\n'
        f"from pathlib import Path\n\nfrom mctskernel.problems.kernelbench.reference import {imported}\n\n\n"
        f"def reference({names}):\n    return call_problem(Path(__file__).parent, {names})\n{made}"
    )


def _arguments(model_class: Any, watched: Watched) -> tuple[tuple[Argument, ...], tuple[Operand, ...]]:
    """What `forward` is called with, in its order, and which of that are tensors."""
    names = _parameter_names(model_class, len(watched.values))
    arguments: list[Argument] = []
    operands: list[Operand] = []
    for index, (name, value) in enumerate(zip(names, watched.values, strict=True)):
        if isinstance(value, torch.Tensor):
            arguments.append(Argument(input=name))
            operands.append(Operand.given(name, value, watched.drawn(index)))
        elif isinstance(value, Plain):
            arguments.append(Argument(value=value))
        else:
            raise TaskError(
                f"get_inputs gives {type(value).__name__} for '{name}', where a tensor or a number is needed."
            )
    if not operands:
        raise TaskError("get_inputs gives no tensor: there is nothing to compute with.")
    return tuple(arguments), tuple(operands)


def _parameter_names(model_class: Any, count: int) -> list[str]:
    """Names of forward's parameters, as many as it is given; made up beyond those that it names."""
    code = getattr(getattr(model_class, "forward", None), "__code__", None)
    named = list(code.co_varnames[1 : code.co_argcount]) if code is not None else []
    return [*named[:count], *(f"input{number}" for number in range(len(named), count))]


def _require_room(names: Mapping[str, Any], given: Sequence[Operand], memory: Memory, name: str) -> None:
    """Inputs and weights must fit, before any of them is made; weights that can't be counted are let through."""
    weights = 0
    try:
        model = made_model(names, "meta")
    except TaskError:
        pass  # some look at values as they are made: then they are made, for whatever they are
    else:
        weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    memory.require(sum(each.nbytes for each in given) + weights, name)


def _origin(operand: Operand, operands: Operands) -> Origin:
    tensor = next(each for each in operands.inputs if each.name == operand.name)
    return Origin(
        operand.name,
        tensor.dtype,
        tensor.shape,
        operand.source,
        tensor.distribution,
        tensor.low,
        tensor.high,
    )


def _task_name(path: Path) -> str:
    name = re.sub(r"[^\w.-]+", "_", path.stem).strip("_.-")
    return name or "problem"
