"""A GPU MODE problem as a task: its cases give the tensors, the dimensions and the tolerance."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mctskernel.core.dtypes import numpy_dtype, rounding_unit
from mctskernel.core.task import Bound, Precision, Shape, TaskError, Tensor
from mctskernel.problems.gpu_mode.cases import (
    SEED,
    Case,
    Dimensions,
    Sizes,
    check_alike,
    find_buffers,
    load_program,
    output_names,
    run_case,
)
from mctskernel.problems.gpu_mode.reference import (
    MODULE_FILE,
    GpuModeProblem,
    Leaf,
    call_reference,
    reference_function,
)
from mctskernel.problems.gpu_mode.task_file import NAME, TaskFile, integer_arguments
from mctskernel.problems.problem import available_memory
from mctskernel.problems.tolerance import floating, imprecisions, own_errors, tolerance_table
from mctskernel.problems.torch_reference import dtype_name
from mctskernel.problems.torch_task import TorchTask, drawn_tensors, independent_dimension, reference_text

CASE = "case"  # the dimension that numbers the cases
_LONGEST_SUMMARY = 200


def drafted(file: TaskFile, precision: Precision) -> TorchTask:
    """Make a task of a problem. Runs its Python, each case once. Raises TaskError."""
    program = load_program(file.modules)
    cases = [run_case(program, arguments) for arguments in file.cases]
    check_alike(cases)
    available_memory().require(max(case.nbytes for case in cases), file.name)
    small = min(range(len(file.tests)), key=lambda index: cases[index].nbytes)
    tried = program.generate(file.cases[small], SEED)
    problem, dimensions = _problem(file, cases, tried, find_buffers(program, tried, cases))
    shapes = [
        {**{name: sizes[case] for name, sizes in dimensions.items()}, CASE: case}
        for case in range(len(file.cases))
    ]
    leaves = pytree.tree_leaves(program.generate(file.cases[small], SEED))
    tensors = {leaf.input: each for leaf, each in zip(problem.leaves, leaves, strict=True) if leaf.input}
    own = own_errors(reference_function(problem, program, shapes[small]), [tensors], problem.outputs)
    # 64-bit results of narrower inputs only need to be right to 32 bits.
    wide = any(tensor.dtype == "float64" for tensor in problem.inputs)
    outputs = tuple(
        replace(each, dtype="float32") if each.dtype == "float64" and not wide else each
        for each in problem.outputs
    )
    unit = max((rounding_unit(numpy_dtype(tensor.dtype)) for tensor in floating(outputs)), default=0.0)
    relative = [min(each.relative for each in case.comparisons) for case in cases]
    bounds: list[tuple[Shape, Bound]] = [
        ({CASE: number}, Bound(max(least, unit), min(each.absolute for each in case.comparisons)))
        for number, (case, least) in enumerate(zip(cases, relative, strict=True))
    ]
    notes = list(imprecisions(outputs, own))
    if file.ranking_by != "geom" and len(file.benchmarks) > 1:
        what = {"last": "its last benchmark alone", "mean": "the mean of its benchmarks"}[file.ranking_by]
        notes.append(
            f"It is ranked by {what}; a search takes the geometric mean of all {len(file.benchmarks)}."
        )
    if min(relative) < unit:
        notes.append(
            f"Its check allows a relative error of {min(relative):g}, less than a rounding of "
            f"{floating(outputs)[0].dtype}: a kernel is verified to a rounding, and its check may still refuse it."
        )
    function = reference_function(problem, program, shapes[len(file.tests)])
    first = re.split(r"(?<=\.)\s|\n\n", " ".join((file.description or "").split()), maxsplit=1)[0]
    return TorchTask(
        name=file.name,
        summary=first[:_LONGEST_SUMMARY] or f"{file.name}, of {NAME}.",
        function=function,
        inputs=problem.inputs,
        outputs=problem.outputs,
        search=tuple(shapes[len(file.tests) :]),
        verify=tuple(shapes[: len(file.tests)]),
        granularity={name: math.gcd(*sizes) for name, sizes in dimensions.items()},
        reference=reference_text(
            f"{file.name} of {NAME}.\n\n{file.description}\n\nIts reference.py:\n\n"
            f"{file.modules['reference'].strip()}\n",
            call_reference.__module__,
            [tensor.name for tensor in problem.inputs],
            [*dimensions, CASE],
            sees_shape=True,
            makes_inputs=True,
        ),
        tolerance=tolerance_table(outputs, own, bounds, precision),
        precision=precision,
        independent=independent_dimension(
            function,
            lambda shape: drawn_tensors(problem.inputs, {CASE: 0, **shape}, "cpu", SEED),
            problem.inputs,
            problem.outputs,
            dict.fromkeys(dimensions, 1),
        ),
        inputs_by=CASE,
        own_files={MODULE_FILE.format(name=name): text.encode() for name, text in file.modules.items()},
        problem=problem,
        notes=tuple(notes),
    )


def _problem(
    file: TaskFile, cases: Sequence[Case], tried: Any, buffers: Mapping[str, str]
) -> tuple[GpuModeProblem, Mapping[str, Sizes]]:
    """The problem's record and the sizes in each case; `buffers` are outputs written into the data, by subscripts."""
    names = _names(file.modules["reference"], cases[0].data)
    dimensions = Dimensions(integer_arguments(file.cases), frozenset({CASE, *names.values()}))
    inputs = _inputs(cases, Case(tried, (), ()).tensors, names, buffers, dimensions)
    varying = _varying(cases, names, dimensions)
    outputs = _outputs(cases, dimensions, file.name)
    shown = {names[place]: tensor for place, tensor in cases[0].tensors.items()}
    shown |= dict(zip((each.name for each in outputs), cases[0].outputs, strict=True))

    def leaf(place: str, value: Any) -> Leaf:
        if place in buffers:
            return Leaf(place, buffer=buffers[place])
        if place in varying:
            return Leaf(place, dimension=varying[place])
        is_tensor = isinstance(value, torch.Tensor)
        return Leaf(place, input=names[place]) if is_tensor else Leaf(place, value=value)

    try:
        structure = pytree.treespec_dumps(pytree.tree_structure(cases[0].data))
    except (NotImplementedError, TypeError, ValueError) as error:
        raise TaskError(f"Its generate_input gives data that can't be stored: {error}") from error
    problem = GpuModeProblem(
        benchmark=NAME,
        name=file.name,
        modules=tuple(file.modules),
        cases=tuple(dict(case) for case in file.cases),
        case=CASE,
        structure=structure,
        leaves=tuple(leaf(place, value) for place, value in cases[0].leaves.items()),
        inputs=inputs,
        outputs=outputs,
        scalars=tuple(each.name for each in (*inputs, *outputs) if shown[each.name].dim() == 0),
    )
    return problem, dimensions.sizes


def _names(reference: str, data: Any) -> dict[str, str]:
    """Names of the leaves by their subscripts: those that the reference unpacks its data into, or their keys."""
    unpacked = _unpacked(reference)
    taken = {CASE, "rng", *output_names(len(data) if isinstance(data, tuple) else 1)}
    found: dict[str, str] = {}
    for path, _ in pytree.tree_flatten_with_path(data)[0]:
        words = [str(getattr(each, "idx", getattr(each, "key", each))) for each in path] or ["x"]
        if words[0].isdecimal():
            named = isinstance(data, tuple | list) and len(unpacked) == len(data)
            words[0] = (unpacked[int(words[0])].strip("_") if named else "") or f"input{words[0]}"
        name = re.sub(r"\W+", "_", "_".join(words), flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"input_{name}"
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        found[pytree.keystr(path)] = next(each for each in numbered if each not in taken)
        taken.add(found[pytree.keystr(path)])
    return found


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
    tried: Mapping[str, Any],
    names: Mapping[str, str],
    buffers: Mapping[str, str],
    dimensions: Dimensions,
) -> tuple[Tensor, ...]:
    """The inputs. Ranges of integers are those of one case, since `make_inputs` draws them."""
    found = []
    for place, first in cases[0].tensors.items():
        if place in buffers:
            continue
        extents = tuple(
            dimensions.extent(
                tuple(case.tensors[place].shape[axis] for case in cases), f"{names[place]}_{axis}"
            )
            for axis in range(first.dim())
        )
        values = tried[place]
        drawn = () if first.is_floating_point() else ("integers", int(values.min()), int(values.max()))
        found.append(Tensor(names[place], dtype_name(first), extents or (1,), *drawn))
    if not found:
        raise TaskError("Its generate_input gives no tensor that its ref_kernel reads.")
    return tuple(found)


def _varying(cases: Sequence[Case], names: Mapping[str, str], dimensions: Dimensions) -> dict[str, str]:
    """Plain values that differ between cases, as dimensions; only integers can be."""
    found = {}
    leaves = [case.leaves for case in cases]
    for place, first in leaves[0].items():
        values = tuple(each[place] for each in leaves)
        if isinstance(first, torch.Tensor) or len(set(map(repr, values))) == 1:
            continue
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise TaskError(
                f"Its data has different values at '{names[place]}', such as {values[0]!r}, depending on the case: "
                "only whole numbers may differ."
            )
        known = next((name for name, sizes in dimensions.sizes.items() if sizes == values), None)
        extent = known or dimensions.extent(values, names[place])
        if extent not in dimensions.sizes:
            raise TaskError(
                f"Its data has numbers at '{names[place]}' that depend on the case in no simple way."
            )
        found[place] = str(extent)
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
    if unknown := [each for each in dimensions.sizes if each not in before]:
        raise TaskError(f"{name}: its output depends on '{unknown[0]}', which no shape of its inputs has.")
    return tuple(found)
