"""A definition with its workloads as a task: every workload is a shape that is searched at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.dtypes import DTYPE_BYTES, arithmetic_dtype, is_floating, numpy_dtype
from mctskernel.core.kernel import Language
from mctskernel.core.task import Array, Shape, TaskError, Tensor, shape_label
from mctskernel.problems.definitions_axes import Axes, read_axes
from mctskernel.problems.definitions_folder import FLASHINFER_BENCH, Found
from mctskernel.problems.definitions_inputs import (
    RUN_FILE,
    WORKLOAD,
    DefinitionProblem,
    Given,
    call_definition,
    custom_values,
    definition_function,
    digest,
    input_tensors,
    make_definition_inputs,
    task_tensor,
)
from mctskernel.problems.definitions_schema import Allowed, Safetensors
from mctskernel.problems.definitions_support import (
    allows,
    check_definition,
    fixed_scalars,
    has_files,
    unchecked_constraints,
    workload_shapes,
)
from mctskernel.problems.problem import PROBLEM_FILE
from mctskernel.problems.torch_task import TorchTask, starting_kernel, task_toml
from mctskernel.profiling.pytorch.verdict import TOLERANCES
from mctskernel.run import TASK_FILE_LIMIT
from mctskernel.torch_dimensions import Dimensions, awkward_shapes
from mctskernel.torch_reference import find_function

SMALL = 1 << 20
"""Bytes of the workloads that are verified at every element, as the small shapes are that no workload has."""

TRIED = 8 << 20
"""Bytes at which the reference is run when a problem is read."""

MOST_VERIFIED = 6
"""Workloads that are verified at every element. All are verified where they are timed."""

OWN_MARGIN = 1.5
"""How many times the reference's own error in its own precision is allowed, if that is more than ours."""


@dataclass(frozen=True)
class Drafted:
    """The files of a task's folder, and sentences for its user."""

    files: Mapping[str, bytes]
    remarks: tuple[str, ...]


def drafted(found: Found, language: Language) -> Drafted:
    """Make a task of a definition. Runs its Python. Raises TaskError."""
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
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, data in {RUN_FILE: problem.definition.reference.encode(), **copied}.items():
            (folder / name).write_bytes(data)
        problem = _with_custom_scalars(folder, problem, axes)
        (folder / PROBLEM_FILE).write_bytes(_encoded(problem))
        return _Draft(folder, problem, axes, copied).files(language)


class _Draft:
    """A definition in a folder from where it can be called."""

    def __init__(
        self, folder: Path, problem: DefinitionProblem, axes: Axes, copied: Mapping[str, bytes]
    ) -> None:
        self._folder, self._problem, self._axes, self._copied = folder, problem, axes, copied
        definition = problem.definition
        self._inputs = input_tensors(definition, axes)
        self._outputs = tuple(task_tensor(name, spec, axes) for name, spec in definition.outputs.items())
        self._numbered = WORKLOAD in problem.shapes[0]
        self._made = bool(definition.custom_inputs_entrypoint) or any(map(has_files, problem.workloads))

    def files(self, language: Language) -> Drafted:
        """Everything that the task's folder holds."""
        remarks = list(self._remarks())
        small = sorted(
            (shape for shape in self._problem.shapes if self._nbytes(shape) <= SMALL), key=self._nbytes
        )
        awkward, held_out = self._awkward()
        verify = (*awkward, *small[:MOST_VERIFIED]) or (min(self._problem.shapes, key=self._nbytes),)
        self._try(verify, remarks)
        task = TorchTask(
            name=_name(self._problem.name),
            summary=self._problem.definition.description
            or f"{self._problem.name} of {self._problem.benchmark}.",
            function=self._function,
            inputs=self._inputs,
            outputs=self._outputs,
            search=self._problem.shapes,
            verify=verify,
            held_out=held_out,
            reference=self._reference(),
            scalars={name: _number(value) for name, value in self._problem.scalars.items()},
            tolerance=self._tolerance(verify, remarks),
            independent=self._independent(awkward),
        )
        unnumbered = replace(task, search=tuple(_unnumbered(shape) for shape in task.search))
        source, why = starting_kernel(unnumbered, language)
        toml = f'inputs_by = "{WORKLOAD}"\n{task_toml(task)}' if self._numbered else task_toml(task)
        files = {
            "task.toml": toml.encode(),
            "reference.py": task.reference.encode(),
            RUN_FILE: self._problem.definition.reference.encode(),
            PROBLEM_FILE: _encoded(self._problem),
            **self._copied,
        }
        if source:
            files[f"kernel{language.suffix}"] = source.encode()
        else:
            remarks.append(f"{why} {_WITHOUT_KERNEL}")
        return Drafted(files, tuple(remarks))

    def _remarks(self) -> Iterator[str]:
        problem = self._problem
        for text in unchecked_constraints(problem.definition, self._axes, problem.shapes[0]):
            yield f"The constraint {text!r} isn't checked: sizes alone don't tell."
        if any(each.allowed.required_matched_ratio < 1 for each in problem.workloads):
            yield (
                "The benchmark lets a share of the elements be wrong at some workloads; here every one must be right."
            )
        for each in problem.given.values():
            if Path(each.file).is_absolute():
                yield f"{each.file} is too large to copy: the task reads it where it lies."

    def _function(self, *tensors: Any) -> Any:
        return definition_function(self._problem, self._run)(*tensors)

    @property
    def _run(self) -> Callable[..., Any]:
        return find_function(str(self._folder / RUN_FILE), "run")

    def _nbytes(self, shape: Shape) -> int:
        return sum(
            math.prod(tensor.extents(shape)) * DTYPE_BYTES[tensor.dtype]
            for tensor in (*self._inputs, *self._outputs)
        )

    def _drawn(self, shape: Shape, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        if self._made:
            return make_definition_inputs(self._folder, rng, **shape)
        return {tensor.name: tensor.draw(shape, rng) for tensor in self._inputs}

    def _called(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            with np.errstate(all="ignore"):
                result = call_definition(self._folder, *inputs.values())
        except TaskError:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(f"Its reference raised {type(error).__name__}: {error}") from error
        arrays = result if isinstance(result, tuple) else (result,)
        return {tensor.name: array for tensor, array in zip(self._outputs, arrays, strict=True)}

    def _truth(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._called({name: _as(array, np.dtype(np.float64)) for name, array in inputs.items()})

    def _awkward(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """Small sizes that no workload has, to verify at and to hold out; none where inputs come from files."""
        definition, axes = self._problem.definition, self._axes
        if any(map(has_files, self._problem.workloads)) or not axes.dimensions:
            return (), ()
        sizes = {name: self._problem.shapes[0][name] for name in axes.dimensions}
        dimensions = Dimensions(
            sizes, tuple(tensor.shape for tensor in self._inputs), dict.fromkeys(sizes, 1)
        )

        def works(shape: Shape) -> bool:
            try:
                if not allows(definition, axes, shape) or self._nbytes(shape) > TRIED:
                    return False
                if any(
                    extent < 1 for each in (*self._inputs, *self._outputs) for extent in each.extents(shape)
                ):
                    return False
                self._check_outputs(self._called(self._drawn(self._numbered_shape(shape), 0)), shape)
            except (
                TaskError,
                ArithmeticError,
                RuntimeError,
                ValueError,
                TypeError,
                LookupError,
                AssertionError,
            ):
                return False
            return True

        verify, held_out = awkward_shapes(dimensions, works)
        known = [_unnumbered(shape) for shape in self._problem.shapes]
        kept = [
            [self._numbered_shape(each) for each in shapes if each not in known]
            for shapes in (verify, held_out)
        ]
        return tuple(kept[0]), tuple(kept[1])

    def _numbered_shape(self, shape: Shape) -> dict[str, int]:
        return {**shape, WORKLOAD: 0} if self._numbered else dict(shape)

    def _try(self, shapes: Sequence[Shape], remarks: list[str]) -> None:
        """Run the reference where it is small: it must give what the definition says, and the same twice."""
        for shape in sorted(shapes, key=self._nbytes)[:2]:
            inputs = self._drawn(shape, 0)
            if self._nbytes(shape) > TRIED:
                remarks.append(f"The reference was not tried: its smallest shape is {shape_label(shape)}.")
                return
            try:
                first, second = self._truth(inputs), self._truth(inputs)
            except (
                ArithmeticError,
                RuntimeError,
                ValueError,
                TypeError,
                LookupError,
                AssertionError,
            ) as error:
                raise TaskError(
                    f"Its reference raised {type(error).__name__} at {shape_label(shape)}: {error}"
                ) from error
            self._check_outputs(first, shape)
            for name, array in first.items():
                if not np.array_equal(array, second[name], equal_nan=True):
                    raise TaskError(
                        f"Its reference gives another '{name}' when it is called again on the same inputs."
                    )

    def _check_outputs(self, outputs: Mapping[str, Array], shape: Shape) -> None:
        for tensor in self._outputs:
            extents = tensor.extents(shape)
            if outputs[tensor.name].shape != extents:
                raise TaskError(
                    f"Its reference gives '{tensor.name}' of the shape {outputs[tensor.name].shape} at "
                    f"{shape_label(shape)}; the definition says {extents}."
                )

    def _tolerance(self, verify: Sequence[Shape], remarks: list[str]) -> dict[str, Any]:
        """Ours by element type, with the bounds of the workloads on top, each at its own shape."""
        floating = [tensor for tensor in self._outputs if is_floating(numpy_dtype(tensor.dtype))]
        if not floating:
            return {}
        own = self._own_errors(verify)
        tables = {tensor.name: _own_table(tensor, own.get(tensor.name, 0.0)) for tensor in floating}
        remarks += [
            f"The reference is off by {own[tensor.name]:.2g} of a row's largest value in '{tensor.name}', in its own "
            "precision, and so may kernels be."
            for tensor in floating
            if tables[tensor.name]["relative"] > TOLERANCES[tensor.dtype].relative
        ]
        table: dict[str, Any] = dict(tables[floating[0].name])
        allowed = {each.allowed for each in self._problem.workloads}
        if len(allowed) == 1:
            table["element"] = self._element(allowed.pop())
        else:
            table["at"] = [
                {"shape": dict(shape), "element": self._element(workload.allowed)}
                for shape, workload in zip(self._problem.shapes, self._problem.workloads, strict=True)
            ]
        return table | {name: each for name, each in tables.items() if each != tables[floating[0].name]}

    def _element(self, allowed: Allowed) -> dict[str, float]:
        """What the benchmark lets each element be off, never more.

        flashinfer-bench asks for an error within either part, where ours is within the sum of both: half of each.
        """
        share = 0.5 if self._problem.benchmark == FLASHINFER_BENCH else 1.0
        found = {"relative": share * allowed.max_rtol, "absolute": share * allowed.max_atol}
        return found if allowed.max_error_cap is None else {**found, "most": allowed.max_error_cap}

    def _own_errors(self, shapes: Sequence[Shape]) -> dict[str, float]:
        """How far the reference is off in its own precision, casts and all, as shares of a row's largest value."""
        import torch  # noqa: PLC0415 - an extra

        found: dict[str, float] = {}
        for shape in sorted(shapes, key=self._nbytes)[-2:]:
            if self._nbytes(shape) > TRIED:
                continue
            inputs = self._drawn(shape, 1)
            truth = self._truth(inputs)
            tensors = [_tensor(inputs[tensor.name], tensor.dtype) for tensor in self._inputs]
            try:
                with torch.no_grad():
                    result = self._function(*tensors)
            except (RuntimeError, NotImplementedError, ValueError, TypeError):
                return {}  # what 16-bit arithmetic lacks on the CPU
            for tensor, given in zip(
                self._outputs, result if isinstance(result, tuple) else (result,), strict=True
            ):
                if is_floating(numpy_dtype(tensor.dtype)):
                    exact = truth[tensor.name]
                    scale = np.maximum(np.abs(exact).max(axis=-1, keepdims=True, initial=0.0), 1e-30)
                    error = np.nan_to_num(np.abs(given.double().numpy() - exact) / scale).max(initial=0.0)
                    found[tensor.name] = max(found.get(tensor.name, 0.0), float(error))
        return found

    def _independent(self, awkward: Sequence[Shape]) -> str:
        """A dimension of every output along which nothing depends on anything else, as some numbers show."""
        if self._made or not awkward:
            return ""
        for name in self._axes.dimensions:
            mentioned = [
                e for t in (*self._inputs, *self._outputs) for e in t.shape if name in str(e) and e != name
            ]
            if not mentioned and all(tensor.shape.count(name) == 1 for tensor in self._outputs):
                shape = next((each for each in awkward if each[name] > 2), None)
                if shape is not None and all(self._is_independent(name, shape, few) for few in ([0, 2], [1])):
                    return name
        return ""

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
            part = self._truth(taken(self._inputs, inputs))
        except TaskError:
            return False
        whole = taken(self._outputs, self._truth(inputs))
        return all(
            part[each].shape == array.shape and np.allclose(part[each], array, rtol=1e-6, equal_nan=True)
            for each, array in whole.items()
        )

    def _reference(self) -> str:
        names = ", ".join(tensor.name for tensor in self._inputs)
        dimensions = [*self._axes.dimensions, *([WORKLOAD] if self._numbered else [])]
        text = (
            f'"""The reference of a problem of {self._problem.benchmark}, which is in {RUN_FILE} as it was."""\n\n'
            "from pathlib import Path\n\n"
            f"from mctskernel.problems.definitions_inputs import {_IMPORTS[self._made]}\n\n"
            "FOLDER = Path(__file__).parent\n\n\n"
            f"def reference({names}):\n    return call_definition(FOLDER, {names})\n"
        )
        if self._made:
            given = ", ".join(f"{name}={name}" for name in dimensions)
            text += (
                f"\n\ndef make_inputs({', '.join(['rng', *dimensions])}):\n"
                f"    return make_definition_inputs({', '.join(filter(None, ['FOLDER, rng', given]))})\n"
            )
        return text


_IMPORTS = {False: "call_definition", True: "call_definition, make_definition_inputs"}

_WITHOUT_KERNEL = (
    "Give it one with --kernel FILE, whose leading comment or docstring holds a launch plan, or let a model write one: "
    "`mctskernel generate`. A solution in Triton or CUDA that lies beside the definition is a program with host code, "
    "and no candidate as it is."
)


def _given_files(found: Found) -> tuple[dict[str, Given], dict[str, bytes]]:
    """The files that workloads name, by what they call them, and the bytes of those small enough to copy."""
    given: dict[str, Given] = {}
    copied: dict[str, bytes] = {}
    for workload in found.workloads:
        for source in workload.inputs.values():
            if isinstance(source, Safetensors) and source.path not in given:
                file = found.file(source.path)
                data = file.read_bytes()
                sha256 = digest(data)
                if len(data) <= TASK_FILE_LIMIT:
                    name = f"given_{sha256[:16]}.safetensors"
                    copied[name] = data
                else:
                    name = str(file)
                given[source.path] = Given(name, sha256)
    return given, copied


def _with_custom_scalars(folder: Path, problem: DefinitionProblem, axes: Axes) -> DefinitionProblem:
    """The problem with the numbers that the definition's own function makes, which must always be the same."""
    definition = problem.definition
    names = [name for name, spec in definition.inputs.items() if spec.shape is None]
    if not definition.custom_inputs_entrypoint or not names:
        return problem
    entry = find_function(str(folder / RUN_FILE), definition.custom_inputs_entrypoint)
    shapes = sorted(map(_unnumbered, problem.shapes), key=lambda shape: math.prod(shape.values()))
    made = [
        custom_values(definition, axes, entry, shape, seed)
        for seed, shape in enumerate((shapes[0], shapes[0]))
    ]
    for name in names:
        value = made[0][name]
        if not isinstance(value, bool | int | float) or made[1][name] != value:
            raise TaskError(
                f"{definition.custom_inputs_entrypoint} gives the number '{name}' differently each time; a task's "
                "scalars are the same everywhere."
            )
    return msgspec.structs.replace(problem, scalars={name: made[0][name] for name in names})


def _own_table(tensor: Tensor, own: float) -> dict[str, float]:
    ours = TOLERANCES[tensor.dtype]
    wanted = float(f"{OWN_MARGIN * own:.2g}")
    return {"relative": max(ours.relative, wanted), "absolute": ours.absolute, "ratio": ours.ratio}


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    return array.astype(dtype) if is_floating(array.dtype) else array


def _tensor(array: Array, dtype: str) -> Any:
    import torch  # noqa: PLC0415 - an extra

    wide = array.astype(arithmetic_dtype(array.dtype)) if is_floating(array.dtype) else array.copy()
    return torch.from_numpy(wide).to(getattr(torch, dtype))


def _unnumbered(shape: Shape) -> dict[str, int]:
    return {name: size for name, size in shape.items() if name != WORKLOAD}


def _number(value: bool | int | float) -> int | float:  # noqa: FBT001 - a value, not a switch
    return int(value) if isinstance(value, bool) else value


def _name(name: str) -> str:
    kept = "".join(each if each.isalnum() or each in "_.-" else "_" for each in name)
    return kept if kept[:1].isalnum() or kept[:1] == "_" else f"_{kept}"


def _encoded(problem: DefinitionProblem) -> bytes:
    return msgspec.json.format(msgspec.json.encode(problem), indent=1) + b"\n"
