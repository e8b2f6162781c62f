"""A definition with its workloads as a task: every workload is a search shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from mctskernel.core.documents import indented_json
from mctskernel.core.dtypes import is_floating, numpy_dtype, rounding_unit
from mctskernel.core.expression import ExpressionError
from mctskernel.core.kernel import Language
from mctskernel.core.task import Array, Bound, Precision, Shape, TaskError, Tensor, shape_label
from mctskernel.problems.definitions.definition import (
    FLASHINFER_BENCH,
    Axes,
    Custom,
    Definition,
    Found,
    Random,
    Safetensors,
    Scalar,
    Workload,
    read_axes,
)
from mctskernel.problems.definitions.reference import (
    FULL_RANGE,
    RUN_FILE,
    WORKLOAD,
    DefinitionProblem,
    call_reference,
    custom_values,
    definition_function,
    make_problem_inputs,
    task_tensors,
)
from mctskernel.problems.problem import (
    PROBLEM_FILE,
    Problem,
    available_memory,
    blamed,
    task_name,
)
from mctskernel.problems.tolerance import floating, imprecisions, own_errors, tolerance_table
from mctskernel.problems.torch_dimensions import Dimensions, awkward_shapes
from mctskernel.problems.torch_reference import find_function, listed_results, tensor_of, tensors_of
from mctskernel.problems.torch_task import TorchTask, independent_dimension, problem_of, reference_text
from mctskernel.run import TASK_FILE_LIMIT

SMALL = 1 << 20
"""Workloads up to this many bytes are verified at every element, like the small synthetic shapes."""

MOST_VERIFIED = 6
"""At most so many workloads are verified at every element; all are verified where they are timed."""

TRIED = 8 << 20  # the reference is only called at shapes of up to this many bytes when a problem is read
MOST_TRIED = 2  # shapes at which the reference is called twice, and its own rounding error is measured

_WITHOUT_KERNEL = (
    "Make its folder with `mctskernel new-task DIR --from-problem` and write a kernel with a launch plan there. A "
    "solution beside the definition is a program with host code, which can't be searched as it is."
)


def task_of(found: Found, language: Language | None, precision: Precision) -> Problem:
    """Make a task of a definition. Runs its Python at small sizes. Raises TaskError."""
    definition, workloads = found.definition, found.workloads
    _check_definition(definition)
    axes = read_axes(definition)
    inputs, outputs = (task_tensors(specs, axes) for specs in (definition.inputs, definition.outputs))
    shapes = _workload_shapes(definition, axes, workloads, (*inputs, *outputs))
    given, copied = _given_files(found)
    own_files = {RUN_FILE: definition.reference.encode(), **copied}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, data in own_files.items():
            (folder / name).write_bytes(data)
        scalars = _fixed_scalars(workloads) | _custom_scalars(folder, definition, axes, shapes)
        problem = DefinitionProblem(
            found.benchmark, definition.name, definition, workloads, shapes, scalars, given
        )
        (folder / PROBLEM_FILE).write_bytes(indented_json(problem))
        task = _drafted(_Trial(folder, problem, axes, inputs, outputs), own_files, precision)
        made = problem_of(found.benchmark, task, language)
    if made.has_kernel:
        return made
    *notes, without_kernel = made.notes
    return replace(made, notes=(*notes, f"{without_kernel} {_WITHOUT_KERNEL}"))


@dataclass(frozen=True)
class _Trial:
    """A problem in a folder from where its reference can be called, at small sizes."""

    folder: Path
    problem: DefinitionProblem
    axes: Axes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def has_files(self) -> bool:
        return any(each.has_files for each in self.problem.workloads)

    @property
    def is_made(self) -> bool:
        """Whether inputs come from files or from the definition's own function."""
        return self.has_files or bool(self.problem.definition.custom_inputs_entrypoint)

    @property
    def number(self) -> dict[str, int]:
        """The number of no workload, where they have numbers."""
        return {WORKLOAD: 0} if WORKLOAD in self.problem.shapes[0] else {}

    def function(self, *tensors: Any) -> Any:
        run = find_function(str(self.folder / RUN_FILE), "run")
        return definition_function(self.problem, run)(*tensors)

    def nbytes(self, shape: Shape) -> int:
        return sum(each.nbytes(shape) for each in (*self.inputs, *self.outputs))

    def drawn(self, shape: Shape, seed: int) -> dict[str, Array]:
        return make_problem_inputs(self.folder, np.random.default_rng(seed), **shape)

    def truth(self, inputs: Iterable[Array]) -> tuple[Array, ...]:
        """The outputs in 64-bit floats. Raises TaskError."""
        wide = [each.astype(np.float64) if is_floating(each.dtype) else each for each in inputs]
        with blamed("Its reference raised"), np.errstate(all="ignore"):
            return listed_results(call_reference(self.folder, *wide))

    def checked(self, inputs: Mapping[str, Array], shape: Shape) -> tuple[Array, ...]:
        """The outputs. Raises TaskError where they have other shapes than in the definition."""
        found = self.truth(inputs.values())
        for tensor, array in zip(self.outputs, found, strict=True):
            extents = tensor.extents(shape)
            if array.shape != extents:
                raise TaskError(
                    f"Its reference returns '{tensor.name}' of the shape {array.shape} at {shape_label(shape)}; in the "
                    f"definition it is {extents}."
                )
        return found


def _drafted(trial: _Trial, own_files: Mapping[str, bytes], precision: Precision) -> TorchTask:
    problem = trial.problem
    awkward, held_out = _awkward(trial)
    by_size = sorted(problem.shapes, key=trial.nbytes)
    small = [shape for shape in by_size if trial.nbytes(shape) <= SMALL][:MOST_VERIFIED]
    verify = (*awkward, *small) or (by_size[0],)
    notes = [
        f"{file} is too large to copy: the task reads it there."
        for file in problem.given.values()
        if Path(file).is_absolute()
    ]
    if any(each.allowed.required_matched_ratio < 1 for each in problem.workloads):
        notes.append(
            "The benchmark allows a share of wrong elements at some workloads; here every element must be right."
        )
    notes += _try(trial, verify)
    tried = sorted((each for each in verify if trial.nbytes(each) <= TRIED), key=trial.nbytes)
    drawn = (tensors_of(trial.drawn(shape, 1), trial.inputs) for shape in tried[-MOST_TRIED:])
    own = own_errors(trial.function, drawn, trial.outputs)
    return TorchTask(
        name=task_name(problem.name),
        summary=problem.definition.description or f"{problem.name} of {problem.benchmark}.",
        function=trial.function,
        inputs=trial.inputs,
        outputs=trial.outputs,
        search=problem.shapes,
        verify=verify,
        held_out=held_out,
        reference=reference_text(
            f"The reference of a problem of {problem.benchmark}, which is in {RUN_FILE}.",
            call_reference.__module__,
            [tensor.name for tensor in trial.inputs],
            [*trial.axes.dimensions, *trial.number],
            makes_inputs=trial.is_made,
        ),
        scalars={name: int(v) if isinstance(v, bool) else v for name, v in problem.scalars.items()},
        tolerance=tolerance_table(trial.outputs, own, _bounds(trial), precision),
        precision=precision,
        independent="" if trial.is_made else _independent(trial),
        inputs_by=WORKLOAD if trial.number else "",
        own_files=own_files,
        problem=problem,
        notes=(*notes, *imprecisions(trial.outputs, own)),
    )


def _awkward(trial: _Trial) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Small shapes that no workload has, to verify at and to hold out; none where inputs come from files."""
    axes, problem = trial.axes, trial.problem
    if trial.has_files or not axes.dimensions:
        return (), ()
    sizes = {name: problem.shapes[0][name] for name in axes.dimensions}

    def works(shape: Shape) -> bool:
        try:
            if not axes.allow(problem.definition, shape) or trial.nbytes(shape) > TRIED:
                return False
            if any(min(each.extents(shape)) < 1 for each in (*trial.inputs, *trial.outputs)):
                return False
            trial.checked(trial.drawn({**shape, **trial.number}, 0), shape)
        except (TaskError, ExpressionError):
            return False
        return True

    extents = tuple(tensor.shape for tensor in trial.inputs)
    found = awkward_shapes(Dimensions(sizes, extents, dict.fromkeys(sizes, 1)), works)
    known = [_without_number(shape) for shape in problem.shapes]
    verify, held_out = (
        tuple({**each, **trial.number} for each in shapes if each not in known) for shapes in found
    )
    return verify, held_out


def _try(trial: _Trial, shapes: Sequence[Shape]) -> Iterator[str]:
    """Run the reference at its smallest shapes: its outputs must fit the definition and repeat. Raises TaskError."""
    for shape in sorted(shapes, key=trial.nbytes)[:MOST_TRIED]:
        if trial.nbytes(shape) > TRIED:
            yield f"The reference was not tried: its smallest shape is {shape_label(shape)}."
            return
        inputs = trial.drawn(shape, 0)
        for tensor, first, second in zip(
            trial.outputs, trial.checked(inputs, shape), trial.truth(inputs.values()), strict=True
        ):
            if not np.array_equal(first, second, equal_nan=True):
                raise TaskError(
                    f"Its reference returns another '{tensor.name}' when it is called again on the same inputs."
                )


def _independent(trial: _Trial) -> str:
    def wide(*tensors: Any) -> Any:
        return tuple(map(torch.from_numpy, trial.truth(tensor.numpy() for tensor in tensors)))

    def values(shape: Shape) -> dict[str, Any]:
        drawn = trial.drawn({**shape, **trial.number}, 2)
        return {name: tensor_of(each, torch.float64) for name, each in drawn.items()}

    grains = dict.fromkeys(trial.axes.dimensions, 1)
    return independent_dimension(wide, values, trial.inputs, trial.outputs, grains)


def _bounds(trial: _Trial) -> list[tuple[Shape, Bound]]:
    """The benchmark's tolerance on elements at the shape of each workload, but at least one rounding of their type.

    flashinfer-bench requires the error to be within either part, and we within their sum, so half of each is used.
    """
    units = (rounding_unit(numpy_dtype(tensor.dtype)) for tensor in floating(trial.outputs))
    rounding = 0.5 * max(units, default=0.0)
    allowed = [workload.allowed for workload in trial.problem.workloads]
    share = 0.5 if trial.problem.benchmark == FLASHINFER_BENCH else 1.0
    return [
        (shape, Bound(max(share * each.max_rtol, rounding), share * each.max_atol, each.most))
        for shape, each in zip(trial.problem.shapes, allowed, strict=True)
    ]


def _given_files(found: Found) -> tuple[dict[str, str], dict[str, bytes]]:
    """The files that workloads name, and the content of those small enough to copy."""
    given: dict[str, str] = {}
    copied: dict[str, bytes] = {}
    for source in (source for workload in found.workloads for source in workload.inputs.values()):
        if isinstance(source, Safetensors) and source.path not in given:
            file = found.file(source.path)
            given[source.path] = str(file)
            if file.stat().st_size <= TASK_FILE_LIMIT:
                given[source.path] = f"given_{len(given)}.safetensors"
                copied[given[source.path]] = file.read_bytes()
    return given, copied


def _custom_scalars(
    folder: Path, definition: Definition, axes: Axes, shapes: Sequence[Shape]
) -> dict[str, bool | int | float]:
    """The numbers that the definition's own function makes, which must be constant. Raises TaskError."""
    entry = definition.custom_inputs_entrypoint
    names = [name for name, spec in definition.inputs.items() if spec.shape is None]
    if not entry or not names:
        return {}
    function = find_function(str(folder / RUN_FILE), entry)
    shape = min(map(_without_number, shapes), key=lambda shape: math.prod(shape.values()))
    first, second = (custom_values(definition, axes, function, shape, seed) for seed in (0, 1))
    for name in names:
        if not isinstance(first[name], bool | int | float) or first[name] != second[name]:
            raise TaskError(f"{entry} returns a different number '{name}' each time; it must be constant.")
    return {name: first[name] for name in names}


def _without_number(shape: Shape) -> dict[str, int]:
    return {name: size for name, size in shape.items() if name != WORKLOAD}


def _check_definition(definition: Definition) -> None:
    if definition.op_type == "sampling":
        raise TaskError("Its outputs are drawn at random and checked by frequency, which isn't supported.")
    if all(spec.shape is None for spec in definition.inputs.values()):
        raise TaskError("It has no tensor among its inputs.")
    for name, spec in (*definition.inputs.items(), *definition.outputs.items()):
        if "float8" in spec.dtype or "float4" in spec.dtype:
            raise TaskError(
                f"'{name}' is {spec.dtype}: the reference is computed in 64-bit floats, too exact to verify it."
            )
        if spec.optional:
            raise TaskError(f"'{name}' is optional, which isn't supported.")
        if name in definition.outputs and spec.shape is None:
            raise TaskError(f"The output '{name}' is a Python number; a kernel writes tensors.")


def _workload_shapes(
    definition: Definition, axes: Axes, workloads: tuple[Workload, ...], tensors: Sequence[Tensor]
) -> tuple[dict[str, int], ...]:
    """The shape of each workload, with a number where sizes are equal or inputs are files. Raises TaskError."""
    memory = available_memory()
    shapes = []
    for workload in workloads:
        if unknown := [name for name in axes.dimensions if name not in workload.axes]:
            raise TaskError(f"The workload {workload.uuid} gives the axis '{unknown[0]}' no size.")
        _check_inputs(definition, workload)
        shape = {name: workload.axes[name] for name in axes.dimensions}
        shapes.append(shape)
        axes.values(shape)  # raises where an axis has no size
        memory.require(sum(each.nbytes(shape) for each in tensors), f"The workload {workload.uuid}")
    distinct = {tuple(shape.items()) for shape in shapes}
    if len(distinct) < len(shapes) or any(workload.has_files for workload in workloads):
        if WORKLOAD in axes.extents:
            raise TaskError(
                f"It has an axis called '{WORKLOAD}', a name that is needed to number its workloads."
            )
        shapes = [{**shape, WORKLOAD: number} for number, shape in enumerate(shapes, 1)]
    return tuple(shapes)


def _fixed_scalars(workloads: tuple[Workload, ...]) -> dict[str, bool | int | float]:
    """The inputs that are numbers, which must be equal in all workloads. Raises TaskError."""
    found: dict[str, bool | int | float] = {}
    for workload in workloads:
        for name, source in workload.inputs.items():
            if isinstance(source, Scalar) and found.setdefault(name, source.value) != source.value:
                raise TaskError(
                    f"'{name}' is {found[name]:g} in one workload and {source.value:g} in another; it must be the same "
                    "everywhere: split the problem."
                )
    return found


def _check_inputs(definition: Definition, workload: Workload) -> None:
    where = f"In the workload {workload.uuid}"
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name, Random())
        if isinstance(source, Custom) and not definition.custom_inputs_entrypoint:
            raise TaskError(
                f"{where} '{name}' is custom, but the definition has no custom_inputs_entrypoint."
            )
        if spec.shape is None and not isinstance(source, Scalar | Custom):
            raise TaskError(f"{where} the input '{name}' has no value; in the definition it is a number.")
        if isinstance(source, Random) and "int" in spec.dtype and spec.dtype not in FULL_RANGE:
            raise TaskError(
                f"{where} '{name}' is random {spec.dtype} of an unknown range, which could be indices. Give the values "
                "in a safetensors file, or by custom_inputs_entrypoint."
            )
