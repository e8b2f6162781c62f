"""A definition with its workloads as a task: every workload is a shape that is searched at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from mctskernel.core.dtypes import numpy_dtype, rounding_unit
from mctskernel.core.kernel import Language
from mctskernel.core.task import Bound, Shape, TaskError, Tensor
from mctskernel.problems.definitions.axes import Axes, read_axes
from mctskernel.problems.definitions.folder import FLASHINFER_BENCH, Found
from mctskernel.problems.definitions.reference import (
    RUN_FILE,
    WORKLOAD,
    DefinitionProblem,
    Given,
    custom_values,
    digest,
)
from mctskernel.problems.definitions.schema import Allowed, Safetensors
from mctskernel.problems.definitions.support import (
    check_definition,
    fixed_scalars,
    unchecked_constraints,
    workload_shapes,
)
from mctskernel.problems.definitions.trial import Trial, unnumbered
from mctskernel.problems.problem import PROBLEM_FILE, Problem, record_text
from mctskernel.problems.tolerance import floating, imprecisions, tolerance_table
from mctskernel.problems.torch_task import Draft, TorchTask, problem_of
from mctskernel.run import TASK_FILE_LIMIT
from mctskernel.torch_reference import find_function

SMALL = 1 << 20
"""Bytes of the workloads that are verified at every element, as the small shapes are that no workload has."""

MOST_VERIFIED = 6
"""Workloads that are verified at every element. All are verified where they are timed."""


def read_problem(found: Found, language: Language) -> Problem:
    """A definition as a task. Runs its Python at small sizes. Raises TaskError."""
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
    beside = {RUN_FILE: problem.definition.reference.encode(), **copied}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, data in beside.items():
            (folder / name).write_bytes(data)
        problem = _with_custom_scalars(folder, problem, axes)
        (folder / PROBLEM_FILE).write_bytes(record_text(problem))
        draft = _drafted(problem, axes, Trial(folder, problem, axes), beside)
        made = problem_of(found.benchmark, draft, language)
    if made.has_kernel:
        return made
    *remarks, without_kernel = made.remarks
    return replace(made, remarks=(*remarks, f"{without_kernel} {_WITHOUT_KERNEL}"))


def task_name(name: str) -> str:
    """What a definition's task is called, which may be the name of a folder."""
    kept = "".join(each if each.isalnum() or each in "_.-" else "_" for each in name)
    return kept if kept[:1].isalnum() or kept[:1] == "_" else f"_{kept}"


def _drafted(problem: DefinitionProblem, axes: Axes, trial: Trial, beside: Mapping[str, bytes]) -> Draft:
    """What the task's folder is made of, and sentences for its user. Raises TaskError."""
    awkward, held_out = trial.awkward()
    by_size = sorted(problem.shapes, key=trial.nbytes)
    small = [shape for shape in by_size if trial.nbytes(shape) <= SMALL][:MOST_VERIFIED]
    verify = (*awkward, *small) or (by_size[0],)
    remarks = [*_remarks(problem, axes), *trial.problems(verify)]
    own = trial.own_errors(verify)
    task = TorchTask(
        name=task_name(problem.name),
        summary=problem.definition.description or f"{problem.name} of {problem.benchmark}.",
        function=trial.function,
        inputs=trial.inputs,
        outputs=trial.outputs,
        search=problem.shapes,
        verify=verify,
        held_out=held_out,
        reference=_reference(problem, axes, trial),
        scalars={name: _number(value) for name, value in problem.scalars.items()},
        tolerance=tolerance_table(trial.outputs, own, _bounds(problem, trial.outputs)),
        independent=trial.independent(awkward),
        inputs_by=WORKLOAD if trial.is_numbered else "",
        beside=beside,
    )
    return Draft(task, problem, (*remarks, *imprecisions(trial.outputs, own)))


def _remarks(problem: DefinitionProblem, axes: Axes) -> Iterator[str]:
    for text in unchecked_constraints(problem.definition, axes, problem.shapes[0]):
        yield f"The constraint {text!r} isn't checked: sizes alone don't tell."
    if any(each.allowed.required_matched_ratio < 1 for each in problem.workloads):
        yield "The benchmark lets a share of the elements be wrong at some workloads; here every one must be right."
    for each in problem.given.values():
        if Path(each.file).is_absolute():
            yield f"{each.file} is too large to copy: the task reads it where it lies."


def _bounds(problem: DefinitionProblem, outputs: Sequence[Tensor]) -> list[tuple[Shape, Bound]]:
    """How far each element may be off at the shape of each workload."""
    rounding = max(
        (0.5 * rounding_unit(numpy_dtype(tensor.dtype)) for tensor in floating(outputs)), default=0.0
    )
    bounds = [_bound(problem.benchmark, each.allowed, rounding) for each in problem.workloads]
    return list(zip(problem.shapes, bounds, strict=True))


def _bound(benchmark: str, allowed: Allowed, rounding: float) -> Bound:
    """What the benchmark lets each element be off, never more, and at least one rounding of the outputs' type.

    flashinfer-bench asks for an error within either part, where ours is within the sum of both: half of each.
    """
    share = 0.5 if benchmark == FLASHINFER_BENCH else 1.0
    most = math.inf if allowed.max_error_cap is None else allowed.max_error_cap
    return Bound(max(share * allowed.max_rtol, rounding), share * allowed.max_atol, most)


def _reference(problem: DefinitionProblem, axes: Axes, trial: Trial) -> str:
    """The text of reference.py."""
    names = ", ".join(tensor.name for tensor in trial.inputs)
    functions = "call_definition, make_definition_inputs" if trial.is_made else "call_definition"
    text = (
        f'"""The reference of a problem of {problem.benchmark}, which is in {RUN_FILE} as it was."""\n\n'
        "from pathlib import Path\n\n"
        f"from mctskernel.problems.definitions.reference import {functions}\n\n"
        "FOLDER = Path(__file__).parent\n\n\n"
        f"def reference({names}):\n    return call_definition(FOLDER, {names})\n"
    )
    if not trial.is_made:
        return text
    dimensions = [*axes.dimensions, *([WORKLOAD] if trial.is_numbered else [])]
    given = ["FOLDER", "rng", *(f"{name}={name}" for name in dimensions)]
    return text + (
        f"\n\ndef make_inputs({', '.join(['rng', *dimensions])}):\n"
        f"    return make_definition_inputs({', '.join(given)})\n"
    )


_WITHOUT_KERNEL = (
    "Make its folder with `mctskernel new-task DIR --from-problem` and write one there, with a launch plan. A solution "
    "in Triton or CUDA that lies beside the definition is a program with host code, and no candidate as it is."
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
    shapes = sorted(map(unnumbered, problem.shapes), key=lambda shape: math.prod(shape.values()))
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


def _number(value: bool | int | float) -> int | float:  # noqa: FBT001 - a value, not a switch
    return int(value) if isinstance(value, bool) else value
