"""A KernelBench problem as a task: the dimensions in which its tensors can vary, and how it is verified.

Everything is found on `meta` tensors or small shapes before anything is allocated at its full size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.task import Bound, Operator, Precision, Shape, TaskError
from mctskernel.problems.kernelbench.drawing import Extents, Watched, watch
from mctskernel.problems.kernelbench.operands import FEW, MOST_WORK, Operand, Operands, weight_operands
from mctskernel.problems.kernelbench.probing import check_calls, check_operators, modes_differ, used_state
from mctskernel.problems.kernelbench.reference import (
    NAME,
    TOLERANCE,
    Argument,
    ModuleProblem,
    Origin,
    ValueSource,
    call_reference,
    copied,
    made_model,
    run_problem,
    state_of,
    without_running_statistics,
)
from mctskernel.problems.problem import Memory, available_memory, task_name
from mctskernel.problems.tolerance import OwnError, own_errors, relaxed, tolerance_table
from mctskernel.problems.torch_dimensions import GRANULARITIES, Dimensions, find_dimensions
from mctskernel.problems.torch_task import (
    TorchTask,
    called,
    drawn_tensors,
    independent_dimension,
    reference_text,
)
from mctskernel.profiling.pytorch.verdict import TOLERANCES

MOST_VARYING = 12
"""With more tensors than this only the extents of forward's arguments vary, not those of parameters."""

_FIXED = "fixed"
"""Prefix of the name of an extent that never varies, followed by its size."""


def _shaped(fixed: Operands, most_dimensions: int) -> Operands:
    """Operands with as many varying dimensions as possible. Raises TaskError if the module fails."""
    fixed.check_result()
    found = _found(fixed)
    for dimensions in (*found, found[-1].restricted(list(found[-1].sizes)[:1])):
        operands = replace(fixed, dimensions=dimensions)
        if 0 < len(dimensions.sizes) <= most_dimensions and operands.agree:
            return operands
    return fixed


def _found(fixed: Operands) -> list[Dimensions]:
    """The dimensions of forward's arguments, and of few parameters; first without equal ones, and then with them."""
    few = len(fixed.members) <= MOST_VARYING
    varying = [
        index
        for index, each in enumerate(fixed.members)
        if each.source is not ValueSource.MODEL and (few or not each.place)
    ]

    def extended(extents: Sequence[Extents]) -> tuple[Extents, ...]:
        complete: list[Extents] = [each.size for each in fixed.members]
        for index, each in zip(varying, extents, strict=True):
            complete[index] = each
        return tuple(complete)

    def works(extents: Sequence[Extents], sizes: Shape) -> bool:
        if any(
            size != int(name.removeprefix(_FIXED)) for name, size in sizes.items() if name.startswith(_FIXED)
        ):
            return False
        return replace(fixed, dimensions=Dimensions({}, extended(extents), {})).works(sizes)

    members = [fixed.members[index] for index in varying]
    found = find_dimensions([_named(each, {}) for each in members], works)
    if _constant_size(found) > 1:
        # Matrices that are multiplied, or square: equal sizes are the same dimension.
        same = {size: f"size{size}" for each in members for size in each.size if size > 1}
        found = min(
            found, find_dimensions([_named(each, same) for each in members], works), key=_constant_size
        )
    split = _split(found, [index for index, each in enumerate(members) if not each.place], works)
    return [replace(each, extents=extended(each.extents)) for each in (split, found)]


def _split(
    found: Dimensions, indices: Sequence[int], works: Callable[[Sequence[Extents], Shape], bool]
) -> Dimensions:
    """Give each extent that varies alone a dimension of its own; not for parameters, where meta tensors mislead."""
    places = [(each, axis) for each in indices for axis in range(len(found.extents[each]))]
    for index, axis in places:
        given = found.extents[index][axis]
        if isinstance(given, int):
            # It may only have been taken for a dimension that can't vary.
            own, size, grains = f"dim{axis}", given, list(GRANULARITIES)
        else:
            own, size, grains = f"{given}_{axis}", found.sizes[given], [1]
            occurrences = sum(each.count(given) for each in found.extents)
            if occurrences < 2 or found.granularity[given] != 1:
                continue
        if index or own in found.sizes:
            own = f"{own}_{index}"
        tensor = (*found.extents[index][:axis], own, *found.extents[index][axis + 1 :])
        extents = (*found.extents[:index], tensor, *found.extents[index + 1 :])
        for grain in grains if size > 1 else ():
            sizes = [*(grain * count for count in (1, 3, 37)), *([2 * size + 1] if grain == 1 else [])]
            if size % grain == 0 and all(works(extents, {**found.sizes, own: each}) for each in sizes):
                found = Dimensions({**found.sizes, own: size}, extents, {**found.granularity, own: grain})
                break
    return found


def _constant_size(dimensions: Dimensions) -> int:
    return math.prod(extent for each in dimensions.extents for extent in each if isinstance(extent, int))


def _named(operand: Operand, names: Mapping[int, str]) -> tuple[tuple[str, int], ...]:
    """The extents of a tensor with their names; a parameter's window extents (its last ones) never vary."""
    return tuple(
        (f"{_FIXED}{size}" if operand.place and axis > 1 else names.get(size, ""), size)
        for axis, size in enumerate(operand.size)
    )


MOST_OWN = 0.05
"""Own errors of 16-bit results that say something: where a row is zeros, any is large."""

OWN_ERRORS = 4.0
"""A kernel may be off by so many times the problem's own error in float32."""

_EVALUATION = (
    "It is searched in training mode, as KernelBench's harness runs it. In evaluation mode its result differs, and "
    "there a solution calls the original forward."
)
_WHOLE = "KernelBench's harness passes integers as 32-bit floats; a solution converts them back."
_IMPRECISE = (
    "The problem's own error in 32-bit floats is about the tolerance of KernelBench's harness, so a kernel that is "
    "correct here may be refused there."
)
_IN_TF32 = (
    "KernelBench's harness compares with PyTorch, which computes convolutions in TF32 or in 32-bit floats by size: "
    "a kernel that computes them the other way may be refused there."
)
_OF_ONE_SIZE = (
    "None of its sizes can vary, so it is verified at its full size, which takes long without a GPU."
)


MOST_DIMENSIONS = 16

DRAWS = (1, 2, 3)
"""Seeds of the values for which the problem's own error is measured."""

UNKNOWN = OwnError(TOLERANCE / OWN_ERRORS, 0.0, math.inf)
"""Taken for the error of a problem that is too large to be run here: what its benchmark tolerates."""


def drafted(
    path: Path,
    own_files: Mapping[str, bytes],
    *,
    precision: Precision = Precision.LOCKED,
    most_dimensions: int = MOST_DIMENSIONS,
) -> TorchTask:
    """Make a task of a problem; above `most_dimensions` only the first dimension varies. Raises TaskError."""
    memory = available_memory()
    names = run_problem(path)
    watched = watch(names["get_inputs"], memory.size)
    arguments, given = _arguments(names["Model"], watched)
    _require_memory(names, given, memory, path.name)
    original = made_model(names)
    shared = {id(each): each for each in state_of(original).values()}
    pure = without_running_statistics(copied(original, shared))
    members = (*given, *weight_operands(pure, {each.name for each in given}))
    whole = Dimensions({}, tuple(each.size for each in members), {})
    still = copied(pure, shared)
    for each in still.modules():
        if isinstance(each, torch.nn.modules.dropout._DropoutNd):
            each.p = 0.0  # else nothing can be traced
    operands = _shaped(Operands(path.name, still, arguments, members, watched, whole), most_dimensions)
    tensors = (*operands.inputs, *operands.outputs)
    memory.require(sum(each.nbytes(operands.sizes) for each in tensors), path.name)
    smallest = min(operands.awkward_shapes[0], key=operands.work)
    values, on_meta = None, drawn_tensors(operands.inputs, smallest, "meta")
    function = replace(operands, model=pure).function
    if operands.can_run(smallest):
        values = operands.values(smallest, seed=0)
        check_calls(pure, function, values, operands.state, path.name)
    else:
        check_operators(pure, function, on_meta, operands.state, path.name)
    parameters = dict(pure.named_parameters())
    trained = {name for name, place in operands.state.items() if place in parameters}
    used = used_state(operands.function, on_meta, trained)
    needed = operands.keeping({*operands.state} - trained | used)
    if needed.works({name: 3 * grain for name, grain in needed.granularity.items()}):
        operands = needed  # else the sizes of others matter, for what leads to nothing
    kept = [each.name for each in operands.members]
    result = called(operands.function, operands.inputs, operands.sizes, "meta")
    evaluated = replace(operands, model=copied(original, shared).eval())
    problem = ModuleProblem(
        NAME,
        task_name(path.stem),
        arguments,
        operands.state,
        (*operands.scalars, *(["out"] if result.dim() == 0 else [])),
        tuple(
            Origin(each, member.source)
            for member, each in zip(operands.members, operands.inputs, strict=True)
            if operands.are_made
        ),
        operands.factories if operands.are_made else (),
        modes_differ(
            operands.function,
            evaluated.function,
            {name: on_meta[name] for name in kept},
            values and {name: values[name] for name in kept},
        ),
    )
    task = replace(_task(operands, problem), own_files=own_files, precision=precision)
    if precision is Precision.RELAXED:
        task = replace(task, tolerance=relaxed(Bound(TOLERANCE, TOLERANCE)))
    return replace(task, problem=problem, notes=tuple(_notes(operands, problem, task)))


def _task(operands: Operands, problem: ModuleProblem) -> TorchTask:
    verify, held_out, errors = _precise_shapes(operands)
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
        tolerance=_tolerance_table(operands, (*verify, *held_out), errors),
        independent=independent_dimension(
            operands.function,
            lambda shape: operands.values(shape, seed=2),
            operands.inputs,
            operands.outputs,
            operands.granularity,
            can_run=lambda shape: operands.works(shape) and operands.can_run(shape),
        ),
        reference=reference_text(
            f"{problem.name} of {problem.benchmark}: the forward of its Model.",
            call_reference.__module__,
            [each.name for each in operands.inputs],
            list(operands.sizes),
            makes_inputs=operands.are_made,
        ),
    )


def _precise_shapes(operands: Operands) -> tuple[tuple[Shape, ...], tuple[Shape, ...], tuple[OwnError, ...]]:
    """Shapes to verify at and to hold out, and the module's own errors at all of them.

    Without degenerate ones, such as groups of one element that are normalised: nothing but roundings is compared there.
    """
    verify, held_out = operands.awkward_shapes
    found = [(shape, _own_error(operands, shape)) for shape in (*verify, *held_out)]
    precise = [(shape, error) for shape, error in found if OWN_ERRORS * error.of_row <= TOLERANCE]
    if sum(shape in verify for shape, _ in precise) < FEW:
        others = (shape for shape in operands.small_shapes if shape not in (*verify, *held_out))
        more = [(shape, _own_error(operands, shape)) for shape in others if operands.work(shape) <= MOST_WORK]
        more = [(shape, error) for shape, error in more if OWN_ERRORS * error.of_row <= TOLERANCE][:FEW]
        verify = (*verify, *(shape for shape, _ in more))
        precise += more
    kept = precise if any(shape in verify for shape, _ in precise) else found
    return (
        tuple(shape for shape, _ in kept if shape in verify),
        tuple(shape for shape, _ in kept if shape not in verify),
        tuple(error for _, error in sorted(kept, key=lambda each: each[0] not in verify)),
    )


def _own_error(operands: Operands, shape: Shape) -> OwnError:
    """The module's own error at a shape, for several draws; where it is too large to be run, not known to be less than
    anything that is tolerated."""
    if not operands.can_run(shape):
        return UNKNOWN
    seeds = DRAWS if operands.work(shape) <= MOST_WORK else DRAWS[:1]
    drawn = (operands.values(shape, seed) for seed in seeds)
    return own_errors(operands.function, drawn, operands.outputs).get("out", OwnError())


def _tolerance_table(
    operands: Operands, shapes: Sequence[Shape], errors: Sequence[OwnError]
) -> dict[str, Any]:
    """The table [tolerance], with the harness's own bound wherever 32-bit floats can meet it."""
    out = operands.outputs[0]
    if out.dtype in {"float16", "bfloat16"}:  # casts in the module decide how precise it is
        known = [each for each in errors if each.of_row < MOST_OWN]
        return tolerance_table([out], {out.name: max(known, default=OwnError())}, ())
    ours = TOLERANCES["float32"]
    table: dict[str, Any] = {"relative": ours.relative, "absolute": ours.absolute, "ratio": ours.ratio}
    element = {"relative": TOLERANCE, "absolute": TOLERANCE}
    reachable = [
        shape
        for shape, error in zip(shapes, errors, strict=True)
        if OWN_ERRORS * error.of_element <= TOLERANCE
    ]
    if len(reachable) == len(shapes):
        table["element"] = element
    elif reachable:
        table["at"] = [{"shape": dict(shape), "element": element} for shape in (*reachable, operands.sizes)]
    return table


def _notes(operands: Operands, problem: ModuleProblem, task: TorchTask) -> Sequence[str]:
    given, tolerance = [each for each in operands.members if not each.place], task.tolerance
    return [
        *([_EVALUATION] if problem.modes_differ else []),
        *([_WHOLE] if any("int" in each.dtype for each in given) else []),
        *([_OF_ONE_SIZE] if not operands.sizes else []),
        *([_IN_TF32] if Operator.CONVOLUTION in task.tf32 else []),
        *([] if any("element" in each for each in (tolerance, *tolerance.get("at", ()))) else [_IMPRECISE]),
    ]


def _arguments(model_class: Any, watched: Watched) -> tuple[tuple[Argument, ...], tuple[Operand, ...]]:
    """The arguments of `forward` in order, and those that are tensors."""
    code = getattr(getattr(model_class, "forward", None), "__code__", None)
    named = list(code.co_varnames[1 : code.co_argcount]) if code is not None else []
    names = [*named, *(f"input{number}" for number in range(len(named), len(watched.values)))]
    arguments: list[Argument] = []
    operands: list[Operand] = []
    for index, (name, value) in enumerate(zip(names, watched.values, strict=False)):
        if isinstance(value, torch.Tensor):
            operands.append(Operand.given(name, value, watched.drawn(index)))
            arguments.append(Argument(input=operands[-1].name))
        elif isinstance(value, bool | int | float | str | None):
            arguments.append(Argument(value=value))
        elif isinstance(value, tuple | list) and all(isinstance(each, int | float) for each in value):
            arguments.append(Argument(value=tuple(value)))
        else:
            raise TaskError(
                f"get_inputs returns {type(value).__name__} for '{name}'; a tensor, a number or a tuple of numbers is "
                "needed."
            )
    if not operands:
        raise TaskError("get_inputs returns no tensor.")
    return tuple(arguments), tuple(operands)


def _require_memory(names: Mapping[str, Any], given: Sequence[Operand], memory: Memory, name: str) -> None:
    """Check that inputs and weights fit before any is made; weights that can't be counted are ignored."""
    weights = 0
    with suppress(TaskError):  # where its constructor reads values, which meta tensors don't have
        model = made_model(names, "meta")
        weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    memory.require(sum(math.prod(each.size) * DTYPE_BYTES[each.dtype] for each in given) + weights, name)
