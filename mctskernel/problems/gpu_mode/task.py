"""A GPU MODE task as one of ours: what its cases show of its tensors, its dimensions and its tolerance."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.host_code.literals import docstring
from mctskernel.problems.device_memory import available_memory
from mctskernel.problems.gpu_mode.cases import (
    SEED,
    Case,
    buffers_of,
    check_alike,
    dtype_name,
    output_names,
    seen,
)
from mctskernel.problems.gpu_mode.dimensions import Dimensions, Sizes
from mctskernel.problems.gpu_mode.file import NAME, Arguments, TaskFile, argument_vectors
from mctskernel.problems.gpu_mode.program import Program, load_program
from mctskernel.problems.gpu_mode.reference import (
    BESIDE,
    GpuModeProblem,
    Kept,
    input_arrays,
    reference_function,
)
from mctskernel.problems.gpu_mode.structure import Leaf, Path, leaves, structure_of
from mctskernel.problems.gpu_mode.tolerance import element_bounds, judged_as, narrowness, own_errors
from mctskernel.problems.tolerance import imprecisions, tolerance_table
from mctskernel.problems.torch_task import Draft, TorchTask, independent_dimension

CASE = "case"
"""The dimension that numbers the cases."""

_LONGEST_SUMMARY = 200


@dataclass(frozen=True)
class _Signature:
    """What goes into `ref_kernel` and comes out of it, as a task has it, over all cases.

    Of the places in the data, `names` are those of the leaves, `buffers` the outputs that are written there, and
    `varying` the dimensions that stand there as numbers. `dimensions` are the sizes in each case.
    """

    names: Mapping[Path, str]
    buffers: Mapping[Path, str]
    varying: Mapping[Path, str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dimensions: Mapping[str, Sizes]

    def shape(self, case: int) -> dict[str, int]:
        """The sizes of a case, and its number."""
        return {**{name: sizes[case] for name, sizes in self.dimensions.items()}, CASE: case}

    def leaf(self, path: Path, value: Any) -> Leaf:
        """What the task has for a leaf of the data."""
        if path in self.buffers:
            return Leaf(buffer=self.buffers[path])
        if path in self.varying:
            return Leaf(dimension=self.varying[path])
        return Leaf(input=self.names[path]) if isinstance(value, torch.Tensor) else Leaf(value=value)


def drafted(file: TaskFile) -> Draft:
    """A task of what a task file lists. Runs its Python, each case once. Raises TaskError."""
    program = load_program(file.modules)
    cases = [seen(program, arguments) for arguments in file.cases]
    check_alike(cases)
    available_memory().require(max(case.nbytes for case in cases), file.name)
    small = min(range(len(file.tests)), key=lambda index: cases[index].nbytes)
    tried = program.generate(file.cases[small], SEED)
    buffers = buffers_of(program, tried, cases)
    signature = _signature(file, cases, dict(leaves(tried)), buffers)
    problem = _problem(file, cases[0], signature)
    task = _task(file, signature, problem, program)
    own = _own_errors(program, file.cases[small], problem, task)
    judged = judged_as(task.outputs, task.inputs)
    bounds = [({CASE: number}, each) for number, each in enumerate(element_bounds(cases, judged))]
    task = replace(task, independent=_independent(task), tolerance=tolerance_table(judged, own, bounds))
    remarks = (*imprecisions(judged, own), *narrowness(cases, judged), *_ranking(file))
    return Draft(task, problem, remarks)


def _signature(
    file: TaskFile, cases: Sequence[Case], tried: Mapping[Path, Any], buffers: Mapping[Path, str]
) -> _Signature:
    names = _names(file.modules["reference"], cases[0].data)
    dimensions = Dimensions(argument_vectors(file.cases), frozenset({CASE, *names.values()}))
    inputs = _inputs(cases, tried, names, buffers, dimensions)
    varying = _varying(cases, names, dimensions)
    outputs = _outputs(cases, dimensions, file.name)
    return _Signature(names, buffers, varying, inputs, outputs, dimensions.sizes)


def _problem(file: TaskFile, first: Case, signature: _Signature) -> GpuModeProblem:
    shapes = {tensor.name: tensor.shape for tensor in signature.outputs}
    scalars = [
        signature.names[path]
        for path, tensor in first.tensors.items()
        if path not in signature.buffers and tensor.dim() == 0
    ]
    scalars += [
        tensor.name
        for tensor, shown in zip(signature.outputs, first.outputs, strict=True)
        if shown.dim() == 0
    ]
    return GpuModeProblem(
        benchmark=NAME,
        name=file.name,
        modules=tuple(file.modules),
        cases=tuple(dict(case) for case in file.cases),
        case=CASE,
        structure=structure_of(first.data, signature.leaf),
        inputs={tensor.name: Kept(tensor.dtype, tensor.shape) for tensor in signature.inputs},
        buffers={
            output: Kept(dtype_name(first.tensors[path]), shapes[output])
            for path, output in signature.buffers.items()
        },
        outputs=tuple(tensor.name for tensor in signature.outputs),
        scalars=tuple(scalars),
    )


def _task(file: TaskFile, signature: _Signature, problem: GpuModeProblem, program: Program) -> TorchTask:
    """All but what is independent, and the tolerance."""
    shapes = tuple(map(signature.shape, range(len(file.cases))))
    search = shapes[len(file.tests) :]
    names = tuple(tensor.name for tensor in signature.inputs)
    return TorchTask(
        name=file.name,
        summary=_summary(file),
        function=reference_function(problem, program, search[0], names),
        inputs=signature.inputs,
        outputs=signature.outputs,
        search=search,
        verify=shapes[: len(file.tests)],
        granularity={name: math.gcd(*sizes) for name, sizes in signature.dimensions.items()},
        reference=_reference(file, names, list(signature.dimensions)),
        inputs_by=CASE,
        beside={BESIDE.format(name=name): text.encode() for name, text in file.modules.items()},
    )


def _names(reference: str, data: Any) -> dict[Path, str]:
    """Names of the leaves: what the reference unpacks its data into, or their keys."""
    unpacked = _unpacked(reference)
    found: dict[Path, str] = {}
    for path, _ in leaves(data):
        key = path[0] if path else 0
        words = [str(each) for each in path[1:]]
        if not path:
            words = ["x"]
        elif isinstance(key, int) and isinstance(data, tuple | list) and len(unpacked) == len(data):
            words = [unpacked[key].strip("_") or f"input{key}", *words]
        else:
            words = [f"input{key}" if isinstance(key, int) else key, *words]
        name = re.sub(r"\W+", "_", "_".join(words), flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"input_{name}"
        taken = {*found.values(), CASE, "rng", *output_names(len(data) if isinstance(data, tuple) else 1)}
        found[path] = next(each for each in _numbered(name) if each not in taken)
    return found


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))


def _unpacked(reference: str) -> list[str]:
    """The names into which `ref_kernel` unpacks its parameter, if it does."""
    for node in ast.walk(ast.parse(reference)):
        if isinstance(node, ast.FunctionDef) and node.name == "ref_kernel":
            for statement in ast.walk(node):
                match statement:
                    case ast.Assign(targets=[ast.Tuple(elts=elements)], value=ast.Name(id=name)) if (
                        name == node.args.args[0].arg and all(isinstance(each, ast.Name) for each in elements)
                    ):
                        return [each.id for each in elements if isinstance(each, ast.Name)]
    return []


def _inputs(
    cases: Sequence[Case],
    tried: Mapping[Path, Any],
    names: Mapping[Path, str],
    unread: Mapping[Path, str],
    dimensions: Dimensions,
) -> tuple[Tensor, ...]:
    """The inputs, whose whole numbers are those of one case: it is `make_inputs` that makes them."""
    found = []
    for path, first in cases[0].tensors.items():
        if path in unread:
            continue
        extents = tuple(
            dimensions.extent(
                tuple(case.tensors[path].shape[axis] for case in cases), f"{names[path]}_{axis}"
            )
            for axis in range(first.dim())
        )
        drawn = (
            () if first.is_floating_point() else ("integers", int(tried[path].min()), int(tried[path].max()))
        )
        found.append(Tensor(names[path], dtype_name(first), extents or (1,), *drawn))
    if not found:
        raise TaskError("Its generate_input gives no tensor that its ref_kernel reads.")
    return tuple(found)


def _varying(cases: Sequence[Case], names: Mapping[Path, str], dimensions: Dimensions) -> dict[Path, str]:
    """Plain values that differ between cases, as dimensions: only whole numbers can be."""
    found = {}
    listed = [dict(leaves(case.data)) for case in cases]
    for path, leaf in listed[0].items():
        values = tuple(each[path] for each in listed)
        if isinstance(leaf, torch.Tensor) or len(set(map(repr, values))) == 1:
            continue
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise TaskError(
                f"Its data holds {values[0]!r} and other values at '{names[path]}', depending on the case: only "
                "whole numbers may differ."
            )
        known = next((name for name, sizes in dimensions.sizes.items() if sizes == values), None)
        extent = known or dimensions.extent(values, names[path])
        if extent not in dimensions.sizes:
            raise TaskError(
                f"Its data holds numbers at '{names[path]}' that depend on the case in no plain way."
            )
        found[path] = str(extent)
    return found


def _outputs(cases: Sequence[Case], dimensions: Dimensions, name: str) -> tuple[Tensor, ...]:
    found = []
    before = set(dimensions.sizes)
    for number, (output, called) in enumerate(
        zip(cases[0].outputs, output_names(len(cases[0].outputs)), strict=True)
    ):
        extents = []
        for axis in range(output.dim()):
            extent = dimensions.known(tuple(case.outputs[number].shape[axis] for case in cases))
            if extent is None:
                raise TaskError(f"{name}: an extent of its output doesn't follow from its inputs' extents.")
            extents.append(extent)
        found.append(Tensor(called, dtype_name(output), tuple(extents) or (1,)))
    unknown = [each for each in dimensions.sizes if each not in before]
    if unknown:
        raise TaskError(f"{name}: its output depends on '{unknown[0]}', which no shape of its inputs tells.")
    return tuple(found)


def _own_errors(
    program: Program, arguments: Arguments, problem: GpuModeProblem, task: TorchTask
) -> dict[str, float]:
    """The reference's own errors in one case."""
    data = program.generate(arguments, SEED)
    arrays = input_arrays(problem, data)
    shape = task.verify[problem.cases.index(dict(arguments))]
    function = reference_function(problem, program, shape, tuple(arrays))
    given = [leaf.double().numpy() for _, leaf in leaves(program.reference(data))]
    return own_errors(function, list(arrays.values()), task.outputs, given)


def _independent(task: TorchTask) -> str:
    try:
        return independent_dimension(
            task.function,
            lambda shape: _drawn(task.inputs, {CASE: 0, **shape}),
            task.inputs,
            task.outputs,
            dict.fromkeys(task.granularity, 1),
        )
    except TaskError:
        return ""  # its reference takes no tensors of other sizes


def _drawn(inputs: Sequence[Tensor], shape: Shape) -> dict[str, Any]:
    made = torch.Generator()
    made.manual_seed(SEED)
    found = {}
    for tensor in inputs:
        numbers = torch.randn(tensor.extents(shape), generator=made)
        dtype = getattr(torch, tensor.dtype)
        found[tensor.name] = numbers if dtype.is_floating_point else (numbers > 0).to(dtype)
    return found


def _summary(file: TaskFile) -> str:
    first = re.split(r"(?<=\.)\s|\n\n", " ".join(file.description.split()), maxsplit=1)[0]
    return first[:_LONGEST_SUMMARY] or f"{file.name}, of {NAME}."


def _ranking(file: TaskFile) -> list[str]:
    if file.ranking_by == "geom" or len(file.benchmarks) == 1:
        return []
    what = {"last": "its last benchmark alone", "mean": "the mean of its benchmarks"}[file.ranking_by]
    return [f"It is ranked by {what}; a search takes the geometric mean of all {len(file.benchmarks)}."]


def _reference(file: TaskFile, inputs: Sequence[str], dimensions: Sequence[str]) -> str:
    told = docstring(
        f"{file.name} of {NAME}.\n\n{file.description}\n\nIts reference.py:\n\n{file.modules['reference'].strip()}\n"
    )
    shape = f"{{{', '.join(f'{name!r}: {name}' for name in (*dimensions, CASE))}}}"
    given = f"{{{', '.join(f'{name!r}: {name}' for name in inputs)}}}"
    return (
        f"{told}\n\nfrom pathlib import Path\n\n"
        "from mctskernel.problems.gpu_mode.reference import call_reference, make_case_inputs\n\n\n"
        f"def reference({', '.join((*inputs, *dimensions, CASE))}):\n"
        f"    return call_reference(Path(__file__).parent, {shape}, {given})\n\n\n"
        f"def make_inputs({', '.join(('rng', *dimensions, CASE))}):\n"
        f"    return make_case_inputs(Path(__file__).parent, rng, {shape})\n"
    )
