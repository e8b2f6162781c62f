"""A definition with its workloads as a task: every workload is a search shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch

from mctskernel.core.dtypes import is_floating, numpy_dtype, rounding_unit
from mctskernel.core.expression import ExpressionError
from mctskernel.core.kernel import Language
from mctskernel.core.task import Array, Bound, Precision, Shape, TaskError, Tensor, shape_label
from mctskernel.problems.definitions.definition import FLASHINFER_BENCH, Allowed, Axes, Safetensors, read_axes
from mctskernel.problems.definitions.folder import (
    Found,
    check_definition,
    fixed_scalars,
    has_files,
    workload_shapes,
)
from mctskernel.problems.definitions.reference import (
    RUN_FILE,
    WORKLOAD,
    DefinitionProblem,
    call_reference,
    custom_values,
    definition_function,
    input_tensors,
    make_problem_inputs,
    output_tensors,
)
from mctskernel.problems.problem import PROBLEM_FILE, Problem, record_text, task_name
from mctskernel.problems.tolerance import floating, imprecisions, own_errors, tolerance_table
from mctskernel.problems.torch_dimensions import Dimensions, awkward_shapes
from mctskernel.problems.torch_reference import find_function, listed_results, tensor_of
from mctskernel.problems.torch_task import (
    Draft,
    TorchTask,
    independent_dimension,
    problem_of,
    reference_text,
)
from mctskernel.run import TASK_FILE_LIMIT

SMALL = 1 << 20
"""Workloads up to this many bytes are verified at every element, like the small synthetic shapes."""

MOST_VERIFIED = 6
"""At most so many workloads are verified at every element; all are verified where they are timed."""

TRIED = 8 << 20
"""The reference is only called at shapes of up to this many bytes when a problem is read."""

MOST_TRIED = 2
"""Shapes at which the reference is called twice, and its own rounding error is measured."""

_WITHOUT_KERNEL = (
    "Make its folder with `mctskernel new-task DIR --from-problem` and write a kernel with a launch plan there. A "
    "solution beside the definition is a program with host code, which can't be searched as it is."
)


def task_of(found: Found, language: Language | None, precision: Precision) -> Problem:
    """Make a task of a definition. Runs its Python at small sizes. Raises TaskError."""
    check_definition(found.definition)
    axes = read_axes(found.definition)
    shapes = workload_shapes(found.definition, axes, found.workloads)
    given, copied = _given_files(found)
    problem = DefinitionProblem(
        found.benchmark,
        found.definition.name,
        found.definition,
        found.workloads,
        shapes,
        fixed_scalars(found.workloads),
        given,
    )
    own_files = {RUN_FILE: problem.definition.reference.encode(), **copied}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, data in own_files.items():
            (folder / name).write_bytes(data)
        problem = _with_custom_scalars(folder, problem, axes)
        (folder / PROBLEM_FILE).write_bytes(record_text(problem))
        draft = _drafted(_Trial(folder, problem, axes), own_files, precision)
        made = problem_of(found.benchmark, draft, language)
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

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """The task's inputs."""
        return input_tensors(self.problem.definition, self.axes)

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """The task's outputs."""
        return output_tensors(self.problem.definition, self.axes)

    @property
    def has_files(self) -> bool:
        """Whether inputs come from files."""
        return any(map(has_files, self.problem.workloads))

    @property
    def is_made(self) -> bool:
        """Whether inputs come from files or from the definition's own function."""
        return self.has_files or bool(self.problem.definition.custom_inputs_entrypoint)

    @property
    def is_numbered(self) -> bool:
        """Whether workloads have numbers."""
        return WORKLOAD in self.problem.shapes[0]

    def function(self, *tensors: Any) -> Any:
        """The reference, on PyTorch tensors."""
        run = find_function(str(self.folder / RUN_FILE), "run")
        return definition_function(self.problem, run)(*tensors)

    def nbytes(self, shape: Shape) -> int:
        """Bytes of all inputs and outputs at a shape."""
        return sum(each.nbytes(shape) for each in (*self.inputs, *self.outputs))

    def drawn(self, shape: Shape, seed: int) -> dict[str, Array]:
        """Inputs at a shape."""
        return make_problem_inputs(self.folder, np.random.default_rng(seed), **shape)

    def truth(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs in 64-bit floats. Raises TaskError."""
        wide = [each.astype(np.float64) if is_floating(each.dtype) else each for each in inputs.values()]
        try:
            with np.errstate(all="ignore"):
                result = call_reference(self.folder, *wide)
        except TaskError:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(f"Its reference raised {type(error).__name__}: {error}") from error
        return dict(zip((tensor.name for tensor in self.outputs), listed_results(result), strict=True))

    def tensors(self, shape: Shape) -> dict[str, Any]:
        """Inputs at a shape as PyTorch's tensors."""
        drawn = self.drawn(shape, 1)
        return {each.name: tensor_of(drawn[each.name], getattr(torch, each.dtype)) for each in self.inputs}

    def check_outputs(self, outputs: Mapping[str, Array], shape: Shape) -> None:
        """Raise TaskError where outputs have other shapes than in the definition."""
        for tensor in self.outputs:
            extents = tensor.extents(shape)
            if outputs[tensor.name].shape != extents:
                raise TaskError(
                    f"Its reference returns '{tensor.name}' of the shape {outputs[tensor.name].shape} at "
                    f"{shape_label(shape)}; in the definition it is {extents}."
                )


def _drafted(trial: _Trial, own_files: Mapping[str, bytes], precision: Precision) -> Draft:
    problem = trial.problem
    awkward, held_out = _awkward(trial)
    by_size = sorted(problem.shapes, key=trial.nbytes)
    small = [shape for shape in by_size if trial.nbytes(shape) <= SMALL][:MOST_VERIFIED]
    verify = (*awkward, *small) or (by_size[0],)
    notes = [*_notes(trial), *_try(trial, verify)]
    tried = sorted((each for each in verify if trial.nbytes(each) <= TRIED), key=trial.nbytes)
    own = own_errors(trial.function, map(trial.tensors, tried[-MOST_TRIED:]), trial.outputs)
    task = TorchTask(
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
            [*trial.axes.dimensions, *([WORKLOAD] if trial.is_numbered else [])],
            makes_inputs=trial.is_made,
        ),
        scalars={name: int(v) if isinstance(v, bool) else v for name, v in problem.scalars.items()},
        tolerance=tolerance_table(trial.outputs, own, _bounds(trial), precision),
        precision=precision,
        independent="" if trial.is_made else _independent(trial),
        inputs_by=WORKLOAD if trial.is_numbered else "",
        own_files=own_files,
    )
    return Draft(task, problem, (*notes, *imprecisions(trial.outputs, own)))


def _awkward(trial: _Trial) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Small shapes that no workload has, to verify at and to hold out; none where inputs come from files."""
    definition, axes, problem = trial.problem.definition, trial.axes, trial.problem
    if trial.has_files or not axes.dimensions:
        return (), ()
    sizes = {name: problem.shapes[0][name] for name in axes.dimensions}
    number = {WORKLOAD: 0} if trial.is_numbered else {}

    def works(shape: Shape) -> bool:
        try:
            if not axes.allow(definition, shape) or trial.nbytes(shape) > TRIED:
                return False
            if any(min(each.extents(shape)) < 1 for each in (*trial.inputs, *trial.outputs)):
                return False
            trial.check_outputs(trial.truth(trial.drawn({**shape, **number}, 0)), shape)
        except (TaskError, ExpressionError):
            return False
        return True

    extents = tuple(tensor.shape for tensor in trial.inputs)
    found = awkward_shapes(Dimensions(sizes, extents, dict.fromkeys(sizes, 1)), works)
    known = [_without_number(shape) for shape in problem.shapes]
    verify, held_out = (tuple({**each, **number} for each in shapes if each not in known) for shapes in found)
    return verify, held_out


def _try(trial: _Trial, shapes: Sequence[Shape]) -> Iterator[str]:
    """Run the reference at its smallest shapes: its outputs must fit the definition and repeat. Raises TaskError."""
    for shape in sorted(shapes, key=trial.nbytes)[:MOST_TRIED]:
        if trial.nbytes(shape) > TRIED:
            yield f"The reference was not tried: its smallest shape is {shape_label(shape)}."
            return
        inputs = trial.drawn(shape, 0)
        first, second = trial.truth(inputs), trial.truth(inputs)
        trial.check_outputs(first, shape)
        for name, array in first.items():
            if not np.array_equal(array, second[name], equal_nan=True):
                raise TaskError(
                    f"Its reference returns another '{name}' when it is called again on the same inputs."
                )


def _independent(trial: _Trial) -> str:
    def wide(*tensors: Any) -> Any:
        inputs = {each.name: tensor.numpy() for each, tensor in zip(trial.inputs, tensors, strict=True)}
        return tuple(map(torch.from_numpy, trial.truth(inputs).values()))

    def values(shape: Shape) -> dict[str, Any]:
        number = {WORKLOAD: 0} if trial.is_numbered else {}
        drawn = trial.drawn({**shape, **number}, 2)
        return {name: tensor_of(each, torch.float64) for name, each in drawn.items()}

    grains = dict.fromkeys(trial.axes.dimensions, 1)
    return independent_dimension(wide, values, trial.inputs, trial.outputs, grains)


def _notes(trial: _Trial) -> Iterator[str]:
    problem = trial.problem
    if any(each.allowed.required_matched_ratio < 1 for each in problem.workloads):
        yield "The benchmark allows a share of wrong elements at some workloads; here every element must be right."
    for file in problem.given.values():
        if Path(file).is_absolute():
            yield f"{file} is too large to copy: the task reads it there."


def _bounds(trial: _Trial) -> list[tuple[Shape, Bound]]:
    """The benchmark's tolerance on elements at the shape of each workload."""
    units = (rounding_unit(numpy_dtype(tensor.dtype)) for tensor in floating(trial.outputs))
    rounding = 0.5 * max(units, default=0.0)
    bounds = [_bound(trial.problem.benchmark, each.allowed, rounding) for each in trial.problem.workloads]
    return list(zip(trial.problem.shapes, bounds, strict=True))


def _bound(benchmark: str, allowed: Allowed, rounding: float) -> Bound:
    """The benchmark's tolerance, but at least one rounding of the outputs' type.

    flashinfer-bench requires the error to be within either part, and we within their sum, so half of each is used.
    """
    share = 0.5 if benchmark == FLASHINFER_BENCH else 1.0
    most = math.inf if allowed.max_error_cap is None else allowed.max_error_cap
    return Bound(max(share * allowed.max_rtol, rounding), share * allowed.max_atol, most)


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


def _with_custom_scalars(folder: Path, problem: DefinitionProblem, axes: Axes) -> DefinitionProblem:
    """The problem with the numbers that the definition's own function makes, which must be constant."""
    definition = problem.definition
    entry = definition.custom_inputs_entrypoint
    names = [name for name, spec in definition.inputs.items() if spec.shape is None]
    if not entry or not names:
        return problem
    function = find_function(str(folder / RUN_FILE), entry)
    shape = min(map(_without_number, problem.shapes), key=lambda shape: math.prod(shape.values()))
    first, second = (custom_values(definition, axes, function, shape, seed) for seed in (0, 1))
    for name in names:
        if not isinstance(first[name], bool | int | float) or first[name] != second[name]:
            raise TaskError(f"{entry} returns a different number '{name}' each time; it must be constant.")
    return msgspec.structs.replace(problem, scalars={name: first[name] for name in names})


def _without_number(shape: Shape) -> dict[str, int]:
    return {name: size for name, size in shape.items() if name != WORKLOAD}
