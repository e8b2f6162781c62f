"""Whether a task folder can be searched: the files, the reference, and each starting kernel with its launch plan.

Each problem is one sentence that names the file and the place. What a later step needs and an earlier one
found broken is left out, so that one mistake gives one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mctskernel.core.contract_words import contract_sentences
from mctskernel.core.device import DeviceSpec
from mctskernel.core.documents import read_toml
from mctskernel.core.dtypes import CUDA_TYPES, arithmetic_dtype, is_floating, numpy_dtype
from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.launch_plan import LaunchPlan, LaunchPlanError, ResolvedLaunch, plan_of
from mctskernel.core.space import SpaceError, values_of
from mctskernel.core.task import Array, Shape, Task, TaskError, Tensor, shape_label
from mctskernel.core.task_file import languages, load_task, other_starts
from mctskernel.edits.syntax import Function, Parameter, parse
from mctskernel.profiling.comparison import in_arithmetic_precision, in_float64
from mctskernel.profiling.contract import contradictions
from mctskernel.profiling.devices import open_for_check
from mctskernel.profiling.processes.worker import Limits, Worker
from mctskernel.profiling.spaces import read_space
from mctskernel.profiling.triton.source import SourceError, read_module
from mctskernel.profiling.verify import draw_case

MAX_REFERENCE_BYTES = 16 << 20
"""Shapes with more inputs and outputs than this aren't given to the reference: numpy would take too long."""

LIMITS = Limits(seconds=60.0)  # of one starting kernel, at the verify shapes and at the held-out ones

HELD_AS_BYTES = ("bool", "float8_e4m3fn", "float8_e5m2")
"""What kernels may take for bytes, since C++ has no type for it, or NVRTC not without a header."""


@dataclass(frozen=True)
class Report:
    checked: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def check_task(folder: Path) -> Report:
    """Run a task's reference, and build and verify its starting kernels on the model. Raises DeviceError."""
    try:
        starts = _starts(folder)
    except TaskError as error:
        return Report((), (str(error),))
    task = next(iter(starts.values()))
    if task.space:
        return _check_space(task)
    checked, problems = [f"{folder / 'task.toml'} and its files can be read."], []
    found = list(reference_problems(task))
    problems += found
    if not found:
        count = len(_small_shapes(task))
        checked.append(f"The reference is precise, pure and finite at {count} of {len(task.shapes)} shapes.")
        found = list(contradictions(task))
        problems += found
        if not found:
            checked += contract_sentences(task)
    sound = not found
    spec = DeviceSpec("model", task.folder, language=task.starting_kernel.language)
    with closing(Worker(spec, limits=LIMITS, opener=open_for_check)) as worker:
        for file, start in starts.items():
            found = list(_kernel_problems(start, file))
            if not found:
                checked.append(
                    f"The launch plan of {file.name} resolves at {len(task.shapes)} shapes and fits it."
                )
                if not sound:
                    continue
                if start.starting_kernel.language is Language.TRITON and find_spec("triton") is None:
                    checked.append(f"{file.name} was not built: Triton isn't installed (mctskernel[triton]).")
                    continue
                evaluation = worker.evaluate(start.starting_kernel)
                reason = (
                    evaluation.quarantine if evaluation.ok else f"{evaluation.outcome}: {evaluation.message}"
                )
                found = [f"{file}: {reason}"] if reason else []
                if not found:
                    checked.append(f"{file.name} is right at every verify and held-out shape, as emulated.")
            problems += found
    nothing_held_out = "No shape is held out: a kernel that is right at those of task.toml alone will pass."
    checked += [] if task.held_out_shapes else [nothing_held_out]
    return Report(tuple(checked), tuple(problems))


def _check_space(task: Task) -> Report:
    """The checks of a search-space cache: it can be read, and has the configuration to start from."""
    file = task.folder / task.space
    try:
        space = read_space(file)
        values_of(space, task.starting_kernel)
    except SpaceError as error:
        return Report((), (str(error),))
    return Report((f"{file} has {len(space.entries)} configurations, the starting one among them.",), ())


def _starts(folder: Path) -> dict[Path, Task]:
    """The task with each of its starting kernels and starting points, by their files. Raises TaskError."""
    first = load_task(folder)
    named = read_toml(folder / "task.toml").get("kernel")
    language = first.starting_kernel.language
    starts = {folder / str(named or f"kernel{language.suffix}"): first}
    for other in languages(folder):
        if other is not language:
            starts[folder / f"kernel{other.suffix}"] = load_task(folder, other)
    for chosen in SOURCE_LANGUAGES:
        for file, kernel in other_starts(folder, chosen).items():
            starts[file] = replace(first, starting_kernel=kernel)
    return starts


def reference_problems(task: Task) -> Iterator[str]:
    """What is wrong with a reference, in sentences, at the first small shape where anything is, large ones first."""
    for index, shape in enumerate(sorted(_small_shapes(task), key=task.compulsory_bytes, reverse=True)):
        try:
            problems = list(_reference_problems_at(task, shape))
            if index == 0 and not problems:
                # Small shapes may rightly be all zero: the deviation from the mean of one element, say.
                problems = [
                    f"{task.folder / 'reference.py'}: at {shape_label(shape)}, '{name}' is zero everywhere, so a "
                    "kernel that computes nothing would pass."
                    for name, array in draw_case(task, shape, seed=0).expected.items()
                    if not array.any()
                ]
        except TaskError as error:
            problems = [str(error)]
        if problems:
            yield from problems
            return


def _small_shapes(task: Task) -> list[Shape]:
    return [shape for shape in task.shapes if task.compulsory_bytes(shape) <= MAX_REFERENCE_BYTES]


def _reference_problems_at(task: Task, shape: Shape) -> Iterator[str]:
    where = f"{task.folder / 'reference.py'}: at {shape_label(shape)}"
    inputs = task.draw_inputs(shape, seed=0)
    again = task.draw_inputs(shape, seed=0)
    before = {name: array.copy() for name, array in inputs.items()}
    for name, array in inputs.items():
        if not np.array_equal(array, again[name], equal_nan=True):
            yield f"{where}, make_inputs made '{name}' differently for the same seed; draw from rng only."
    with np.errstate(all="ignore"):
        truth, plain = (
            task.expected(given(inputs), shape) for given in (in_float64, in_arithmetic_precision)
        )
    for name, array in inputs.items():
        if not np.array_equal(array, before[name], equal_nan=True):
            yield f"{where}, reference changed its input '{name}' in place."
    for tensor in task.outputs:
        yield from _output_problems(tensor, truth[tensor.name], plain[tensor.name], where)


def _output_problems(tensor: Tensor, truth: Array, plain: Array, where: str) -> Iterator[str]:
    dtype = numpy_dtype(tensor.dtype)
    if not is_floating(dtype):
        if plain.dtype.kind not in "iub":
            yield f"{where}, reference gave '{tensor.name}' as {plain.dtype}, task.toml says {tensor.dtype}."
        elif plain.dtype.itemsize < dtype.itemsize and plain.dtype.kind != "b":
            yield (
                f"{where}, reference gave '{tensor.name}' as {plain.dtype}, where sums may have overflowed; "
                f"task.toml says {tensor.dtype}."
            )
        return
    if truth.dtype != np.float64:
        yield (
            f"{where}, reference gave '{tensor.name}' as {truth.dtype} for float64 inputs; "
            "it must keep their precision, since it is the truth."
        )
    if plain.dtype != arithmetic_dtype(dtype):
        yield (
            f"{where}, reference gave '{tensor.name}' as {plain.dtype} for inputs in their own precision "
            f"(16-bit floats as float32); task.toml says {tensor.dtype}."
        )
    if not np.isfinite(truth).all():
        yield f"{where}, reference gave '{tensor.name}' with NaN or infinity for the inputs that were drawn."


def _kernel_problems(task: Task, file: Path) -> Iterator[str]:
    try:
        if task.starting_kernel.language is Language.TRITON:
            read_module(task.starting_kernel.source)
        plan = plan_of(task.starting_kernel)
        launches = [task.resolved(task.starting_kernel, shape).launches for shape in task.shapes]
    except (LaunchPlanError, SourceError) as error:
        yield f"{file}: {error}"
        return
    given = {argument for launch in launches[0] for argument in launch.arguments}
    given |= {each.tensor for each in plan.tensor_maps if each.name in given}
    for tensor in task.outputs:
        if tensor.name not in given:
            yield f"{file}: no launch is given the output '{tensor.name}'."
    if task.starting_kernel.language is Language.CUDA:
        yield from _parameter_problems(task, plan, launches[0], file)


def _parameter_problems(
    task: Task, plan: LaunchPlan, launches: tuple[ResolvedLaunch, ...], file: Path
) -> Iterator[str]:
    dtypes = {tensor.name: tensor.dtype for tensor in (*task.inputs, *task.outputs)}
    dtypes |= {scratch.name: scratch.dtype for scratch in plan.scratch}
    functions = {function.name: function for function in parse(task.starting_kernel.source).kernels}
    for launch, resolved in zip(plan.launches, launches, strict=True):
        function = functions.get(launch.kernel)
        if function is None:
            known = ", ".join(functions) or "none"
            yield f"{file}: the plan launches '{launch.kernel}', but the __global__ functions are: {known}."
            continue
        where = f"{file}, line {function.node.start_point.row + 1}: '{function.name}'"
        if len(function.parameters) != len(launch.args):
            yield f"{where} has {len(function.parameters)} parameter(s), the plan gives {len(launch.args)}."
            continue
        for written, argument, parameter in zip(
            launch.args, resolved.arguments, function.parameters, strict=True
        ):
            dtype = dtypes.get(argument) if isinstance(argument, str) else None
            problem = _mismatch(str(written), dtype, parameter, function)
            if problem:
                yield f"{where}, parameter '{parameter.name}': {problem}"


def _mismatch(written: str, dtype: str | None, parameter: Parameter, function: Function) -> str:
    if dtype is not None and not parameter.pointer:
        return f"the plan gives the buffer '{written}', but it is no pointer."
    if dtype is None and parameter.pointer:
        return f"the plan gives the number '{written}', but it is a pointer."
    if written != parameter.name and function.parameter(written) is not None:
        return f"the plan gives '{written}', which is the name of another parameter; is the order right?"
    expected = CUDA_TYPES.get(parameter.type)
    as_bytes = expected == "uint8" and dtype in HELD_AS_BYTES
    if dtype is not None and expected is not None and expected != dtype and not as_bytes:
        return f"it points to {parameter.type}, but '{written}' is {dtype}."
    return ""
