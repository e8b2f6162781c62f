"""A definition, tried: its reference is called at small sizes, to see what it takes and how precise it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mctskernel.core.dtypes import DTYPE_BYTES, arithmetic_dtype, is_floating
from mctskernel.core.expression import ExpressionError, names_in
from mctskernel.core.task import Array, Shape, TaskError, Tensor, shape_label
from mctskernel.problems.definitions.axes import Axes
from mctskernel.problems.definitions.reference import (
    RUN_FILE,
    WORKLOAD,
    DefinitionProblem,
    call_definition,
    definition_function,
    input_tensors,
    make_definition_inputs,
    task_tensor,
)
from mctskernel.problems.definitions.support import allows, has_files
from mctskernel.problems.tolerance import listed_arrays, row_errors
from mctskernel.torch_dimensions import Dimensions, awkward_shapes
from mctskernel.torch_reference import find_function

TRIED = 8 << 20
"""Bytes of inputs and outputs up to which the reference is called when a problem is read."""

MOST_TRIED = 2
"""Shapes at which it is called twice, and its precision is looked at."""


class Trial:
    """A definition in a folder from where it can be called.

    `is_made` says that inputs come from files or from the definition's own function, `is_numbered` that workloads have
    numbers beside their sizes.
    """

    def __init__(self, folder: Path, problem: DefinitionProblem, axes: Axes) -> None:
        self._folder, self._problem, self._axes = folder, problem, axes
        definition = problem.definition
        self.inputs = input_tensors(definition, axes)
        self.outputs = tuple(task_tensor(name, spec, axes) for name, spec in definition.outputs.items())
        self.is_numbered = WORKLOAD in problem.shapes[0]
        self.is_made = bool(definition.custom_inputs_entrypoint) or any(map(has_files, problem.workloads))

    def function(self, *tensors: Any) -> Any:
        """The reference, on tensors of PyTorch."""
        run = find_function(str(self._folder / RUN_FILE), "run")
        return definition_function(self._problem, run)(*tensors)

    def nbytes(self, shape: Shape) -> int:
        """Of all inputs and outputs at a shape; any size, as no array of numpy's has."""
        return sum(
            math.prod(tensor.extents(shape)) * DTYPE_BYTES[tensor.dtype]
            for tensor in (*self.inputs, *self.outputs)
        )

    def awkward(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """Small sizes that no workload has, to verify at and to hold out; none where inputs come from files."""
        definition, axes = self._problem.definition, self._axes
        if any(map(has_files, self._problem.workloads)) or not axes.dimensions:
            return (), ()
        sizes = {name: self._problem.shapes[0][name] for name in axes.dimensions}
        extents = tuple(tensor.shape for tensor in self.inputs)
        dimensions = Dimensions(sizes, extents, dict.fromkeys(sizes, 1))

        def works(shape: Shape) -> bool:
            tensors = (*self.inputs, *self.outputs)
            try:
                if not allows(definition, axes, shape) or any(
                    min(each.extents(shape)) < 1 for each in tensors
                ):
                    return False
                if self.nbytes(shape) > TRIED:
                    return False
                self._check_outputs(self._called(self._drawn(self._numbered(shape), 0)), shape)
            except (TaskError, ExpressionError):
                return False
            return True

        verify, held_out = awkward_shapes(dimensions, works)
        known = [unnumbered(shape) for shape in self._problem.shapes]
        return self._other(verify, known), self._other(held_out, known)

    def problems(self, shapes: Sequence[Shape]) -> Iterator[str]:
        """Run the reference where it is small: it must give what the definition says, and the same twice.

        Raises TaskError where it doesn't, and says where it could not be tried.
        """
        for shape in sorted(shapes, key=self.nbytes)[:MOST_TRIED]:
            if self.nbytes(shape) > TRIED:
                yield f"The reference was not tried: its smallest shape is {shape_label(shape)}."
                return
            inputs = self._drawn(shape, 0)
            first, second = self._truth(inputs), self._truth(inputs)
            self._check_outputs(first, shape)
            for name, array in first.items():
                if not np.array_equal(array, second[name], equal_nan=True):
                    raise TaskError(
                        f"Its reference gives another '{name}' when it is called again on the same inputs."
                    )

    def own_errors(self, shapes: Sequence[Shape]) -> dict[str, float]:
        """How far the reference is off in its own precision, casts and all, as shares of a row's largest value."""
        found: dict[str, float] = {}
        for shape in sorted((each for each in shapes if self.nbytes(each) <= TRIED), key=self.nbytes)[
            -MOST_TRIED:
        ]:
            inputs = self._drawn(shape, 1)
            truth, own = self._truth(inputs), self._own(inputs)
            if own:
                errors = row_errors(self.outputs, list(own.values()), list(truth.values()))
                found = {name: max(found.get(name, 0.0), error) for name, error in errors.items()}
        return found

    def independent(self, awkward: Sequence[Shape]) -> str:
        """A dimension of every output along which nothing depends on anything else, as some numbers show."""
        if self.is_made or not awkward:
            return ""
        extents = [extent for tensor in (*self.inputs, *self.outputs) for extent in tensor.shape]
        for name in self._axes.dimensions:
            elsewhere = any(extent != name and name in names_in(extent) for extent in extents)
            if not elsewhere and all(tensor.shape.count(name) == 1 for tensor in self.outputs):
                shape = next((each for each in awkward if each[name] > 2), None)
                if shape is not None and all(self._is_independent(name, shape, few) for few in ([0, 2], [1])):
                    return name
        return ""

    def _drawn(self, shape: Shape, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        if self.is_made:
            return make_definition_inputs(self._folder, rng, **shape)
        return {tensor.name: tensor.draw(shape, rng) for tensor in self.inputs}

    def _called(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            with np.errstate(all="ignore"):
                result = call_definition(self._folder, *inputs.values())
        except TaskError:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(f"Its reference raised {type(error).__name__}: {error}") from error
        arrays = listed_arrays(result)
        return {tensor.name: array for tensor, array in zip(self.outputs, arrays, strict=True)}

    def _truth(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._called({name: _as(array, np.dtype(np.float64)) for name, array in inputs.items()})

    def _check_outputs(self, outputs: Mapping[str, Array], shape: Shape) -> None:
        for tensor in self.outputs:
            extents = tensor.extents(shape)
            if outputs[tensor.name].shape != extents:
                raise TaskError(
                    f"Its reference gives '{tensor.name}' of the shape {outputs[tensor.name].shape} at "
                    f"{shape_label(shape)}; the definition says {extents}."
                )

    def _is_independent(self, name: str, shape: Shape, few: list[int]) -> bool:
        inputs = self._drawn(shape, 2)

        def taken(tensors: Sequence[Tensor], arrays: Mapping[str, Array]) -> dict[str, Array]:
            return {
                tensor.name: np.take(arrays[tensor.name], few, tensor.shape.index(name))
                if name in tensor.shape
                else arrays[tensor.name]
                for tensor in tensors
            }

        try:
            part = self._truth(taken(self.inputs, inputs))
        except TaskError:
            return False
        whole = taken(self.outputs, self._truth(inputs))
        return all(
            part[each].shape == array.shape and np.allclose(part[each], array, rtol=1e-6, equal_nan=True)
            for each, array in whole.items()
        )

    def _numbered(self, shape: Shape) -> dict[str, int]:
        return {**shape, WORKLOAD: 0} if self.is_numbered else dict(shape)

    def _other(self, shapes: Sequence[Shape], known: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(self._numbered(each) for each in shapes if each not in known)

    def _own(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """What it gives in its own precision, in float64; nothing where the CPU can't."""
        import torch  # noqa: PLC0415 - an extra

        try:
            with torch.no_grad():
                result = self.function(*(_tensor(inputs[each.name], each.dtype) for each in self.inputs))
        except (RuntimeError, NotImplementedError, ValueError, TypeError):
            return {}
        tensors = result if isinstance(result, tuple) else (result,)
        return {
            each.name: tensor.double().numpy() for each, tensor in zip(self.outputs, tensors, strict=True)
        }


def unnumbered(shape: Shape) -> dict[str, int]:
    """A shape as kernels see it."""
    return {name: size for name, size in shape.items() if name != WORKLOAD}


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    return array.astype(dtype) if is_floating(array.dtype) else array


def _tensor(array: Array, dtype: str) -> Any:
    import torch  # noqa: PLC0415 - an extra

    wide = array.astype(arithmetic_dtype(array.dtype)) if is_floating(array.dtype) else array.copy()
    return torch.from_numpy(wide).to(getattr(torch, dtype))
