"""A CUDA C++ kernel with host code in C++: a PyTorch extension in one file, for harnesses that build those.

Its function takes inputs and scalars in a given order and then the outputs, which it fills. It launches the kernel at
the shapes of the task, whose numbers are written into it, and refuses others. All names in it are generated, so that no
text of a task or a candidate can be mistaken for C++.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from string import Template

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import ResolvedPlan, resolve
from mctskernel.core.task import Task, Tensor
from mctskernel.problems.host_code.cuda import device_text, host_functions, passed_arguments
from mctskernel.problems.host_code.expressions import HostCodeError
from mctskernel.problems.host_code.launch import Argument, Kind, WrittenLaunch, vetted_plan

SCALAR_TYPES: Mapping[str, str] = {
    "float64": "at::kDouble",
    "float32": "at::kFloat",
    "float16": "at::kHalf",
    "bfloat16": "at::kBFloat16",
    "float8_e4m3fn": "at::kFloat8_e4m3fn",
    "float8_e5m2": "at::kFloat8_e5m2",
    "bool": "at::kBool",
    "int8": "at::kChar",
    "uint8": "at::kByte",
    "int16": "at::kShort",
    "int32": "at::kInt",
    "uint32": "at::kUInt32",
    "int64": "at::kLong",
    "uint64": "at::kUInt64",
}
"""PyTorch's C++ names of element types."""

COMPILER_FLAGS = (
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
"""Flags for nvcc: no --use_fast_math, as in searches, and the operators that PyTorch's own flags disable."""

_PROGRAM = Template("""\
#ifndef __CUDA_ARCH__
#include <torch/extension.h>
#endif

$device
$functions
#ifndef __CUDA_ARCH__
void mctskernel_run($parameters) {
$body
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("run", &mctskernel_run);
}
#endif
""")


def cpp_program(task: Task, kernel: Kernel, order: Sequence[str], *, flat: Collection[str] = ()) -> str:
    """The program's text; `order` names the inputs and scalars that its function `run` takes before the outputs.

    Scalars have the task's values, whatever is passed. Tensors of `flat` have no extents in the call, and one of 1 in
    the task. Raises HostCodeError.
    """
    if kernel.language is not Language.CUDA:
        raise HostCodeError(f"A kernel in {kernel.language} is launched from Python.")
    if task.in_place:
        raise HostCodeError("A task that works in place has no outputs to fill.")
    plan, tensors = vetted_plan(task, kernel), (*task.inputs, *task.outputs)
    buffers = {tensor.name: f"tensor_{number}" for number, tensor in enumerate(tensors)}
    buffers |= {each.name: f"scratch_{number}" for number, each in enumerate(plan.scratch)}
    plans: dict[tuple[tuple[int, ...], ...], ResolvedPlan] = {}
    for shape in task.shapes:
        extents = tuple(tensor.extents(shape) for tensor in tensors)
        resolved = resolve(plan, task.names(shape, kernel), task.buffer_names)
        if plans.setdefault(extents, resolved) != resolved:
            raise HostCodeError("A dimension of the task doesn't follow from the shapes of tensors.")
    launches = {extents: _launches(each, plans.values(), buffers) for extents, each in plans.items()}
    host = host_functions(kernel, next(iter(launches.values())))
    lines = list(_checks(task, buffers, flat))
    for extents, resolved in plans.items():
        known = zip(tensors, extents, strict=True)
        sizes = (
            f"{buffers[e.name]}.sizes() == at::IntArrayRef{{{', '.join(map(_literal, shape))}}}"
            for e, shape in known
        )
        calls = (
            f"{name}({', '.join(passed_arguments(launch))});"
            for (name, _), launch in zip(host.calls, launches[extents], strict=True)
        )
        body = [*_scratch(resolved, buffers), *calls, "return;"]
        lines += [f"if ({' && '.join(sizes)}) {{", *(f"    {line}" for line in body), "}"]
    lines.append(
        'TORCH_CHECK_VALUE(false, "These shapes are none of those that the kernel was written for.");'
    )
    return _PROGRAM.substitute(
        device=device_text(kernel),
        functions=host.text,
        parameters=", ".join(_parameters(task, order, buffers)),
        body="\n".join(f"    {line}" for line in lines),
    )


def _parameters(task: Task, order: Sequence[str], buffers: Mapping[str, str]) -> Iterator[str]:
    scalars = {name: f"scalar_{number}" for number, name in enumerate(task.scalars)}
    for name in (*order, *(tensor.name for tensor in task.outputs)):
        if name in scalars:
            type_ = "int64_t" if isinstance(task.scalars[name], int) else "double"
            yield f"{type_} {scalars[name]}"
        else:
            yield f"at::Tensor {buffers[name]}"


def _checks(task: Task, buffers: Mapping[str, str], flat: Collection[str]) -> Iterator[str]:
    def check(tensor: Tensor, *, written: bool) -> Iterator[str]:
        local = buffers[tensor.name]
        if tensor.name in flat:
            yield f"{local} = {local}.view({{1}});"
        yield (
            f"TORCH_CHECK_VALUE({local}.scalar_type() == {SCALAR_TYPES[tensor.dtype]}, "
            f'"{tensor.name} must hold {tensor.dtype}.");'
        )
        if written:
            yield f'TORCH_CHECK_VALUE({local}.is_contiguous(), "{tensor.name} must be contiguous.");'
        else:
            yield f"{local} = {local}.contiguous();"

    for tensor in task.inputs:
        yield from check(tensor, written=False)
    for tensor in task.outputs:
        yield from check(tensor, written=True)


def _scratch(plan: ResolvedPlan, buffers: Mapping[str, str]) -> Iterator[str]:
    for scratch in plan.scratch:
        make = "zeros" if scratch.zero else "empty"
        options = f"tensor_0.options().dtype({SCALAR_TYPES[scratch.dtype]})"
        yield f"const at::Tensor {buffers[scratch.name]} = at::{make}({{{_literal(scratch.elements)}}}, {options});"


def _launches(
    plan: ResolvedPlan, plans: Collection[ResolvedPlan], buffers: Mapping[str, str]
) -> list[WrittenLaunch]:
    """The launches of a plan. A number that is real at any shape is passed as a real one at all of them."""
    found = []
    for number, launch in enumerate(plan.launches):
        everywhere = zip(*(each.launches[number].arguments for each in plans), strict=True)
        kinds = [Kind.REAL if any(isinstance(v, float) for v in each) else Kind.WHOLE for each in everywhere]
        arguments = tuple(
            Argument(buffers[value], Kind.BUFFER)
            if isinstance(value, str)
            else Argument(_literal(value), kind)
            for value, kind in zip(launch.arguments, kinds, strict=True)
        )
        grid, block = tuple(map(_literal, launch.grid)), tuple(map(_literal, launch.block))
        found.append(WrittenLaunch(launch.kernel, grid, block, _literal(launch.shared_bytes), arguments))
    return found


def _literal(value: Number) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise HostCodeError(f"{value} can't be written as a number in C++.")
        return repr(value)
    if abs(value) >= 1 << 63:
        raise HostCodeError(f"A number of {value.bit_length()} bits exceeds 64 bits.")
    return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
